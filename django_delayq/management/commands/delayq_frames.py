"""``manage.py delayq_frames``: look at the frames of a queue that Redisson uses, rewrite them, list them or not."""

import json
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from shlex import quote
from typing import Any

from django.core.management.base import (
    CommandError,
    CommandParser,
)
from redis.client import Redis
from redis.exceptions import NoPermissionError, RedisError

from django_delayq import conf
from django_delayq.clients.clients import own_clients
from django_delayq.codecs import CODEC_NAMES
from django_delayq.delivery.keys import DeliveryKeys
from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.progress import ProgressLine
from django_delayq.repair.calls import ListBusy
from django_delayq.repair.listing import Listing
from django_delayq.repair.reframing import Reframing, Tally
from django_delayq.repair.survey import (
    JAVA_RETRY_MS,
    Jam,
    Survey,
    fitting_settings,
    similar_queues,
    take_survey,
)
from django_delayq.wire.frame import FrameFormat

_GENERATIONS = {
    FrameFormat.DLC0: "Redisson up to 3.21.0",
    FrameFormat.BC0LC0: "Redisson from 3.21.1 on",
}
#: A version of each generation, for the commands that are shown.
_VERSIONS = {FrameFormat.DLC0: "3.21.0", FrameFormat.BC0LC0: "3.21.1"}

EXAMPLES = """
examples:
  manage.py delayq_frames payments                            what lies there, what is stuck, and what to do
  manage.py delayq_frames payments --to 3.27.2 --dry-run      what it would rewrite for Java services on 3.27.2
  manage.py delayq_frames payments --to 3.27.2                rewrite; a stuck transfer goes on by itself
  manage.py delayq_frames payments --to 3.27.2 --follow       the same while services on the old version still offer
  manage.py delayq_frames payments --list on                  put what waits into Redisson's list, once REDISSON is set
  manage.py delayq_frames payments --list off                 take it out of there, once INSERTION_LIST is off

Each step is atomic and takes some milliseconds. It may be interrupted at any moment, and run again.

exit status:
  0 when nothing is left that stops a Redisson of the given format, or none was given; 1 when something is, or
  it could not be found out
"""


def _format(text: str) -> FrameFormat:
    with suppress(ValueError):
        return FrameFormat(text)
    try:
        return FrameFormat.for_redisson(text)
    except DelayqError as error:
        raise ArgumentTypeError(f"{error}, or give a format: dLc0 or Bc0Lc0") from None


class Command(CommandWithExamples):
    examples = EXAMPLES
    help = (
        "Look at the frames of a delayed queue, whoever wrote them, rewrite them to the format of one Redisson, or"
        " bring its list in line with INSERTION_LIST.\n"
        "Redisson up to 3.21.0 and from 3.21.1 on stop at each other's frames: this frees them. The queue need not be"
        " in DELAYQ."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "queue",
            metavar="QUEUE",
            help="name of the queue, as on the server: with what a NameMapper puts before it.",
        )
        parser.add_argument(
            "--to",
            type=_format,
            metavar="VERSION",
            help="rewrite frames to what this Redisson reads: a version such as 3.27.2, or dLc0 (up to 3.21.0) or"
            " Bc0Lc0 (from 3.21.1 on). What is no frame at all stops every Redisson, and goes to quarantine."
            " Without it nothing is changed.",
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="with --to or --list: say what would be done, and change nothing.",
        )
        parser.add_argument(
            "--drop-delivered",
            action="store_true",
            help="with --to: first remove what a stuck transfer has delivered already, which is due and gone from the"
            " delay queue. Default: it is kept, so that nothing can be lost, and delivered once more. Leave it out"
            " where other clients store elements without the delay queue: theirs look the same.",
        )
        parser.add_argument(
            "--follow",
            action="store_true",
            help="with --to: go on until interrupted, for as long as services of the other generation still offer.",
        )

        parser.add_argument(
            "--list",
            choices=("on", "off"),
            help="after INSERTION_LIST or REDISSON of the queue was changed and all processes know: on puts everything that"
            " waits into Redisson's list, where Java's size, contains, remove and readAll look; off takes it out, and what"
            " is in the list alone stays. Everything waits on, and is delivered as before.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["list"] and options["to"]:
            raise CommandError("--to and --list are two things: give one")
        if options["to"] is None:
            for option in ("dry_run", "drop_delivered", "follow"):
                if options[option] and not (option == "dry_run" and options["list"]):
                    other = " or --list" if option == "dry_run" else ""
                    raise CommandError(
                        f"--{option.replace('_', '-')} needs --to VERSION{other}"
                    )
        if options["dry_run"] and options["follow"]:
            raise CommandError("--follow changes things, --dry-run does not: give one")
        try:
            keys = DeliveryKeys.of(options["queue"])
            if options["list"]:
                _check_setting(options["queue"], options["list"] == "on")
            client = own_clients.make()
        except DelayqError as error:
            raise CommandError(str(error)) from error
        self._changes = False
        self._progress = ProgressLine(self.stderr, is_on=options["verbosity"] > 0)
        try:
            status = self._run(client, keys, options)
        except ListBusy as error:
            raise CommandError(f"{error}.") from error
        except RedisError as error:
            what, message, hint = describe_fault(error)
            rest = (
                "What was done so far stands"
                if self._changes
                else "Nothing was changed"
            )
            raise CommandError(
                f"{what} {hint}\n{message}\n{rest}; run it again when that is mended."
            ) from error
        except KeyboardInterrupt:
            self._progress.end()
            self._say("Interrupted. No step is half done; run it again to go on.")
            status = 1
        finally:
            self._progress.end()
            client.close()
        if status:
            raise SystemExit(status)

    def _run(self, client: Redis, keys: DeliveryKeys, options: dict[str, Any]) -> int:
        target: FrameFormat | None = options["to"]
        name = keys.queue.name
        survey = take_survey(client, keys, progress=self._progress)
        self._progress.end()
        if survey.is_empty and not options["follow"]:
            self._say(*self._describe_absence(client, name))
            return 0
        if options["list"]:
            return self._list(client, keys, survey, options)
        if target is None:
            self._say(*_describe(survey, name), "", *_advise(survey, name))
            return 0
        if options["dry_run"]:
            self._say(*_describe_plan(survey, target, options["drop_delivered"]))
            return _status(survey, target)
        self._changes = True
        reframing = Reframing(client, keys, target, self._progress)
        try:
            if options["drop_delivered"]:
                reframing.drop_delivered(survey.delivered)
            reframing.run()
            if options["follow"]:
                self._follow(reframing)
        except KeyboardInterrupt:
            if not options["follow"]:
                raise
        finally:
            self._progress.end()
            self._say(*_describe_tally(reframing.tally, target))
        left = take_survey(client, keys, progress=self._progress)
        self._progress.end()
        self._say(*_describe_rest(left, target))
        return _status(left, target)

    def _list(
        self,
        client: Redis,
        keys: DeliveryKeys,
        survey: Survey,
        options: dict[str, Any],
    ) -> int:
        is_on = options["list"] == "on"
        if options["dry_run"]:
            self._say(*_describe_list_plan(survey, is_on))
            return 0
        self._changes = True
        listing = Listing(client, keys, self._progress)
        try:
            if is_on:
                listing.fill()
            else:
                listing.empty()
        finally:
            self._progress.end()
            self._say(*_describe_listing(listing, is_on))
        if not is_on:
            left = client.llen(keys.queue.delay_queue) - listing.alone
            if left > 0:
                self._say(
                    f"{_count(left, 'frame')} came into it meanwhile: from Java, or from a process that does not know"
                    " the new setting yet."
                )
        return 0

    def _follow(self, reframing: Reframing) -> None:
        self._progress.end()
        self._say(
            f"Rewritten so far: {reframing.tally.rewritten:,}. Following; Ctrl-C ends it."
        )
        said = reframing.tally.changed
        for tally in reframing.follow():
            if tally.changed != said:
                said = tally.changed
                self._progress(f"rewritten since the start: {tally.rewritten:,}", 0, 0)

    def _describe_absence(self, client: Redis, name: str) -> Iterator[str]:
        yield f"Nothing lies in the queue {name!r}, and none of its keys exists."
        try:
            similar = similar_queues(client, name, progress=self._progress)
        except NoPermissionError as error:
            yield f"Queues of similar names were not looked for, the user may not: {error}"
            return
        finally:
            self._progress.end()
        if not similar:
            yield "No other queue has this name in its own, either. Redisson deletes the keys of an empty queue."
            return
        yield "These have it in their names, as a NameMapper of Redisson would make them:"
        for other in similar:
            yield f"  manage.py delayq_frames {quote(other)}"
        yield "The name with its prefix is the one to use, here and in the settings:"
        yield _setting(similar[0], {})

    def _say(self, *lines: str) -> None:
        for line in lines:
            self.stdout.write(line)
        self.stdout.flush()


def _check_setting(name: str, is_on: bool) -> None:
    queue = conf.get_settings().queues.get(name)
    if queue is None or queue.keeps_list == is_on:
        return
    path = f"DELAYQ['QUEUES'][{name!r}]"
    if is_on:
        raise CommandError(
            f"{path} keeps no list, and what is scheduled from now on would be missing in it. Set REDISSON to the version"
            " of your Java services, or INSERTION_LIST to True, restart all processes, and run this again."
        )
    raise CommandError(
        f"{path} keeps the list, and would go on filling it. Set INSERTION_LIST to False, restart all processes, and run"
        " this again."
    )


def _describe_list_plan(survey: Survey, is_on: bool) -> Iterator[str]:
    listed, alone = survey.listed.total(), survey.alone.total()
    yield f"Dry run, list {'on' if is_on else 'off'}. Nothing was changed."
    if is_on:
        missing = survey.waiting.total() - (listed - alone)
        yield f"  {max(missing, 0):12,}  would be put into the list"
        yield f"  {listed:12,}  in it already"
    else:
        yield f"  {listed - alone:12,}  would be taken out of the list, and wait on"
        yield f"  {alone:12,}  in the list alone, would stay there"


def _describe_listing(listing: Listing, is_on: bool) -> Iterator[str]:
    yield f"List {'on' if is_on else 'off'}, in {_count(listing.steps, 'step')}:"
    if is_on:
        yield f"  {listing.filled:12,}  put into the list"
        if listing.left_out:
            yield f"  {listing.left_out:12,}  left out: no frames, or start times that are no whole ms; they wait on"
        return
    yield f"  {listing.emptied:12,}  taken out of the list; they wait on"
    if listing.alone:
        yield f"  {listing.alone:12,}  in the list alone, where nobody transfers them; they stay there"


def _describe(survey: Survey, name: str) -> Iterator[str]:
    yield f"queue {name}, at {_time(survey.now_ms)} by the server's clock"
    yield ""
    yield from _table(survey)
    yield ""
    facts = {
        "due since": _due_since(survey),
        "codec": _describe_codec(survey),
        "jobs of django-delayq": f"{survey.jobs:,}" if survey.jobs else "",
        "without the delay queue": f"{survey.unlisted:,}, INSERTION_LIST is or was off"
        if survey.unlisted
        else "",
        "the list was emptied": "so it does not tell what was delivered"
        if survey.is_emptied
        else "",
        "both formats at once": f"{survey.ambiguous:,} of 17 bytes: an empty payload in Bc0Lc0, one zero byte in dLc0"
        if survey.ambiguous
        else "",
    }
    told = {fact: text for fact, text in facts.items() if text}
    width = max(map(len, told), default=0)
    for fact, text in told.items():
        yield f"{fact:{width}}  {text}"
    yield ""
    yield from _describe_trouble(survey)


def _table(survey: Survey) -> Iterator[str]:
    labels: list[tuple[FrameFormat | None, str]] = [
        (item, f"{item.value:6}  {generation.removeprefix('Redisson ')}")
        for item, generation in _GENERATIONS.items()
    ]
    labels.append((None, "no frame at all"))
    width = max(len(label) for _, label in labels)
    yield f"  {'':{width}}  {'timeout set':>12}  {'of these due':>12}  {'delay queue':>12}"
    for item, label in labels:
        numbers = (survey.waiting[item], survey.due[item], survey.listed[item])
        yield f"  {label:{width}}" + "".join(f"  {number:12,}" for number in numbers)
    yield f"  {'destination queue':{width}}  {survey.counts.destination:12,}"


def _due_since(survey: Survey) -> str:
    if survey.first_ms is None:
        return ""
    if survey.first_ms > survey.now_ms:
        return f"nothing is; the first will be at {_time(survey.first_ms)}"
    ago_s = (survey.now_ms - survey.first_ms) / 1000
    return f"{_time(survey.first_ms)}, {_span(ago_s)} ago"


def _describe_codec(survey: Survey) -> str:
    looked_at, names, votes = survey.guess()
    if not looked_at:
        return ""
    of = f"{looked_at} payload{'' if looked_at == 1 else 's'} looked at"
    if not names:
        told = ", ".join(f"{name} {count}" for name, count in votes.most_common(4))
        return f"more than one, or one of their own: {told}; {of}"
    first, *others = names
    if first == "ByteArrayCodec":
        return f"none that is known: bytes, encrypted, compressed, or a codec of their own; {of}"
    # It writes anything.
    others = [name for name in others if name != "ByteArrayCodec"]
    also = f", or {', '.join(others[:3])}" if others else ""
    note = "" if first in CODEC_NAMES else ", which django-delayq cannot read"
    return f"probably {first}{note}{also}; {of}"


def _describe_trouble(survey: Survey) -> Iterator[str]:
    troubles = [
        *_describe_jams(survey),
        *_describe_leftovers(survey),
        *_describe_start_times(survey),
    ]
    yield from troubles or ["Nothing is stuck."]


def _describe_jams(survey: Survey) -> Iterator[str]:
    if not survey.is_mixed:
        for redisson in survey.jams:
            (reader,) = set(FrameFormat) - {redisson}
            yield (
                f"All frames are of one format, which {_GENERATIONS[reader]} reads. {_GENERATIONS[redisson]} would"
                " stop at them, and must not share this queue."
            )
        overdue_ms = survey.now_ms - (survey.first_ms or survey.now_ms)
        if overdue_ms > 2 * JAVA_RETRY_MS:
            yield (
                f"NOT TRANSFERRED: {_count(survey.due.total(), 'due frame')}. No Java process that holds an"
                " RDelayedQueue of this name lives, and no worker of django-delayq serves the queue, or they are slow."
            )
        return
    for redisson, jam in sorted(survey.jams.items(), key=lambda item: -item[1].rank):
        generation = _GENERATIONS[redisson]
        if not survey.is_stuck(jam):
            yield f"WILL BE STUCK: {generation} will stop at {_describe_jam(jam)}, due at {_time(jam.start_time_ms)}."
            continue
        yield f"STUCK: {generation} stops at {_describe_jam(jam)}, due since {_time(jam.start_time_ms)}."
        yield f"  {_count(survey.behind(jam), 'due frame')} behind it, which it never reaches."
        if jam.delivered_again:
            yield (
                f"  {_count(jam.delivered_again, 'due frame')} ahead of it, which each of its processes delivers"
                f" again every {JAVA_RETRY_MS // 1000} s."
            )


def _describe_leftovers(survey: Survey) -> Iterator[str]:
    if survey.delivered:
        yield (
            f"DELIVERED ALREADY: {_count(len(survey.delivered), 'frame')}, due and gone from the delay queue:"
            " a transfer that stopped has pushed them, and will again."
        )
        yield "  Frames that other clients store without the delay queue look the same."
    if alone := survey.alone.total():
        yield f"NEVER TRANSFERRED: {_count(alone, 'frame')} in the delay queue alone, not in the timeout set."


def _describe_start_times(survey: Survey) -> Iterator[str]:
    if survey.fractional:
        yield (
            f"START TIMES: {survey.fractional:,} no whole number of ms; Redisson cannot read such a head, and waits"
            " for its retry each time."
        )
    if survey.negative:
        yield f"START TIMES: {survey.negative:,} below 0; Redisson never transfers them."


def _describe_jam(jam: Jam) -> str:
    what = f"a {jam.format.value} frame" if jam.format else "what is no frame"
    return f"{what} of {jam.size:,} bytes, number {jam.rank + 1:,} of the timeout set"


def _advise(survey: Survey, name: str) -> Iterator[str]:
    if survey.is_mixed:
        yield "To free the Java services, rewrite what they cannot read:"
        for item in survey.formats or FrameFormat:
            generation = _GENERATIONS[item].removeprefix("Redisson ")
            yield f"  manage.py delayq_frames {quote(name)} --to {_VERSIONS[item]} --dry-run    where they are {generation}"
        yield "Without --dry-run it does so; add --follow while services of both generations offer."
        if survey.delivered:
            yield "With --drop-delivered what was delivered already is not delivered once more."
        if survey.waiting[None]:
            yield "What is no frame goes to quarantine, where the admin shows it."
    else:
        yield from _advise_settings(survey, name)
    if survey.guess().names[:1] == ("ByteArrayCodec",):
        yield "For a codec of their own, CODEC takes an object with name, encode and decode; see docs/settings.md."


def _advise_settings(survey: Survey, name: str) -> Iterator[str]:
    if not survey.formats:
        yield "No waiting frame reveals the format."
        return
    configured = conf.get_settings().queues.get(name)
    if configured is None:
        yield "The queue is not in the settings. To serve it:"
        is_ours = survey.jobs == survey.waiting.total()
        yield _setting(name, {} if is_ours else fitting_settings(survey))
        return
    (found,) = survey.formats
    names = survey.guess().names
    codec = configured.payload_codec.name
    is_codec_right = not names or codec in names or not configured.is_shared
    misfits = []
    if configured.frame_format is not found:
        misfits.append(
            f"it writes {configured.frame_format.value}, and {found.value} was found"
        )
    if not is_codec_right:
        misfits.append(f"its codec is {codec}, and the payloads look like {names[0]}")
    if not misfits:
        yield "The settings of this queue fit."
        return
    yield f"The settings of this queue do not fit: {'; '.join(misfits)}. These would:"
    if configured.is_shared:
        known = codec if is_codec_right else None
        yield _setting(name, fitting_settings(survey, codec=known))
        yield "The version stands for its generation; put the one of your Java services."
    else:
        yield _setting(name, {"FRAME": found.value})


def _setting(name: str, options: dict[str, str]) -> str:
    return f'  DELAYQ = {{"QUEUES": {json.dumps({name: options}, ensure_ascii=False)}}}'


def _describe_plan(survey: Survey, target: FrameFormat, is_drop: bool) -> Iterator[str]:
    dropped = (
        Counter(name.format for name in survey.delivered) if is_drop else Counter()
    )
    rewritten = survey.foreign(target) - survey.waiting[None]
    rewritten -= dropped.total() - dropped[target]
    alone = survey.alone.total() - survey.alone[target] - survey.alone[None]
    yield f"Dry run, for {_GENERATIONS[target]} ({target.value}). Nothing was changed."
    if is_drop:
        yield f"  {dropped.total():12,}  delivered already, would be removed"
    elif survey.delivered:
        yield f"  {len(survey.delivered):12,}  delivered already, would be kept and delivered once more"
    yield f"  {rewritten:12,}  would be rewritten in the timeout set"
    if alone:
        yield f"  {alone:12,}  would be rewritten in the delay queue alone, where nobody transfers them"
    bad = survey.waiting[None] + survey.alone[None]
    yield f"  {bad:12,}  no frames, would go to quarantine"
    yield f"  {survey.fitting(target):12,}  in this format already"


def _describe_tally(tally: Tally, target: FrameFormat) -> Iterator[str]:
    yield f"For {_GENERATIONS[target]} ({target.value}), in {_count(tally.steps, 'step')}:"
    yield f"  {tally.rewritten:12,}  rewritten"
    if tally.alone:
        yield f"  {tally.alone:12,}  of these in the delay queue alone, where nobody transfers them"
    yield f"  {tally.quarantined:12,}  put into quarantine"
    if tally.dropped:
        yield f"  {tally.dropped:12,}  removed, delivered already"


def _describe_rest(survey: Survey, target: FrameFormat) -> Iterator[str]:
    left = survey.foreign(target)
    yield f"  {survey.fitting(target):12,}  in this format now"
    yield f"  {left:12,}  left that are not"
    if left:
        yield (
            "Something stores them while this runs. Run it again, or with --follow until every service is on"
            " one side of 3.21.1."
        )
    else:
        yield f"Nothing stops {_GENERATIONS[target]} any more; its transfers were told to look."


def _status(survey: Survey, target: FrameFormat) -> int:
    return 1 if survey.foreign(target) else 0


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _time(epoch_ms: float) -> str:
    try:
        moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms:g} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.1f} s"

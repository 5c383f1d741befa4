"""The texts of ``delayq_frames``: what a survey found, what would be done, what was done. No I/O."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from shlex import quote

from django_delayq import conf
from django_delayq.codecs import CODEC_NAMES
from django_delayq.repair.listing import Listing
from django_delayq.repair.reframing import Tally
from django_delayq.repair.survey import (
    JAVA_RETRY_MS,
    Jam,
    Survey,
    fitting_settings,
)
from django_delayq.wire.frame import FrameFormat

_GENERATIONS = {
    FrameFormat.DLC0: "Redisson up to 3.21.0",
    FrameFormat.BC0LC0: "Redisson from 3.21.1 on",
}
#: A version of each generation, for the commands that are shown.
_VERSIONS = {FrameFormat.DLC0: "3.21.0", FrameFormat.BC0LC0: "3.21.1"}


def describe_list_plan(survey: Survey, is_on: bool) -> Iterator[str]:
    listed, alone = survey.listed.total(), survey.alone.total()
    yield f"Dry run, list {'on' if is_on else 'off'}. Nothing was changed."
    if is_on:
        missing = survey.waiting.total() - (listed - alone)
        yield f"  {max(missing, 0):12,}  would be added to the list"
        yield f"  {listed:12,}  already in the list"
    else:
        yield f"  {listed - alone:12,}  would be removed from the list, and still wait"
        yield f"  {alone:12,}  only in the list, would stay there"


def describe_listing(listing: Listing, is_on: bool) -> Iterator[str]:
    yield f"List {'on' if is_on else 'off'}, in {count(listing.steps, 'step')}:"
    if is_on:
        yield f"  {listing.filled:12,}  added to the list"
        if listing.left_out:
            yield f"  {listing.left_out:12,}  left out: not frames, or start times not in whole ms; they still wait"
        return
    yield f"  {listing.emptied:12,}  removed from the list; they still wait"
    if listing.alone:
        yield f"  {listing.alone:12,}  only in the list, where nobody transfers them; they stay there"


def describe(survey: Survey, name: str) -> Iterator[str]:
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
        "the list was emptied": "so it does not show what was delivered"
        if survey.is_emptied
        else "",
        "fit both formats": f"{survey.ambiguous:,} of 17 bytes: an empty payload in Bc0Lc0, one zero byte in dLc0"
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
        return f"nothing is due; the first will be at {_time(survey.first_ms)}"
    ago_s = (survey.now_ms - survey.first_ms) / 1000
    return f"{_time(survey.first_ms)}, {_span(ago_s)} ago"


def _describe_codec(survey: Survey) -> str:
    looked_at, names, votes = survey.guess()
    if not looked_at:
        return ""
    of = f"{looked_at} payload{'' if looked_at == 1 else 's'} looked at"
    if not names:
        told = ", ".join(f"{name} {count}" for name, count in votes.most_common(4))
        return f"several, or a custom one: {told}; {of}"
    first, *others = names
    if first == "ByteArrayCodec":
        return f"unknown: plain, encrypted or compressed bytes, or a custom codec; {of}"
    # ByteArrayCodec writes anything.
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
                f"NOT TRANSFERRED: {count(survey.due.total(), 'due frame')}. Either no Java process with an"
                " RDelayedQueue of this name and no worker of django-delayq serves the queue, or they are slow."
            )
        return
    for redisson, jam in sorted(survey.jams.items(), key=lambda item: -item[1].rank):
        generation = _GENERATIONS[redisson]
        if not survey.is_stuck(jam):
            yield f"WILL BE STUCK: {generation} will stop at {_describe_jam(jam)}, due at {_time(jam.start_time_ms)}."
            continue
        yield f"STUCK: {generation} stops at {_describe_jam(jam)}, due since {_time(jam.start_time_ms)}."
        yield f"  It never reaches the {count(survey.behind(jam), 'due frame')} behind it."
        if jam.delivered_again:
            yield (
                f"  Each of its processes delivers the {count(jam.delivered_again, 'due frame')} ahead of it again"
                f" every {JAVA_RETRY_MS // 1000} s."
            )


def _describe_leftovers(survey: Survey) -> Iterator[str]:
    if survey.delivered:
        yield (
            f"DELIVERED ALREADY: {count(len(survey.delivered), 'frame')}, due and missing from the delay queue:"
            " a transfer that stopped halfway has delivered them, and will again."
        )
        yield "  Frames that other clients store without the delay queue look the same."
    if alone := survey.alone.total():
        yield f"NEVER TRANSFERRED: {count(alone, 'frame')} only in the delay queue, not in the timeout set."


def _describe_start_times(survey: Survey) -> Iterator[str]:
    if survey.fractional:
        yield (
            f"START TIMES: {survey.fractional:,} not whole ms; Redisson cannot read such a head, and waits for its"
            " retry each time."
        )
    if survey.negative:
        yield f"START TIMES: {survey.negative:,} below 0; Redisson never transfers them."


def _describe_jam(jam: Jam) -> str:
    what = (
        f"a {jam.format.value} frame of {jam.size:,} bytes"
        if jam.format
        else f"{jam.size:,} bytes that are not a frame"
    )
    return f"{what}, number {jam.rank + 1:,} of the timeout set"


def advise(survey: Survey, name: str) -> Iterator[str]:
    if survey.is_mixed:
        yield "To free the Java services, rewrite what they cannot read:"
        for item in survey.formats or FrameFormat:
            generation = _GENERATIONS[item].removeprefix("Redisson ")
            yield f"  manage.py delayq_frames {quote(name)} --to {_VERSIONS[item]} --dry-run    if they are {generation}"
        yield "Without --dry-run the command rewrites them; add --follow while services of both generations offer."
        if survey.delivered:
            yield "With --drop-delivered, frames that were delivered already are not delivered again."
        if survey.waiting[None]:
            yield "Members that are not frames go to quarantine, where the admin shows them."
    else:
        yield from _advise_settings(survey, name)
    if survey.guess().names[:1] == ("ByteArrayCodec",):
        yield "For a custom codec, set CODEC to an object with name, encode and decode; see docs/settings.md."


def _advise_settings(survey: Survey, name: str) -> Iterator[str]:
    if not survey.formats:
        yield "No waiting frame reveals the format."
        return
    configured = conf.get_settings().queues.get(name)
    if configured is None:
        yield "The queue is not in the settings. To serve it:"
        is_ours = survey.jobs == survey.waiting.total()
        yield setting(name, {} if is_ours else fitting_settings(survey))
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
        yield setting(name, fitting_settings(survey, codec=known))
        yield "The version stands for its generation; use the one of your Java services."
    else:
        yield setting(name, {"FRAME": found.value})


def setting(name: str, options: dict[str, str]) -> str:
    return f'  DELAYQ = {{"QUEUES": {json.dumps({name: options}, ensure_ascii=False)}}}'


def describe_plan(survey: Survey, target: FrameFormat, is_drop: bool) -> Iterator[str]:
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
        yield f"  {len(survey.delivered):12,}  delivered already, would be kept and delivered again"
    yield f"  {rewritten:12,}  would be rewritten in the timeout set"
    if alone:
        yield f"  {alone:12,}  would be rewritten only in the delay queue, where nobody transfers them"
    bad = survey.waiting[None] + survey.alone[None]
    yield f"  {bad:12,}  not frames, would go to quarantine"
    yield f"  {survey.fitting(target):12,}  in this format already"


def describe_tally(tally: Tally, target: FrameFormat) -> Iterator[str]:
    yield f"For {_GENERATIONS[target]} ({target.value}), in {count(tally.steps, 'step')}:"
    yield f"  {tally.rewritten:12,}  rewritten"
    if tally.alone:
        yield f"  {tally.alone:12,}  of these only in the delay queue, where nobody transfers them"
    yield f"  {tally.quarantined:12,}  put into quarantine"
    if tally.dropped:
        yield f"  {tally.dropped:12,}  removed, delivered already"


def describe_rest(survey: Survey, target: FrameFormat) -> Iterator[str]:
    left = survey.foreign(target)
    yield f"  {survey.fitting(target):12,}  in this format now"
    yield f"  {left:12,}  still in another"
    if left:
        yield (
            "Somebody stores them while this runs. Run it again, or with --follow until every service is on"
            " one side of 3.21.1."
        )
    else:
        yield f"Nothing stops {_GENERATIONS[target]} any more; its transfers have been notified."


def count(number: int, noun: str) -> str:
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

"""The texts of ``delayq_frames``: what a survey found, what would be done, what was done. No I/O."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from shlex import quote

from django.utils import formats
from django.utils.translation import gettext_lazy

from django_delayq import conf
from django_delayq.codecs import CODEC_NAMES
from django_delayq.management.terminal import padded, width_of
from django_delayq.tools.insertion_list import Listing
from django_delayq.tools.reframe import Tally
from django_delayq.tools.survey import JAVA_RETRY_MS, Jam, Survey, fitting_settings
from django_delayq.translations import gettext, moment_text, ngettext, number_text
from django_delayq.wire.frame import FrameFormat

_GENERATIONS = {
    FrameFormat.DLC0: gettext_lazy("Redisson up to 3.21.0"),
    FrameFormat.BC0LC0: gettext_lazy("Redisson from 3.21.1 on"),
}
#: The same without the name, for a table and where it stands already.
_RANGES = {
    FrameFormat.DLC0: gettext_lazy("up to 3.21.0"),
    FrameFormat.BC0LC0: gettext_lazy("from 3.21.1 on"),
}
#: A version of each generation, for the commands that are shown.
_VERSIONS = {FrameFormat.DLC0: "3.21.0", FrameFormat.BC0LC0: "3.21.1"}


def describe_list_plan(survey: Survey, is_on: bool) -> Iterator[str]:
    listed, alone = survey.listed.total(), survey.alone.total()
    if is_on:
        yield gettext("Dry run, list on. Nothing was changed.")
        missing = survey.waiting.total() - (listed - alone)
        yield _row(max(missing, 0), gettext("would be added to the list"))
        yield _row(listed, gettext("already in the list"))
    else:
        yield gettext("Dry run, list off. Nothing was changed.")
        yield _row(
            listed - alone,
            gettext("would be removed from the list, and still wait"),
        )
        yield _row(alone, gettext("only in the list, would stay there"))


def describe_listing(listing: Listing, is_on: bool) -> Iterator[str]:
    steps = listing.steps
    yield (
        ngettext("List on, in {number} step:", "List on, in {number} steps:", steps)
        if is_on
        else ngettext(
            "List off, in {number} step:", "List off, in {number} steps:", steps
        )
    )
    if is_on:
        yield _row(listing.filled, gettext("added to the list"))
        if listing.left_out:
            yield _row(
                listing.left_out,
                gettext(
                    "skipped: not frames, or start times not in whole ms; they still wait"
                ),
            )
        return
    yield _row(listing.emptied, gettext("removed from the list; they still wait"))
    if listing.alone:
        yield _row(
            listing.alone,
            gettext("only in the list, never transferred; they stay there"),
        )


def describe(survey: Survey, name: str) -> Iterator[str]:
    yield gettext(
        "queue {name}, at {time} by the server's clock",
        name=name,
        time=_time(survey.now_ms),
    )
    yield ""
    yield from _table(survey)
    yield ""
    facts = {
        gettext("due since"): _due_since(survey),
        gettext("codec"): _describe_codec(survey),
        gettext("jobs of django-delayq"): number_text(survey.jobs)
        if survey.jobs
        else "",
        gettext("without the delay queue"): gettext(
            "{count}, INSERTION_LIST is or was off", count=survey.unlisted
        )
        if survey.unlisted
        else "",
        gettext("the list was emptied"): gettext(
            "so it does not show what was delivered"
        )
        if survey.is_emptied
        else "",
        gettext("fit both formats"): gettext(
            "{count} of 17 bytes: an empty payload in Bc0Lc0, one zero byte in dLc0",
            count=survey.ambiguous,
        )
        if survey.ambiguous
        else "",
    }
    told = {fact: text for fact, text in facts.items() if text}
    width = max(map(width_of, told), default=0)
    for fact, text in told.items():
        yield f"{padded(fact, width)}  {text}"
    yield ""
    yield from _describe_trouble(survey)


def _table(survey: Survey) -> Iterator[str]:
    labels: list[tuple[FrameFormat | None, str]] = [
        (item, f"{item.value:6}  {versions}") for item, versions in _RANGES.items()
    ]
    labels.append((None, gettext("not frames")))
    width = max(width_of(label) for _, label in labels)
    titles = (
        gettext("timeout set"),
        gettext("of these due"),
        gettext("delay queue"),
    )
    yield f"  {'':{width}}" + "".join(
        f"  {padded(title, 12, to_right=True)}" for title in titles
    )
    for item, label in labels:
        numbers = (survey.waiting[item], survey.due[item], survey.listed[item])
        yield f"  {padded(label, width)}" + "".join(
            f"  {number_text(number):>12}" for number in numbers
        )
    destination = number_text(survey.counts.destination)
    label = gettext("destination queue")
    yield f"  {padded(label, width)}  {destination:>12}"


def _due_since(survey: Survey) -> str:
    if survey.first_ms is None:
        return ""
    if survey.first_ms > survey.now_ms:
        return gettext(
            "nothing is due; the first will be at {time}", time=_time(survey.first_ms)
        )
    ago_s = (survey.now_ms - survey.first_ms) / 1000
    return gettext("{time}, {span} ago", time=_time(survey.first_ms), span=_span(ago_s))


def _describe_codec(survey: Survey) -> str:
    looked_at, names, votes = survey.guess()
    if not looked_at:
        return ""
    of = ngettext("{number} payload read", "{number} payloads read", looked_at)
    if not names:
        told = ", ".join(f"{name} {count}" for name, count in votes.most_common(4))
        return gettext(
            "several, or a custom one: {names}; {payloads}", names=told, payloads=of
        )
    first, *others = names
    if first == "ByteArrayCodec":
        return gettext(
            "unknown: plain, encrypted or compressed bytes, or a custom codec; {payloads}",
            payloads=of,
        )
    # ByteArrayCodec writes anything.
    others = [name for name in others if name != "ByteArrayCodec"]
    told = gettext("probably {name}", name=first)
    if first not in CODEC_NAMES:
        told = gettext("probably {name}, which django-delayq cannot read", name=first)
    if others:
        told = gettext("{codec}, or {others}", codec=told, others=", ".join(others[:3]))
    return f"{told}; {of}"


def _describe_trouble(survey: Survey) -> Iterator[str]:
    troubles = [
        *_describe_jams(survey),
        *_describe_leftovers(survey),
        *_describe_start_times(survey),
    ]
    yield from troubles or [gettext("Nothing is stuck.")]


def _describe_jams(survey: Survey) -> Iterator[str]:
    if not survey.is_mixed:
        for redisson in survey.jams:
            (reader,) = set(FrameFormat) - {redisson}
            yield gettext(
                "All frames have one format, which {reader} reads. {other} would get stuck at them, so it must not use this queue.",
                reader=_GENERATIONS[reader],
                other=_GENERATIONS[redisson],
            )
        overdue_ms = survey.now_ms - (survey.first_ms or survey.now_ms)
        if overdue_ms > 2 * JAVA_RETRY_MS:
            yield gettext(
                "NOT TRANSFERRED: {frames}. No Java process with an RDelayedQueue of this name and no django-delayq worker serves the queue, or they are slow.",
                frames=_due_frames(survey.due.total()),
            )
        return
    for redisson, jam in sorted(survey.jams.items(), key=lambda item: -item[1].rank):
        values = {
            "redisson": _GENERATIONS[redisson],
            "frame": _describe_jam(jam),
            "time": _time(jam.start_time_ms),
        }
        if not survey.is_stuck(jam):
            yield gettext(
                "WILL BE STUCK: {redisson} will stop at {frame}, due at {time}.",
                **values,
            )
            continue
        yield gettext("STUCK: {redisson} stops at {frame}, due since {time}.", **values)
        behind = _due_frames(survey.behind(jam))
        yield "  " + gettext("It never reaches the {frames} behind it.", frames=behind)
        if jam.delivered_again:
            told = gettext(
                "Each of its processes delivers the {frames} ahead of it again every {seconds} s.",
                frames=_due_frames(jam.delivered_again),
                seconds=JAVA_RETRY_MS // 1000,
            )
            yield f"  {told}"


def _describe_leftovers(survey: Survey) -> Iterator[str]:
    if survey.delivered:
        yield ngettext(
            "ALREADY DELIVERED: {number} frame, due and missing from the delay queue. A transfer that stopped halfway has delivered it, and will deliver it again.",
            "ALREADY DELIVERED: {number} frames, due and missing from the delay queue. A transfer that stopped halfway has delivered them, and will deliver them again.",
            len(survey.delivered),
        )
        told = gettext(
            "Frames that other clients store without the delay queue look the same."
        )
        yield f"  {told}"
    if alone := survey.alone.total():
        yield ngettext(
            "NEVER TRANSFERRED: {number} frame only in the delay queue, not in the timeout set.",
            "NEVER TRANSFERRED: {number} frames only in the delay queue, not in the timeout set.",
            alone,
        )


def _describe_start_times(survey: Survey) -> Iterator[str]:
    if survey.fractional:
        yield gettext(
            "START TIMES: {count} not in whole ms. When one of these is first, Redisson cannot read it, and waits for its next retry.",
            count=survey.fractional,
        )
    if survey.negative:
        yield gettext(
            "START TIMES: {count} below 0. Redisson never transfers these.",
            count=survey.negative,
        )


def _describe_jam(jam: Jam) -> str:
    template = (
        gettext("a {format} frame of {size} bytes, number {number} of the timeout set")
        if jam.format
        else gettext(
            "{size} bytes that are not a frame, number {number} of the timeout set"
        )
    )
    return template.format(
        format=jam.format.value if jam.format else "",
        size=number_text(jam.size),
        number=number_text(jam.rank + 1),
    )


def advise(survey: Survey, name: str) -> Iterator[str]:
    if survey.is_mixed:
        yield gettext(
            "To free the Java services, rewrite the frames that they cannot read:"
        )
        for item in survey.formats or FrameFormat:
            command = f"manage.py delayq_frames {quote(name)} --to {_VERSIONS[item]} --dry-run"
            condition = gettext("if they use {versions}", versions=_RANGES[item])
            yield f"  {command}    {condition}"
        yield gettext(
            "Without --dry-run the command rewrites them. Add --follow while services with both formats offer elements."
        )
        if survey.delivered:
            yield gettext(
                "With --drop-delivered, frames that were already delivered are not delivered again."
            )
        if survey.waiting[None]:
            yield gettext(
                "Members that are not frames are quarantined. The admin shows them."
            )
    else:
        yield from _advise_settings(survey, name)
    if survey.guess().names[:1] == ("ByteArrayCodec",):
        yield gettext(
            "For a custom codec, set CODEC to an object with name, encode and decode. See docs/settings.md."
        )


def _advise_settings(survey: Survey, name: str) -> Iterator[str]:
    if not survey.formats:
        yield gettext("No waiting frame reveals the format.")
        return
    configured = conf.get_settings().find(name)
    if configured is None:
        yield gettext("The queue is not in the settings. To serve it:")
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
            gettext(
                "it writes {written}, but {found} was found",
                written=configured.frame_format.value,
                found=found.value,
            )
        )
    if not is_codec_right:
        misfits.append(
            gettext(
                "its codec is {codec}, but the payloads look like {found}",
                codec=codec,
                found=names[0],
            )
        )
    if not misfits:
        yield gettext("The settings of this queue are correct.")
        return
    yield gettext(
        "The settings of this queue are wrong: {reasons}. These are correct:",
        reasons="; ".join(misfits),
    )
    if configured.is_shared:
        known = codec if is_codec_right else None
        yield setting(name, fitting_settings(survey, codec=known))
        yield gettext("Replace the version by that of your Java services.")
    else:
        yield setting(name, {"FRAME": found.value})


def setting(name: str, options: dict[str, str]) -> str:
    # Not the whole dict: somebody types it below the settings that are there.
    names, values = (json.dumps(each, ensure_ascii=False) for each in (name, options))
    return f'  DELAYQ["QUEUES"][{names}] = {values}'


def describe_plan(survey: Survey, target: FrameFormat, is_drop: bool) -> Iterator[str]:
    dropped = (
        Counter(name.format for name in survey.delivered) if is_drop else Counter()
    )
    rewritten = survey.foreign(target) - survey.waiting[None]
    rewritten -= dropped.total() - dropped[target]
    alone = survey.alone.total() - survey.alone[target] - survey.alone[None]
    yield gettext(
        "Dry run, for {redisson} ({format}). Nothing was changed.",
        redisson=_GENERATIONS[target],
        format=target.value,
    )
    if is_drop:
        yield _row(dropped.total(), gettext("already delivered, would be removed"))
    elif survey.delivered:
        yield _row(
            len(survey.delivered),
            gettext("already delivered, would be kept and delivered again"),
        )
    yield _row(rewritten, gettext("would be rewritten in the timeout set"))
    if alone:
        yield _row(
            alone,
            gettext("would be rewritten only in the delay queue, never transferred"),
        )
    bad = survey.waiting[None] + survey.alone[None]
    yield _row(bad, gettext("not frames, would be quarantined"))
    yield _row(survey.fitting(target), gettext("already in this format"))


def describe_tally(tally: Tally, target: FrameFormat) -> Iterator[str]:
    yield ngettext(
        "For {redisson} ({format}), in {number} step:",
        "For {redisson} ({format}), in {number} steps:",
        tally.steps,
        redisson=_GENERATIONS[target],
        format=target.value,
    )
    yield _row(tally.rewritten, gettext("rewritten"))
    if tally.alone:
        yield _row(
            tally.alone,
            gettext("of these only in the delay queue, never transferred"),
        )
    yield _row(tally.quarantined, gettext("quarantined"))
    if tally.dropped:
        yield _row(tally.dropped, gettext("removed, already delivered"))


def describe_rest(survey: Survey, target: FrameFormat) -> Iterator[str]:
    left = survey.foreign(target)
    yield _row(survey.fitting(target), gettext("in this format now"))
    yield _row(left, gettext("still in another format"))
    if left:
        yield gettext(
            "A service stores them while this command runs. Run it again, or use --follow until all services use one format."
        )
    else:
        yield gettext(
            "Nothing stops {redisson} any more. Its transfers have been notified.",
            redisson=_GENERATIONS[target],
        )


def _row(number: int, text: str) -> str:
    return f"  {number_text(number):>12}  {text}"


def _due_frames(number: int) -> str:
    return ngettext("{number} due frame", "{number} due frames", number)


def _time(epoch_ms: float) -> str:
    try:
        moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms:g} ms"
    return moment_text(moment)


def _span(seconds: float) -> str:
    for template, size in (
        (gettext("{count} days"), 86_400),
        (gettext("{count} h"), 3_600),
        (gettext("{count} min"), 60),
    ):
        if seconds >= 2 * size:
            return template.format(count=number_text(int(seconds // size)))
    return gettext("{count} s", count=formats.number_format(seconds, 1))

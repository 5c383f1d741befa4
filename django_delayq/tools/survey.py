"""Finds out what lies in a queue that two generations of Redisson may share: its frames, and which stop whom, and where.

It reads in stretches and changes nothing. The queue lives on meanwhile, so numbers can be off by what came and went.
``reframe`` mends the queue, and the command says what was found.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from redis.client import Redis

from django_delayq.codecs import CODEC_NAMES, default_codec
from django_delayq.codecs.guess import probable_codecs
from django_delayq.core import frame_heads, queue_reads
from django_delayq.core.frame_heads import UNLISTED, FrameHead, Kind
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.queue_reads import Counts
from django_delayq.core.states import State
from django_delayq.exceptions import EncodeError
from django_delayq.redaction import brief
from django_delayq.tools import frame_calls
from django_delayq.tools.frame_calls import FrameName
from django_delayq.transport.connections import nodes_of
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat, format_of, is_read_by
from django_delayq.wire.queue_keys import QueueKeys
from django_delayq.wire.script_calls import START
from django_delayq.wire.signatures import looks_like_job
from django_delayq.wording import gettext

#: Takes the name of the work, how much of it is done, and the total.
Progress = Callable[[str, int, int], None]

#: Frames that one transfer of Redisson moves. RedissonDelayedQueue.java, pushTaskAsync.
JAVA_BATCH = 100
#: How soon Redisson repeats a failed transfer. QueueTransferTask.java.
JAVA_RETRY_MS = 5_000
#: Due frames that a survey checks for an earlier delivery. Redisson delivers from the head only, one batch; frames that
#: were offered meanwhile and are due earlier lie before them.
CANDIDATES = 10_000
#: Payloads whose codec is guessed: so many of a stretch, and in all.
SAMPLES_OF_STRETCH, SAMPLES = 5, 100
#: Frames of the delay queue that the look-ups of one call may scan: some 3 ms.
SCANNED = 100_000

#: Field of the control hash: when the delay queue was emptied (epoch ms). Until it is filled again, a frame missing
#: from it need not have been delivered.
EMPTIED = "emptied"
#: Where the payload begins.
_HEADER_SIZE = {FrameFormat.DLC0: 16, FrameFormat.BC0LC0: 17}
#: The newest version with each default codec, of those among the golden files.
_EXAMPLES = {
    FrameFormat.DLC0: ("3.21.0", "3.16.6", "3.12.5"),
    FrameFormat.BC0LC0: ("4.7.0",),
}


def ignore_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


def lookups_of(listed: int) -> int:
    """Return how many frames one call may look for in a delay queue of some length."""
    return min(max(SCANNED // (listed + 1), 1), JAVA_BATCH)


@dataclass(frozen=True, slots=True)
class Jam:
    """The first frame that a generation of Redisson cannot unpack."""

    #: Frames that are due before it.
    rank: int
    #: Epoch ms.
    start_time_ms: float
    #: None: no frame at all.
    format: FrameFormat | None
    size: int

    @property
    def delivered_again(self) -> int:
        """How many elements each retry delivers again: the transfer stops in the middle of a batch."""
        return self.rank % JAVA_BATCH


class Guess(NamedTuple):
    """Which codec probably wrote the sampled payloads."""

    #: Sampled payloads; none is a job of ours.
    looked_at: int
    #: Names that fit all of them, the likeliest first.
    names: tuple[str, ...]
    #: How many payloads each name is the likeliest for.
    votes: Counter[str]


@brief
@dataclass(slots=True)
class Survey:
    """A queue in numbers, by the format of its frames; None stands for members that are not frames."""

    counts: Counts
    #: In the timeout set; due, of these; in the delay queue; only in the delay queue.
    waiting: Counter[FrameFormat | None] = field(default_factory=Counter)
    due: Counter[FrameFormat | None] = field(default_factory=Counter)
    listed: Counter[FrameFormat | None] = field(default_factory=Counter)
    alone: Counter[FrameFormat | None] = field(default_factory=Counter)
    #: Frames of ours that were left out of the delay queue.
    unlisted: int = 0
    #: Jobs of ours, by their envelopes.
    jobs: int = 0
    #: Seventeen bytes that both formats can read: an empty payload, or one zero byte.
    ambiguous: int = 0
    #: Start times that are not whole: Redisson cannot read them at the head.
    fractional: int = 0
    #: Start times below 0: Redisson never transfers them.
    negative: int = 0
    #: When the first frame is due, of those that Redisson transfers; epoch ms.
    first_ms: float | None = None
    #: Where a Redisson stops, by the format that it reads.
    jams: dict[FrameFormat, Jam] = field(default_factory=dict)
    #: Due, and missing from the delay queue: a transfer delivered them and then stopped.
    delivered: list[FrameName] = field(default_factory=list)
    #: The command emptied the delay queue, so nobody knows what was delivered.
    is_emptied: bool = False
    samples: list[tuple[bytes, int]] = field(default_factory=list)

    @property
    def now_ms(self) -> int:
        return self.counts.now_ms

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.listed or self.counts.destination)

    @property
    def is_mixed(self) -> bool:
        """Whether no generation of Redisson can read all of it."""
        return len(self.formats) > 1 or self.waiting[None] > 0

    @property
    def formats(self) -> list[FrameFormat]:
        """The formats that were found, the more frequent first."""
        found = self.waiting + self.alone
        return sorted(
            (item for item in FrameFormat if found[item]),
            key=lambda item: -found[item],
        )

    def fitting(self, target: FrameFormat) -> int:
        """Count the frames in the timeout set that are of one format, or can be read in it."""
        is_old = target is FrameFormat.DLC0
        return self.waiting[target] + (self.ambiguous if is_old else 0)

    def foreign(self, target: FrameFormat) -> int:
        """Count the frames in the timeout set that stop a Redisson of one format."""
        return self.waiting.total() - self.fitting(target)

    def is_stuck(self, jam: Jam) -> bool:
        """Return whether a Redisson stops there now already."""
        return jam.start_time_ms <= self.now_ms

    def behind(self, jam: Jam) -> int:
        """Count the due frames behind one that stops a Redisson."""
        return self.due.total() - jam.rank - 1

    def guess(self) -> Guess:
        """Guess the codec of the payloads that others have put into this queue."""
        guesses = [probable_codecs(head, size=size) for head, size in self.samples]
        votes = Counter(names[0] for names in guesses)
        common = set(guesses[0]).intersection(*guesses) if guesses else set()
        names = sorted(common, key=lambda name: sum(g.index(name) for g in guesses))
        # A codec that fits all payloads and is the likeliest for none is one that takes anything.
        is_likely = bool(names) and names[0] in votes
        return Guess(len(guesses), tuple(names) if is_likely else (), votes)


def take_survey(
    client: Redis, keys: DeliveryKeys, *, progress: Progress = ignore_progress
) -> Survey:
    """Look at everything that waits in a queue, in many short calls that change nothing."""
    survey = Survey(run(client, queue_reads.counts(keys)))
    candidates: dict[tuple[float, bytes], FrameName] = {}
    frames = survey.counts.waiting - survey.counts.returned
    for stretch in stretches(client, keys, "zset", frames, progress):
        for frame in stretch:
            _add_waiting(survey, frame, candidates)
        _add_samples(survey, stretch)
    for stretch in stretches(client, keys, "tail", survey.counts.delay_queue, progress):
        for frame in stretch:
            format = format_of(frame.head, frame.size)
            survey.listed[format] += 1
            if frame.score is None:
                survey.alone[format] += 1
            else:
                candidates.pop((frame.score, frame.head), None)
    # An empty list shows nothing, because nobody may write one; neither does a list that was emptied.
    survey.is_emptied = client.hexists(keys.control, EMPTIED)
    if survey.listed and not survey.is_emptied:
        survey.delivered = _confirm(
            client, keys, survey, [*candidates.values()], progress
        )
    for row in run(client, queue_reads.page(keys, State.DUE, count=SAMPLES)).rows:
        if not row.token:
            survey.samples.append((row.payload, row.payload_size))
    return survey


def stretches(
    client: Redis, keys: DeliveryKeys, kind: Kind, total: int, progress: Progress
) -> Iterator[list[FrameHead]]:
    """Walk over the frames of a queue, about ``total`` of them, in bounded calls that change nothing."""
    cursor, done = START, 0
    what = (
        gettext("reading the timeout set")
        if kind == "zset"
        else gettext("reading the delay queue")
    )
    while not cursor.is_at_end:
        _, cursor, stretch = run(client, frame_heads.survey(keys, kind, cursor))
        yield stretch
        done += len(stretch)
        progress(what, done, max(total, done))


def name_of(frame: FrameHead) -> FrameName | None:
    """Return the name of a frame; None if it is not a frame or its start time is not whole ms, so that no script finds it."""
    format = format_of(frame.head, frame.size)
    if (
        format is None
        or frame.score is None
        or not frame.score // 1 == frame.score >= 0
    ):
        return None
    begin = _HEADER_SIZE[format] - 16
    return FrameName(int(frame.score), format, frame.head[begin : begin + 8])


def _add_waiting(
    survey: Survey,
    frame: FrameHead,
    candidates: dict[tuple[float, bytes], FrameName],
) -> None:
    score, size, head = frame
    assert score is not None
    format = format_of(head, size)
    is_due = score <= survey.now_ms
    # Ranks count as Redisson does, which looks from score 0 on.
    rank = survey.waiting.total() - survey.negative
    survey.waiting[format] += 1
    survey.due[format] += is_due and score >= 0
    survey.negative += score < 0
    survey.fractional += score != score // 1
    survey.ambiguous += format is not format_of(head, size, prefer=FrameFormat.DLC0)
    if score >= 0:
        if survey.first_ms is None:
            survey.first_ms = score
        for redisson in FrameFormat:
            if redisson not in survey.jams and not is_read_by(redisson, head, size):
                survey.jams[redisson] = Jam(rank, score, format, size)
    if format is None:
        return
    begin = _HEADER_SIZE[format] - 16
    random_id = head[begin : begin + 8]
    survey.jobs += looks_like_job(head[begin + 16 :])
    if random_id.startswith(UNLISTED):
        survey.unlisted += 1
    elif is_due and len(candidates) < CANDIDATES and (name := name_of(frame)):
        candidates[score, head] = name


def _add_samples(survey: Survey, stretch: list[FrameHead]) -> None:
    taken = 0
    for frame in stretch:
        format = format_of(frame.head, frame.size)
        if format is None or taken == SAMPLES_OF_STRETCH:
            continue
        payload = frame.head[_HEADER_SIZE[format] :]
        if not looks_like_job(payload) and len(survey.samples) < SAMPLES:
            survey.samples.append((payload, frame.size - _HEADER_SIZE[format]))
            taken += 1


def _confirm(
    client: Redis,
    keys: DeliveryKeys,
    survey: Survey,
    names: list[FrameName],
    progress: Progress,
) -> list[FrameName]:
    # Asked of the server: a frame that left the queue between the two walks is missing as well.
    confirmed: list[FrameName] = []
    done = 0
    for part in parts_of(names, lookups_of(survey.listed.total())):
        flags = run(client, frame_calls.drop_delivered(keys, part, is_drop=False))
        confirmed += (name for name, flag in zip(part, flags, strict=True) if flag)
        done += len(part)
        progress(
            gettext("looking for frames that were already delivered"), done, len(names)
        )
    return confirmed


def parts_of(names: Sequence[FrameName], size: int) -> Iterator[Sequence[FrameName]]:
    """Yield names in parts that one call can look for."""
    for first in range(0, len(names), size):
        yield names[first : first + size]


def fitting_settings(survey: Survey, *, codec: str | None = None) -> dict[str, str]:
    """Return the options of a queue whose frames are of one format, as far as its contents show them.

    The version stands for its generation. ``codec`` is the known one; without it, the likeliest counts.
    """
    formats = survey.formats
    if len(formats) != 1:
        return {}
    codec = codec or next(
        (name for name in survey.guess().names if name in CODEC_NAMES), None
    )
    versions = _EXAMPLES[formats[0]]
    for version in versions:
        if codec in (None, default_codec(version)):
            return {"REDISSON": version}
    assert codec is not None
    return {"REDISSON": versions[0], "CODEC": codec}


def similar_queues(
    client: Redis, name: str, *, progress: Progress = ignore_progress
) -> list[str]:
    """Return the names of queues that contain a name, as a NameMapper would have made them; a walk over all keys."""
    keys = QueueKeys.of(name)
    prefix = keys.timeout_set.removesuffix(keys.tag)
    escaped = "".join(f"\\{char}" if char in "*?[]\\^" else char for char in name)
    nodes = nodes_of(client)
    found, total, done = set[str](), sum(node.dbsize() for node in nodes), 0
    for node in nodes:
        cursor = None
        while cursor != 0:
            cursor, part = node.scan(
                cursor or 0, match=f"{prefix}*{escaped}*", count=1000
            )
            found |= {_text(key).removeprefix(prefix) for key in part}
            done += 1000
            progress(gettext("looking for similar names"), min(done, total), total)
    return sorted(map(_untagged, found))


def _text(key: bytes | str) -> str:
    return key if isinstance(key, str) else key.decode(errors="replace")


def _untagged(tag: str) -> str:
    bare = tag[1:-1]
    try:
        return bare if QueueKeys.of(bare).tag == tag else tag
    except EncodeError:
        return tag

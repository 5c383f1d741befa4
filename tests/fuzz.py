"""Feed a codec with spoilt payloads for as long as one likes: nothing but DecodeError may come.

    python -m tests.fuzz --codec Kryo5Codec --runs 1000000

Seeds are the golden payloads. Each run changes one, decodes it, and checks that it took no more
than a moment and no more memory than a payload of its size may. What was read is written again,
which may fail with an EncodeError only, and what was written must read as the same.
"""

import argparse
import random
import resource
import sys
import time
from collections.abc import Iterator

from django_delayq.codecs import CODEC_NAMES, Codec
from django_delayq.exceptions import DecodeError, EncodeError
from tests.codecs.vectors import VERSIONS, codec_of, load, payload_of

#: One payload that takes longer than this is a finding.
SLOW_S = 2.0
#: What the process may grow by, over all runs.
GROWTH_MB = 512
#: Codecs whose every refusal says at which byte.
WITH_OFFSETS = ("Kryo5Codec", "MarshallingCodec")
#: Numbers that are the edge of something.
EDGES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)


def seeds(codec: str, longest: int = 4096) -> list[bytes]:
    """Return the golden payloads of a codec that are not too long to be changed often."""
    found = {
        payload
        for version in VERSIONS
        for (name, _), row in load(version).items()
        if name.partition("(")[0] == codec
        and (payload := payload_of(row)) is not None
        and len(payload) <= longest
    }
    return sorted(found) or [b"", b"\x00", b"1", b'{"a": 1}']


def spoilt(seed: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """Return a payload with a few things wrong."""
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(8):
            case 0:
                del data[at : at + chance.choice((1, 1, 2, 8))]
            case 1:
                data[at:at] = bytes(
                    chance.choice(EDGES) for _ in range(chance.choice((1, 4)))
                )
            case 2 if data:
                data[at - 1] ^= 1 << chance.randrange(8)
            case 3 if data:
                data[at - 1] = chance.choice(EDGES)
            case 4 if data:
                data[at - 1] = chance.randrange(256)
            case 5:
                other = chance.choice(others)
                start = chance.randrange(len(other) + 1)
                data[at:at] = other[start : start + chance.choice((4, 16, 64))]
            case 6:
                data[at:at] = data[at : at + 16] * chance.choice((1, 2, 20))
            case 7:
                del data[at:]
    return bytes(data)


def check(codec: Codec, payload: bytes) -> bool:
    """Decode a payload and encode what it was; say whether it could be read."""
    # Of this process, and more than once: a busy machine is no finding.
    for _ in range(3):
        started = time.process_time()
        readable = _check_once(codec, payload)
        taken = time.process_time() - started
        if taken < SLOW_S:
            return readable
    raise AssertionError(f"took {taken:.1f} s")


def _check_once(codec: Codec, payload: bytes) -> bool:
    try:
        value = codec.decode(payload)
    except DecodeError as error:
        readable, refusal = False, error
    else:
        readable, refusal = True, None
        try:
            written = codec.encode(value)
        except EncodeError:
            pass
        else:
            # Once may change it: an enum that is no final class loses its class at top level.
            again = codec.encode(codec.decode(written))
            assert codec.encode(codec.decode(again)) == again, (
                "written, read, not the same"
            )
    if refusal is not None:
        assert refusal.data == payload, "the error keeps another payload"
        assert refusal.offset is not None or codec.name not in WITH_OFFSETS
        assert refusal.offset is None or 0 <= refusal.offset <= len(payload), (
            refusal.offset
        )
    return readable


def payloads(codec: str, runs: int, seed: int) -> Iterator[bytes]:
    """Return so many spoilt payloads, the same for the same seed."""
    chance, pool = random.Random(seed), seeds(codec)
    for _ in range(runs):
        yield spoilt(chance.choice(pool), pool, chance)


def main(arguments: list[str] | None = None) -> int:
    """Run until the runs are over or something is found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--codec", required=True, choices=CODEC_NAMES)
    parser.add_argument(
        "--redisson", help="version of the dialect; the newest if not given"
    )
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    codec = codec_of(options.codec, options.redisson)
    before, started, readable = _peak_mb(), time.perf_counter(), 0
    for number, payload in enumerate(
        payloads(options.codec, options.runs, options.seed)
    ):
        try:
            readable += check(codec, payload)
        except BaseException:
            print(f"run {number}, payload {payload.hex()}", file=sys.stderr)
            raise
        if number % 1000 == 0:
            grown = _peak_mb() - before
            assert grown < GROWTH_MB, f"run {number}: {grown} MB more than at the start"
    taken = time.perf_counter() - started
    print(
        f"{options.codec}: {options.runs} payloads in {taken:.0f} s, {readable} of them readable,"
        f" {_peak_mb() - before} MB more at the peak"
    )
    return 0


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())

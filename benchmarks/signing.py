"""``python -m benchmarks.signing``: what does it cost to sign a job and to check it, beside HMAC-SHA256; and to encrypt it?

Each figure is the best of many short runs, taken in turns: what is measured takes no longer than the machine is quiet.
"""

import argparse
import hmac
import timeit
from collections.abc import Callable

from benchmarks import bench
from django_delayq.jobs.envelope import IS_ENCRYPTED, Envelope, encode, open_payload
from django_delayq.wire.signatures import Keyring

#: Calls in one short run.
CALLS = 500
TOKEN = "A" * 22
QUEUE = "orders"
#: Characters of the arguments.
SIZES = (1, 120, 1_000)
#: Characters of the argument, and what is measured.
Name = tuple[int, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="short runs of each")
    options = parser.parse_args()
    keyring = Keyring(["the secret of a benchmark"])
    key, token = b"the key of a benchmark, 32 bytes", TOKEN.encode()
    signer = keyring.signer
    payloads: list[tuple[int, int]] = []
    calls: dict[Name, Callable[[], object]] = {}
    sizes: list[tuple[int, int]] = []
    for size in SIZES:
        call = Envelope("shop.tasks.cancel_unpaid", ["x" * size])
        payload = encode(call, TOKEN, QUEUE, keyring)
        secret = Envelope(call.task, call.args, flags=IS_ENCRYPTED)
        encrypted = encode(secret, TOKEN, QUEUE, keyring)
        sizes.append((len(payload), len(encrypted)))
        calls[size, "write"] = _write(call, keyring)
        calls[size, "write encrypted"] = _write(secret, keyring)
        calls[size, "read"] = _read(payload, keyring)
        calls[size, "read encrypted"] = _read(encrypted, keyring)
        body = payload[payload.index(b'"body":') + 8 : -2].replace(b'\\"', b'"')
        signature = signer.sign(QUEUE, TOKEN, body)
        keyring.check(signature, QUEUE, TOKEN, body)
        payloads.append((len(payload), len(payload) - len(body)))
        calls[size, "sign"] = _sign(keyring, body)
        calls[size, "check"] = _check(keyring, signature, body)
        calls[size, "hmac"] = _hmac(key, token + body)
    best = _best(calls, options.rounds)
    rows = [
        (
            f"{size:,}",
            f"{added}",
            f"{best[n, 'sign']:.2f}",
            f"{best[n, 'check']:.2f}",
            f"{best[n, 'hmac']:.2f}",
            f"{best[n, 'sign'] / best[n, 'hmac']:.2f}",
        )
        for (size, added), n in zip(payloads, SIZES, strict=True)
    ]
    bench.table(
        (
            "bytes of a payload",
            "of them around the call",
            "sign, µs",
            "check, µs",
            "HMAC-SHA256, µs",
            "sign / HMAC",
        ),
        rows,
    )
    print()
    bench.table(
        (
            "bytes of a payload",
            "encrypted",
            "write, µs",
            "encrypted",
            "times",
            "read, µs",
            "encrypted",
            "times",
        ),
        [
            (
                f"{size:,}",
                f"{encrypted:,}",
                *_beside(best[n, "write"], best[n, "write encrypted"]),
                *_beside(best[n, "read"], best[n, "read encrypted"]),
            )
            for (size, encrypted), n in zip(sizes, SIZES, strict=True)
        ],
    )


def _beside(plain: float, encrypted: float) -> tuple[str, str, str]:
    return f"{plain:.2f}", f"{encrypted:.2f}", f"{encrypted / plain:.1f}"


def _write(call: Envelope, keyring: Keyring) -> Callable[[], object]:
    return lambda: encode(call, TOKEN, QUEUE, keyring)


def _read(payload: bytes, keyring: Keyring) -> Callable[[], object]:
    return lambda: open_payload(payload, QUEUE, keyring)


def _sign(keyring: Keyring, body: bytes) -> Callable[[], object]:
    return lambda: keyring.signer.sign(QUEUE, TOKEN, body)


def _check(keyring: Keyring, signature: str, body: bytes) -> Callable[[], object]:
    return lambda: keyring.check(signature, QUEUE, TOKEN, body)


def _hmac(key: bytes, message: bytes) -> Callable[[], object]:
    return lambda: hmac.digest(key, message, "sha256").hex()


def _best(calls: dict[Name, Callable[[], object]], rounds: int) -> dict[Name, float]:
    """Return the µs a call, each less what an empty one takes."""
    timers = {name: timeit.Timer(call) for name, call in calls.items()}
    empty = timeit.Timer(lambda: None)
    taken: dict[Name, list[float]] = {name: [] for name in timers}
    nothing = []
    for _ in range(rounds):
        nothing.append(empty.timeit(CALLS))
        for name, timer in timers.items():
            taken[name].append(timer.timeit(CALLS))
    return {
        name: (min(times) - min(nothing)) / CALLS * 1e6 for name, times in taken.items()
    }


if __name__ == "__main__":
    main()

"""What ended, on its way to the server: calls that keep to their bytes."""

import os

import pytest

from django_delayq.clock import monotonic_ms
from django_delayq.conf import get_settings
from django_delayq.core import claim as claim_calls
from django_delayq.exceptions import NotSigned
from django_delayq.transport.line import Line
from django_delayq.transport.run import run
from django_delayq.worker.attempt import Attempt
from django_delayq.worker.settle import Settlement


@pytest.fixture
def large(client, configure, queue_name):
    """Six claimed payloads, of which three are more than one call is to have."""
    configure()
    queue = get_settings().queue(queue_name)
    client.rpush(queue_name, *[b"%d" % n + b"x" * 400_000 for n in range(6)])
    attempts = []
    for _ in range(6):
        (leased,) = run(
            client,
            claim_calls.claim(
                queue.keys,
                owner=b"12345678",
                request=os.urandom(8),
                limit=1,
                lease_ms=60_000,
            ),
        ).jobs
        attempts.append(Attempt(queue, leased, monotonic_ms() + 60_000, 0.0))
    return attempts


@pytest.fixture
def settle(client):
    """Settle what has ended; return in how many calls."""

    def settle(attempts):
        sent = []

        class CountingLine(Line):
            def ask(self, call):
                sent.append(call)
                return super().ask(call)

        line = CountingLine(client)
        ended = Settlement(line)
        ended.ended.extend(attempts)
        settled, failure = ended.settle()
        assert (len(settled), failure) == (len(attempts), None)
        line.close()
        return len(sent)

    return settle


def test_large_payloads_are_given_back_in_several_calls(
    client, queue_name, large, settle
):
    """Each call reads what it puts back into the list: thousands of them at once would hold the server."""
    for attempt in large:
        attempt.give_back()

    assert settle(large) == 2

    order = [payload[:1] for payload in client.lrange(queue_name, 0, -1)]
    assert order == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_large_payloads_are_held_in_several_calls(client, large, settle):
    """Each call reads with which key they are signed by now."""
    for attempt in large:
        attempt.take(NotSigned("its key is not here", missing="format 7"))

    assert settle(large) == 2

    assert client.zcard(large[0].queue.keys.held) == 6

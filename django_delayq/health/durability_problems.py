"""Durability that queues ask for with DURABLE and the server cannot give, tried by waiting for it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from redis.client import Redis
from redis.exceptions import ResponseError

from django_delayq.core.durability import Durable, Told, refusal
from django_delayq.health.problem import Level, ServerProblem
from django_delayq.transport.run import run

#: How long the check waits for replicas.
WAIT_S = 0.5


def find_not_durable(
    client: Redis, durable: Mapping[str, Durable]
) -> Iterator[ServerProblem]:
    """Report what queues ask for with DURABLE and the server cannot give, found out by waiting for it."""
    told: dict[Durable, Told | Exception] = {}
    for queue, wanted in durable.items():
        if wanted not in told:
            told[wanted] = _wait(client, wanted)
        reply = told[wanted]
        name = f"Queue {queue!r} asks for {wanted} (DURABLE)"
        if isinstance(reply, Exception):
            yield ServerProblem(
                Level.ERROR,
                f"{name}, which this server cannot give: each call that stores a job raises NotDurable.",
                f"WAIT fails: {refusal(reply)}.",
            )
        elif not reply.is_enough(wanted):
            yield ServerProblem(
                Level.WARNING,
                f"{name}, and {reply.replicas} replicas answer: each call that stores a job waits"
                f" {wanted.timeout_s:g} s and raises NotDurable.",
                "Look at the replicas (INFO replication), or lower DURABLE.",
            )


def _wait(client: Redis, wanted: Durable) -> Told | Exception:
    # This connection may have written nothing, so the replicas have to be there, and no more.
    command = replace(wanted, timeout=WAIT_S).command(None)
    try:
        return run(client, command)
    except ResponseError as error:
        return error

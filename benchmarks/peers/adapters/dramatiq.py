"""Dramatiq on its Redis broker: ``send_with_options(delay=)``, no result backend."""

import math
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.adapters.adapter import (
    IS_TUNED,
    QUEUES,
    URL,
    About,
    Adapter,
    run,
    tool,
    versions,
)

TUNED = {"heartbeat_timeout": 5_000, "maintenance_chance": 100_000}
dramatiq.set_broker(RedisBroker(url=URL, **(TUNED if IS_TUNED else {})))


def job(payload):
    run(payload)


actors = [
    dramatiq.actor(job, actor_name=f"job{i}", queue_name=f"q{i}") for i in range(QUEUES)
]


class DramatiqAdapter(Adapter):
    about = About(
        documentation=(
            "https://dramatiq.io/guide.html#scheduling-messages",
            "https://dramatiq.io/advanced.html#redis-broker",
        ),
        layouts={
            "1": "dramatiq -p 1 -t 8 (default threads)",
            "2": "dramatiq -p 2 -t 8 (the default on two cores)",
        },
        crash={
            "default": "heartbeat_timeout 60 s, maintenance_chance 0.1 % a command (defaults)",
            "tuned": "heartbeat_timeout 5 s, maintenance_chance 10 % a command",
        },
        redelivered_s={"default": 60, "tuned": 10},
        redelivery="heartbeat_timeout 60 s, then a chance of 0.1 % a command",
        notes=(
            "no bulk call for delayed messages (a group sends one by one); a worker holds at most 1,000 delayed messages "
            "a thread in memory and does not look past them"
        ),
    )

    def version(self):
        return versions("dramatiq", "redis", "hiredis")

    def enqueue(self, due, queue, payload):
        if due is None:
            actors[queue].send(payload)
        else:
            delay_ms = max(0, math.ceil((due - time.time()) * 1000))
            actors[queue].send_with_options(args=(payload,), delay=delay_ms)

    def workers(self, layout, queues):
        names = [f"q{i}" for i in range(queues)]
        return [[tool("dramatiq"), __name__, "-p", layout, "-t", "8", "-Q", *names]]


ADAPTER = DramatiqAdapter()

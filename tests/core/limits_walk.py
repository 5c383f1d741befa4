"""``python -m tests.core.limits_walk STEPS``: random steps on a queue whose jobs have limits; a million by default.

`test_model` checks more after each step, and takes fewer. Here no more jobs of a key may ever run than its limit
admits, each slot is a lease's, and at the end each job has ended once.
"""

import random
import sys
import time
from collections import Counter

from django_delayq.core import worker_code
from django_delayq.core.claim import Leased
from django_delayq.core.rates import numbers_of
from django_delayq.features.limits import calls as limit_calls
from tests.core.rig import LEASE, Rig, name_in
from tests.servers import Server

KEYS = 20
OWNERS = [b"owner--%d" % n for n in range(3)]


class Walk:
    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig, self.random = rig, random.Random(seed)
        self.count = self.ended = 0
        self.keys: dict[str, str] = {}
        #: By name: its lease, whose it is, and until when it lasts.
        self.leases: dict[str, tuple[Leased, bytes, float]] = {}
        self.most = 1
        self.declare()

    def declare(self) -> None:
        declared = [("stripe", numbers_of(concurrency=self.most))]
        self.rig.run(
            worker_code.declare(self.rig.keys, declared, owner=b"process1", loaded_ms=0)
        )

    def step(self) -> None:
        way = self.random.choices(
            ["schedule", "claim", "settle", "time", "kill", "change", "look", "cancel"],
            [20, 30, 40, 6, 1, 0.2, 1, 2],
        )[0]
        getattr(self, way)()

    def schedule(self) -> None:
        if len(self.keys) > 300:
            return
        key = f"k{self.random.randrange(KEYS)}"
        names = [f"j{self.count + n}" for n in range(self.random.randint(1, 4))]
        self.count += len(names)
        wait = self.random.choice([0, 0, 5, 60])
        self.rig.schedule(dict.fromkeys(names, wait), limit=f"stripe\0{key}")
        self.keys |= dict.fromkeys(names, key)

    def claim(self) -> None:
        owner = self.random.choice(OWNERS)
        claimed = self.rig.claim(self.random.randint(1, 12), owner=owner)
        now = self.rig.now
        for job in claimed.jobs:
            name = name_in(job.payload)
            assert name not in self.leases or self.leases[name][2] <= now, name
            self.leases[name] = job, owner, now + LEASE
        running = Counter(
            self.keys[name] for name, lease in self.leases.items() if lease[2] > now
        )
        for job in claimed.jobs:
            assert running[self.keys[name_in(job.payload)]] <= self.most

    def settle(self) -> None:
        if not self.leases:
            return
        name = self.random.choice(list(self.leases))
        job, _, _ = self.leases.pop(name)
        way = self.random.choice(["acknowledge"] * 6 + ["retry", "snooze", "give_back"])
        options = {} if way in ("acknowledge", "give_back") else {"wait": 5}
        assert getattr(self.rig, way)(job, **options) == []
        if way == "acknowledge":
            del self.keys[name]
            self.ended += 1

    def time(self) -> None:
        self.rig.now += self.random.choice([0.5, 1, 7, 60])

    def kill(self) -> None:
        owner = self.random.choice(OWNERS)
        self.rig.recover(owner)
        for name, (job, its, _) in list(self.leases.items()):
            if its == owner:
                self.leases[name] = job, its, 0.0

    def change(self) -> None:
        self.most = self.random.randint(1, 3)
        self.declare()
        self.look()
        # What runs already may be more than the new limit.
        for job, _, _ in self.leases.values():
            self.rig.acknowledge(job)
        for name in self.leases:
            del self.keys[name]
            self.ended += 1
        self.leases.clear()

    def look(self) -> None:
        self.rig.run(limit_calls.loosen(self.rig.keys))

    def cancel(self) -> None:
        most = min(len(self.keys), self.random.choice([1, 1, 10]))
        names = self.random.sample(list(self.keys), most)
        for name, outcome in self.rig.cancel_many(names).items():
            if outcome == "cancelled":
                self.leases.pop(name, None)
                del self.keys[name]
                self.ended += 1

    def check(self) -> None:
        client, keys = self.rig.client, self.rig.keys
        slots = {m.rpartition(b"\0")[2] for m in client.zrange(keys.slots, 0, -1)}
        assert slots == set(client.zrange(keys.leases, 0, -1))
        assert len(self.leases) == len(slots)

    def finish(self) -> None:
        """End all jobs, without a look at what is held."""
        while self.keys:
            before = len(self.keys)
            for name, (job, _, _) in list(self.leases.items()):
                assert self.rig.acknowledge(job) == []
                del self.keys[name], self.leases[name]
                self.ended += 1
            self.rig.now += 100
            self.claim()
            assert self.leases or len(self.keys) < before, "jobs are held for ever"
        assert self.ended == self.count


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    server = Server("valkey").start()
    try:
        seed = random.randrange(10**6)
        walk, began = Walk(Rig(server.client(), "walk"), seed), time.monotonic()
        print(f"seed {seed}")
        for number in range(steps):
            walk.step()
            if number % 500 == 0:
                walk.check()
        walk.finish()
        print(
            f"{steps:,} steps, {walk.count:,} jobs, {time.monotonic() - began:.0f} s: none beside too many, none lost"
        )
    finally:
        server.stop()


if __name__ == "__main__":
    main()

"""The kinds of jobs that a soak schedules: how many of each, and what has to become of one."""

import os
from typing import NamedTuple


class Kind(NamedTuple):
    """Jobs of one task."""

    #: Name of the function in `benchmarks.soak.tasks`.
    task: str
    #: How many of a hundred or so jobs.
    share: float
    #: How often one is started, if nothing fails.
    starts: int = 1
    #: It ends as a dead letter.
    is_dead: bool = False
    #: Its start time is known to the producer, and neither a limit nor the task puts it off: so it is late by the
    #: fault of workers alone.
    is_timed: bool = True


#: The place of a kind is its number in the ledger.
KINDS = (
    Kind("do_nothing", 22),
    Kind("send_mail", 20),
    Kind("call_webhook", 10),
    Kind("fetch", 10),
    Kind("store_document", 5),
    Kind("page_somebody", 4),
    Kind("clean_up", 4),
    Kind("fail_twice", 3, starts=3),
    Kind("fail_always", 0.5, starts=2, is_dead=True),
    Kind("sync_account", 4),
    Kind("charge_account", 4, is_timed=False),
    Kind("call_provider", 2, is_timed=False),
    Kind("answer", 2),
    Kind("convert", 1),
    Kind("wait_for_quota", 2, starts=2, is_timed=False),
    Kind("remind", 5),
    Kind("publish", 4),
    Kind("take_order", 1),
    Kind("confirm_order", 0, is_timed=False),
    Kind("tick", 0, is_timed=False),
)
NUMBERS = {kind.task: number for number, kind in enumerate(KINDS)}
#: Seconds between two moments of the periodic schedules.
TICKS_S = (2, 5)


def queue_names() -> list[str]:
    """Return the names of the queues, as many as the environment says; one, if that has shards."""
    count = int(os.environ.get("DELAYQ_SOAK_QUEUES", 1))
    return [f"soak-{number}" for number in range(count)]

"""Docket: ``docket.add(when=)``. A Docket is one queue.

Workers are started by the documented classes and not by the command ``docket worker``, because only they can set
``execution_ttl=0``, with which no state is kept of jobs that are done.
"""

import asyncio
import contextlib
import logging
import signal
from datetime import UTC, datetime, timedelta

from docket import Docket, Worker

from benchmarks.peers.adapters.adapter import (
    IS_TUNED,
    QUEUES,
    URL,
    About,
    Adapter,
    run_async,
    this,
    versions,
)

#: By the end of a layout's name. Those of "" are the defaults of the command. Not more than 50 at once: with 100,
#: redis-py's pool of 100 connections runs out and jobs fail.
OPTIONS = {
    "": {
        "concurrency": 10,
        "minimum_check_interval": timedelta(milliseconds=100),
        "scheduling_resolution": timedelta(milliseconds=250),
    },
    "t": {
        "concurrency": 50,
        "minimum_check_interval": timedelta(milliseconds=10),
        "scheduling_resolution": timedelta(milliseconds=10),
    },
}


async def job(payload: str) -> None:
    await run_async(payload)


def _docket(queue):
    return Docket(name=f"q{queue}", url=URL, execution_ttl=timedelta(0))


def _when(due):
    return None if due is None else datetime.fromtimestamp(due, UTC)


async def _work(queues, kind):
    logging.basicConfig(level=logging.WARNING)
    options = dict(OPTIONS[kind])
    if IS_TUNED:
        options["redelivery_timeout"] = timedelta(seconds=3)
    async with contextlib.AsyncExitStack() as stack:
        running = []
        for queue in range(queues):
            docket = await stack.enter_async_context(_docket(queue))
            docket.register(job)
            worker = await stack.enter_async_context(Worker(docket, **options))
            running.append(asyncio.create_task(worker.run_forever()))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: [task.cancel() for task in running])
        await asyncio.gather(*running)


class DocketAdapter(Adapter):
    is_async = True
    about = About(
        documentation=("https://docket.lol/en/latest/",),
        bulk="add_many",
        layouts={
            "1": "1 worker, concurrency 10, looks every 100 ms, schedules every 250 ms (the command's defaults)",
            "2": "2 workers, the same",
            "1t": "1 worker, concurrency 50, looks and schedules every 10 ms",
            "2t": "2 workers, concurrency 50, looks and schedules every 10 ms",
        },
        crash={
            "default": "redelivery_timeout 300 s (default)",
            "tuned": "redelivery_timeout 3 s",
        },
        redelivered_s={"default": 300, "tuned": 6},
        redelivery="redelivery_timeout 300 s",
        notes="execution_ttl=0; the scheduler moves every due job to the stream in one script call",
    )

    def version(self):
        return versions("pydocket", "redis", "hiredis")

    async def open(self):
        self.stack = contextlib.AsyncExitStack()
        self.dockets = [
            await self.stack.enter_async_context(_docket(i)) for i in range(QUEUES)
        ]

    def enqueue(self, due, queue, payload):
        return self.dockets[queue].add(job, when=_when(due))(payload)

    def enqueue_bulk(self, items):
        docket = self.dockets[items[0][1]]
        return docket.add_many(
            [docket.call(job, when=_when(due))(payload) for due, _, payload in items]
        )

    def workers(self, layout, queues):
        return [
            this("docket", "work", str(queues), layout[1:])
            for _ in range(int(layout[0]))
        ]

    def work(self, queues, kind):
        asyncio.run(_work(int(queues), kind))


ADAPTER = DocketAdapter()

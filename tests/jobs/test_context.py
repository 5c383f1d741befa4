import asyncio
import threading

from django_delayq import Job, current_job
from django_delayq.jobs.context import running_job


def test_outside_a_worker_no_job_runs() -> None:
    assert current_job() is None


def test_running_job_is_told_in_its_thread_and_coroutine_only() -> None:
    job: Job[None] = Job("q", "t", "task", [], {})
    seen: list[object] = []

    async def inside() -> None:
        running_job.set(lambda: job)
        await asyncio.sleep(0)
        seen.append(current_job())

    async def outside() -> None:
        seen.append(current_job())

    async def both() -> None:
        await asyncio.gather(inside(), outside())

    asyncio.run(both())
    thread = threading.Thread(target=lambda: seen.append(current_job()))
    thread.start()
    thread.join()

    assert seen == [None, job, None]
    assert current_job() is None

"""``python -m benchmarks.testing``: what does a test through `frozen_queue` cost, and the server of a run of tests?

A test schedules a job, lets fifteen minutes pass and looks at the job. The server is started once a run, and emptied for
each test.
"""

import os
import statistics
import time
from collections.abc import Callable

#: Bars, ms: a test through `frozen_queue`; the server, once a run and for each test.
FROZEN_MS, RUN_MS, EACH_MS = 5.0, 200.0, 2.0
ROUNDS = 200


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    import django

    django.setup()

    from benchmarks import tasks
    from django_delayq.testing import captured, frozen_queue
    from django_delayq.testing.servers import server_url, serving_run

    def frozen() -> None:
        with frozen_queue() as queue:
            job = tasks.noop_flat.schedule(900, 1)
            queue.advance(minutes=15)
            assert job.refresh() == "succeeded"

    def capture() -> None:
        with captured() as jobs:
            tasks.noop_flat.schedule(900, 1)
            jobs.assert_scheduled(tasks.noop_flat, due_in=900)

    def emptied() -> None:
        with serving_run():
            pass

    _tell("a test through frozen_queue()", frozen, FROZEN_MS)
    _tell("a test through captured()", capture, FROZEN_MS)
    begun = time.perf_counter()
    server_url()
    took_ms = (time.perf_counter() - begun) * 1000
    print(f"the server of a run: {took_ms:.0f} ms (bar: {RUN_MS:g})")
    _tell("the same for each test", emptied, EACH_MS)


def _tell(what: str, test: Callable[[], None], bar_ms: float) -> None:
    test()  # loads scripts
    took_ms = []
    busy = time.process_time()
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        test()
        took_ms.append((time.perf_counter() - begun) * 1000)
    busy_ms = (time.process_time() - busy) * 1000 / ROUNDS
    low, middle, high = statistics.quantiles(took_ms, n=10)[0::4]
    print(
        f"{what}: {middle:.2f} ms, {low:.2f} to {high:.2f} (bar: {bar_ms:g}), {busy_ms:.2f} of them of the processor"
    )


if __name__ == "__main__":
    main()

"""A Python service for `stress`: offers to its queues, transfers and consumes them, and says when what came.

Run as ``python -m tests.interop.python_side URL NAME …``: prints ``ready``, begins at a line ``COUNT LEAST_MS MOST_MS``
on stdin, and ends with one line of JSON, [[name, element, epoch ms], …], at the end of stdin.
"""

import json
import math
import random
import sys
import threading
import time

from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.delayed_queue import DelayedQueue

CODEC = "StringCodec"


def main() -> None:
    url, *names = sys.argv[1:]
    arrived: list[tuple[str, str, float]] = []
    is_over = threading.Event()

    def consume(name: str) -> None:
        with BlockingQueue(name, codec=CODEC, connection=url) as queue:
            while not is_over.is_set():
                if (value := queue.poll(0.5)) is not None:
                    arrived.append((name, value, time.time() * 1000))

    delayed = {name: DelayedQueue(name, codec=CODEC, connection=url) for name in names}
    threads = [threading.Thread(target=consume, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    count, least_ms, most_ms = map(int, sys.stdin.readline().split())
    for number in range(count):
        for queue in delayed.values():
            delay_ms = random.randint(least_ms, most_ms)
            # The whole ms that the server will store, as Redisson stores those of its client.
            due_ms = math.ceil(time.time() * 1000) + delay_ms
            queue.offer(f"{number}:{due_ms}", delay_ms / 1000)
    sys.stdin.read()
    is_over.set()
    for thread in threads:
        thread.join()
    for queue in delayed.values():
        queue.destroy()
    print(json.dumps(arrived))


if __name__ == "__main__":
    main()

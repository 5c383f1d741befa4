"""``python -m benchmarks.pending``: what does a pending job cost the server, in bytes of its memory, and what for?

Each job has one argument of 60 characters, or of as many as ``--argument`` says. ``used_memory`` is what the server's allocator has handed out, the rest of
each piece of memory included; the parts are as ``MEMORY USAGE`` estimates them.
"""

import argparse
import time
from collections.abc import Sequence

import redis

from benchmarks import bench

#: Characters of the argument.
ARGUMENT = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", action="append", help="a kind of server; again for more of them"
    )
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument(
        "--argument", type=int, action="append", help="characters; again for more"
    )
    options = parser.parse_args()
    kinds = options.server or ["redis7", "valkey"]
    sizes = options.argument or [ARGUMENT]
    if len(kinds) == 1:
        measure(kinds[0], options.jobs, sizes)
        return
    arguments = [part for size in sizes for part in ("--argument", str(size))]
    bench.run_for_each(
        "benchmarks.pending", kinds, "--jobs", str(options.jobs), *arguments
    )


def measure(kind: str, jobs: int, sizes: Sequence[int]) -> None:
    """Print the bytes of a pending job on one server, without Redisson's list and with it."""
    with bench.serving(kind) as server:
        client = server.client()
        from benchmarks import tasks
        from django_delayq import schedule_many

        print(f"allocator: {client.info('memory')['mem_allocator']}\n")
        rows = []
        for size in sizes:
            argument = "x" * size
            for queue, what in (("flat", "without it"), ("default", "with it")):
                task = tasks.noop.using(queue=queue)
                call = task.prepare(3600, argument)
                # By now the server has the script, and the client's buffers have grown.
                schedule_many([call])
                before = _used(client)
                schedule_many(task.prepare(3600 + i % 7, argument) for i in range(jobs))
                used = (_used(client) - before) / jobs
                keys = call._keys
                parts = (
                    keys.queue.timeout_set,
                    keys.locators,
                    keys.queue.delay_queue,
                )
                rows.append(
                    (
                        what,
                        f"{used:.0f}",
                        f"{len(call.draft.new.payload)}",
                        *(
                            f"{(client.memory_usage(key, samples=0) or 0) / jobs:.0f}"
                            for key in parts
                        ),
                    )
                )
                # At once, because the next is measured by the memory in use.
                client.execute_command("FLUSHALL", "SYNC")
        head = ("Redisson's list", "bytes a job, used_memory", "payload")
        bench.table((*head, "timeout set", "locators", "delay queue"), rows)


def _used(client: redis.Redis) -> int:
    from django_delayq.transport.clients import own_clients

    # The slow log keeps arguments, and the clients that sent the jobs have buffers: both count as memory in use. A call
    # with many large jobs is sent on a second connection.
    client.slowlog_reset()
    own_clients.of_thread().connection_pool.disconnect()
    while len(client.client_list()) > 1:
        time.sleep(0.01)
    return int(client.info("memory")["used_memory"])


if __name__ == "__main__":
    main()

"""A list and ``BLPOP``: what a consumer takes with it when it is killed.

``python -m benchmarks.why.list_pop [jobs]``

Consumers pop an element, work on it for 20 ms and note that it is done, until one is killed in the middle;
then the next one begins. This is how a queue without acknowledgement is consumed, in whichever language.
"""

import os
import signal
import subprocess
import sys
import time

from redis import Redis

from tests.servers import Server, available_kinds


def serve(url: str) -> None:
    """Consume for ever."""
    client = Redis.from_url(url)
    while True:
        _, element = client.blpop(["jobs"])
        time.sleep(0.02)
        client.sadd("done", element)


def main(count: int = 500) -> None:
    for kind in available_kinds():
        server = Server(kind).start()
        client = server.client()
        client.rpush("jobs", *range(count))
        kills = 0
        while client.llen("jobs"):
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.why.list_pop",
                    "serve",
                    server.socket_url,
                ]
            )
            time.sleep(1)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        lost = count - client.scard("done")
        print(
            f"{kind} {'.'.join(map(str, server.version))}, {count:,} elements: {lost} lost with {kills} killed consumers"
        )
        server.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        main(*map(int, sys.argv[1:]))

"""A program that moves a queue from another server to its own, and is killed again and again while it does.

``python -m tests.worker.project.mover SOURCE QUEUE KILLS``: begins when its input says so, prints how often it was killed
on the way, and ends once nothing is left on the source.
"""

import os
import random
import signal
import sys
import time

import django
import redis

#: Pages that a mover passes on at most, and seconds that it lives after that, before it is killed.
PAGES, LIFE_S = 5, 0.01
#: Jobs of a page, so that there are many.
PAGE = 5


def main(url: str, queue: str, kills: int) -> None:
    django.setup()
    from django_delayq import conf
    from django_delayq.project_connection import connection_url
    from django_delayq.tools import direct
    from django_delayq.tools import move as moving
    from django_delayq.tools import source as taking

    taking.FIRST = taking.LEAST = taking.MOST = PAGE
    settings, keyring = conf.get_settings().queue(queue), conf.get_keyring()
    place = connection_url()
    assert place is not None
    chance = random.Random(os.getpid())
    killed = 0

    def move(told: int | None = None) -> None:
        source, target = redis.Redis.from_url(url), redis.Redis.from_url(place)
        one = direct.Moving(source, target, settings, keyring)
        one.begin()
        while True:
            for _ in one.steps():
                if told is not None:
                    os.write(told, b".")
            counts = one.counts
            if not moving.total_of(counts) + counts.running:
                break
            time.sleep(0.05)
        one.end()

    sys.stdin.readline()
    while killed < kills:
        heard, told = os.pipe()
        pid = os.fork()
        if not pid:
            move(told)
            os._exit(0)
        os.close(told)
        for _ in range(chance.randrange(PAGES)):
            os.read(heard, 1)
        time.sleep(chance.random() * LIFE_S)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(heard)
        killed += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status):
            break
    move()
    print(killed)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

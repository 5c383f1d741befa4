"""A queue in a later format than this version reads is left alone, and served again once it is not."""

import pytest

from django_delayq import BlockingQueue, NewerFormat, schedule
from django_delayq.conf import get_settings
from django_delayq.core.states import State
from django_delayq.wire.signatures import FORMAT
from tests.polling import wait_until
from tests.worker.project import tasks

LATER = FORMAT + 1

#: What a worker process says of a queue that it leaves alone.
SAID = f"is in format {LATER}, and this version reads format {FORMAT}: it does not serve the queue"


@pytest.fixture
def raise_it(client, queue_name):
    """Have a later version put the queue into a format."""

    def put(format: int) -> None:
        client.hset(get_settings().queue(queue_name).keys.control, "format", format)

    return put


@pytest.mark.parametrize(
    "options", [{}, {"REDISSON": "3.27.2", "CODEC": "StringCodec"}]
)
def test_older_worker_touches_nothing_of_a_later_queue_and_goes_on_by_itself(
    configure, work, records, client, queue_name, raise_it, caplog, options
):
    configure(options)
    keys = get_settings().queue(queue_name).keys
    raise_it(LATER)
    jobs = [
        schedule(tasks.pair.using(queue=queue_name), 0, n, str(n)) for n in range(3)
    ]
    if options:
        client.rpush(keys.queue.destination, b"of Java")
    names = client.keys(f"*{queue_name}*")
    before = {name: client.dump(name) for name in names}

    worker = work(cap_ms=10)

    wait_until(lambda: worker.loop.turns > 20, description="it has looked often")
    assert {
        name: client.dump(name) for name in client.keys(f"*{queue_name}*")
    } == before
    assert caplog.text.count(SAID) == 1
    raise_it(FORMAT)
    wait_until(lambda: records.count("pair") == 3, description="they run")
    assert sorted(records.jobs("pair")) == sorted(job.id for job in jobs)
    assert caplog.text.count("is claimed from again") == 1


def test_what_runs_while_the_queue_is_raised_comes_to_its_end(
    configure, work, records, client, queue_name, raise_it
):
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    failing = schedule(tasks.hold_and_fail.using(queue=queue_name), 0)
    work(cap_ms=10, lease_s=6)
    wait_until(lambda: records.count("start") == 2, description="both run")
    first_end = lease_end(client, queue_name)

    raise_it(LATER)
    wait_until(
        lambda: lease_end(client, queue_name) > first_end, description="it is renewed"
    )
    records.let_go()

    wait_until(lambda: job.refresh() is State.SUCCEEDED, description="it is settled")
    wait_until(lambda: failing.refresh() is State.RETRYING, description="so is this")
    assert (failing.attempts, failing.kills) == (1, 0)


def lease_end(client, queue_name) -> float:
    keys = get_settings().queue(queue_name).keys
    return min(score for _, score in client.zrange(keys.leases, 0, -1, withscores=True))


def test_burst_that_cannot_read_a_queue_says_so_in_its_exit_status(
    configure, work, queue_name, raise_it
):
    raise_it(LATER)

    assert work(is_burst=True).join() == 1


def test_whoever_takes_from_a_later_queue_is_told(
    configure, client, queue_name, raise_it
):
    configure({"REDISSON": "3.27.2", "CODEC": "StringCodec"})
    client.rpush(get_settings().queue(queue_name).keys.queue.destination, b"text")
    raise_it(LATER)

    with BlockingQueue(queue_name) as blocking:
        with pytest.raises(
            NewerFormat,
            match=f"is in format {LATER}, and this version reads format {FORMAT}",
        ):
            blocking.poll(20)
        raise_it(FORMAT)
        assert blocking.poll(20) == "text"

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_delayq.queues.transfer.service import QueueTransferService
from django_delayq.queues.transfer.task import PushResult, QueueTransferTask
from django_delayq.waiting.channel import ChannelListener
from tests.polling import wait_until
from tests.queues.usage import usage

# The children of these tests do nothing that a thread of the parent could disturb.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def service() -> QueueTransferService:
    return QueueTransferService()


class Users:
    """Schedules and unschedules one queue, and leaves nothing running."""

    def __init__(self, service: QueueTransferService, queue_name: str) -> None:
        self.service = service
        self.queue_name = queue_name
        self.made: list[QueueTransferTask] = []
        self.pushed = threading.Event()

    def make(self, listener: ChannelListener) -> QueueTransferTask:
        def push() -> PushResult:
            self.pushed.set()
            return PushResult(0, -1)

        self.made.append(
            QueueTransferTask(
                name=self.queue_name,
                channel=f"channel:{self.queue_name}",
                presence=f"presence:{self.queue_name}",
                push=push,
                listener=listener,
            )
        )
        return self.made[-1]

    def add(self, client: redis.Redis, name: str = "") -> None:
        self.service.schedule(client, name or self.queue_name, self.make)

    def remove(self, client: redis.Redis, name: str = "") -> None:
        self.service.unschedule(client, name or self.queue_name)


@pytest.fixture
def users(service: QueueTransferService, queue_name: str) -> Iterator[Users]:
    users = Users(service, queue_name)
    yield users
    for server in list(service._servers.values()):
        for task in server.tasks.values():
            task.stop()
        server.listener.stop()


def test_first_user_starts_the_task_and_the_last_one_stops_it(
    client: redis.Redis, users: Users
) -> None:
    users.add(client)
    users.add(client)
    assert len(users.made) == 1
    assert users.made[0].is_running

    users.remove(client)
    assert users.made[0].is_running

    users.remove(client)
    assert not users.made[0].is_running


def test_one_unschedule_too_many_does_nothing(
    client: redis.Redis, users: Users
) -> None:
    users.remove(client)
    users.add(client)
    users.remove(client)
    users.remove(client)

    users.add(client)

    assert usage(users.service, client, users.queue_name) == 1


def test_two_clients_of_one_server_share_a_task(server: Any, users: Users) -> None:
    users.add(server.client())
    users.add(server.client())

    assert len(users.made) == 1


def test_another_database_is_another_server(server: Any, users: Users) -> None:
    users.add(server.client(db=0))
    users.add(redis.Redis.from_url(server.url, db=1))

    assert len(users.made) == 2


def test_all_queues_of_a_server_share_one_subscription(
    client: redis.Redis, users: Users
) -> None:
    before = listening()
    for number in range(5):
        users.add(client, f"{users.queue_name}:{number}")

    wait_until(
        lambda: client.pubsub_numsub(f"channel:{users.queue_name}")[0][1] == 1,
        description="subscribed",
    )
    # The server may still list the connections of an earlier test: threads are counted.
    assert listening() == before + 1


def listening() -> int:
    return [thread.name for thread in threading.enumerate()].count("delayq-channel")


def test_last_queue_of_a_server_takes_its_connection_along(
    client: redis.Redis, users: Users
) -> None:
    threads = set(threading.enumerate())
    users.add(client)
    wait_until(
        lambda: client.pubsub_numsub(f"channel:{users.queue_name}")[0][1] == 1,
        description="subscribed",
    )

    users.remove(client)

    assert set(threading.enumerate()) <= threads


def test_users_are_counted_right_when_they_come_and_go_at_once(
    client: redis.Redis, users: Users
) -> None:
    def come_and_go() -> None:
        for _ in range(30):
            users.add(client)
            users.remove(client)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert usage(users.service, client, users.queue_name) == 0
    assert not any(task.is_running for task in users.made)


def test_forked_child_transfers_once_it_is_told_to_resume(
    client: redis.Redis, users: Users
) -> None:
    users.add(client)
    wait_until(users.pushed.is_set, description="the parent pushes")

    def child() -> bool:
        users.pushed.clear()
        assert not users.made[0].is_running
        users.service.resume(client, users.queue_name)
        return users.pushed.wait(60) and users.made[0].is_running

    assert in_fork(child)
    assert users.made[0].is_running


def test_forked_child_counts_on(client: redis.Redis, users: Users) -> None:
    users.add(client)

    def child() -> bool:
        users.add(client)
        return usage(users.service, client, users.queue_name) == 2

    assert in_fork(child)
    assert usage(users.service, client, users.queue_name) == 1


def test_fork_while_another_thread_holds_the_lock_does_not_hang(
    client: redis.Redis, users: Users
) -> None:
    users.add(client)
    holds, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with users.service._lock, users.made[0]._background.lock:
            holds.set()
            let_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()

    def child() -> bool:
        users.service.resume(client, users.queue_name)
        return users.made[0].is_running

    try:
        assert in_fork(child)
    finally:
        let_go.set()
        thread.join()


def in_fork(check: Callable[[], bool]) -> bool:
    """Run a check in a forked child, which ends without any of the parent's clean-up."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import redis

from django_delayq.queues.transfer import task as transfer_task
from django_delayq.queues.transfer.task import PushResult, QueueTransferTask
from django_delayq.waiting.channel import ChannelListener
from tests.polling import wait_until
from tests.servers import Server


@dataclass
class RecordingPush:
    """Notes when it was called, and answers as told."""

    answer: Callable[[int], PushResult] = lambda number: PushResult(0, -1)
    times: list[float] = field(default_factory=list)
    is_closed: bool = False

    def __call__(self) -> PushResult:
        self.times.append(time.monotonic())
        return self.answer(len(self.times))

    def close(self) -> None:
        self.is_closed = True

    @property
    def count(self) -> int:
        return len(self.times)


@pytest.fixture
def listener(client: redis.Redis) -> Iterator[ChannelListener]:
    listener = ChannelListener(client)
    yield listener
    listener.stop()


@pytest.fixture
def start(
    listener: ChannelListener, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., QueueTransferTask]]:
    started = []

    def start(
        push: RecordingPush, cap_ms: float = transfer_task.CAP_MS
    ) -> QueueTransferTask:
        monkeypatch.setattr(transfer_task, "CAP_MS", cap_ms)
        task = QueueTransferTask(
            name=queue_name,
            channel=f"channel:{queue_name}",
            presence=f"presence:{queue_name}",
            push=push,
            listener=listener,
        )
        started.append(task)
        task.start()
        return task

    yield start
    for task in started:
        task.stop()


def settled(client: redis.Redis, queue_name: str, push: RecordingPush) -> int:
    """Wait for the pushes of the start: its own, and that of the subscription."""
    wait_until(
        lambda: client.pubsub_numsub(f"channel:{queue_name}")[0][1] == 1,
        description="subscribed",
    )
    wait_until(lambda: push.count >= 2, description="the push of the subscription")
    return push.count


def test_pushes_when_started_and_when_subscribed(
    client: redis.Redis, queue_name: str, start: Callable[..., QueueTransferTask]
) -> None:
    push = RecordingPush()

    start(push, cap_ms=60_000)

    assert settled(client, queue_name, push) == 2


def test_pushes_for_a_message_whatever_it_says(
    client: redis.Redis, queue_name: str, start: Callable[..., QueueTransferTask]
) -> None:
    push = RecordingPush()
    start(push, cap_ms=60_000)
    before = settled(client, queue_name, push)

    client.publish(f"channel:{queue_name}", "no number at all")

    wait_until(lambda: push.count == before + 1, description="a push for the message")


def test_pushes_at_once_while_more_is_due(
    client: redis.Redis, queue_name: str, start: Callable[..., QueueTransferTask]
) -> None:
    push = RecordingPush(
        lambda number: PushResult(100, 0) if number < 50 else PushResult(0, -1)
    )

    start(push, cap_ms=60_000)

    wait_until(lambda: push.count >= 50, description="fifty pushes")


def test_pushes_before_and_at_the_start_time_of_the_head(
    client: redis.Redis, queue_name: str, start: Callable[..., QueueTransferTask]
) -> None:
    due = time.monotonic() + 1

    def answer(number: int) -> PushResult:
        left_us = int((due - time.monotonic()) * 1e6)
        return PushResult(0, left_us) if left_us > 0 else PushResult(1, -1)

    push = RecordingPush(answer)
    start(push, cap_ms=60_000)

    wait_until(lambda: push.times[-1:] > [due], description="the push that is in time")
    early = [moment for moment in push.times if due - 0.1 < moment < due]
    assert len(early) <= 3


def test_pushes_after_the_cap_though_nothing_was_said(
    client: redis.Redis, queue_name: str, start: Callable[..., QueueTransferTask]
) -> None:
    push = RecordingPush()
    start(push, cap_ms=30)
    before = settled(client, queue_name, push)

    wait_until(lambda: push.count >= before + 3, description="three safety pushes")


def test_push_that_fails_is_repeated_soon_and_then_less_often(
    client: redis.Redis,
    queue_name: str,
    start: Callable[..., QueueTransferTask],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(number: int) -> PushResult:
        if number < 6:
            raise redis.ConnectionError("gone")
        return PushResult(0, -1)

    push = RecordingPush(answer)
    caplog.set_level("DEBUG")
    start(push, cap_ms=60_000)

    wait_until(lambda: push.count >= 6, description="repeated until it worked")
    levels = [
        record.levelname
        for record in caplog.records
        if "cannot transfer" in record.getMessage()
    ]
    assert levels == ["WARNING", "DEBUG", "DEBUG", "DEBUG", "DEBUG"]
    pauses_ms = [
        int(found[1])
        for record in caplog.records
        if (found := re.search(r"again in (\d+) ms", record.getMessage()))
    ]
    assert pauses_ms == [50, 100, 200, 400, 800]
    waits_ms = [
        1000 * (after - before) for before, after in itertools.pairwise(push.times)
    ]
    # The subscription ends one of the pauses: which one depends on when it comes.
    kept = [
        wait_ms > 0.8 * pause_ms
        for wait_ms, pause_ms in zip(waits_ms, pauses_ms, strict=False)
    ]
    assert kept.count(False) <= 1, waits_ms
    assert push.times[5] - push.times[0] < 20


def test_push_survives_any_exception(
    client: redis.Redis, queue_name: str, start: Callable[..., QueueTransferTask]
) -> None:
    def answer(number: int) -> PushResult:
        if number == 3:
            raise ZeroDivisionError
        return PushResult(0, -1)

    push = RecordingPush(answer)
    start(push, cap_ms=20)

    wait_until(lambda: push.count >= 5, description="pushes after the failure")


def test_pushes_again_once_a_killed_subscription_is_back(
    client: redis.Redis, queue_name: str, start: Callable[..., QueueTransferTask]
) -> None:
    push = RecordingPush()
    start(push, cap_ms=60_000)
    before = settled(client, queue_name, push)

    kill_subscribers(client, f"channel:{queue_name}")

    wait_until(
        lambda: push.count == before + 1,
        description="the push of the new subscription",
    )


def test_pushes_again_once_the_server_is_back(
    private_server: Callable[..., Server],
    queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer_task, "CAP_MS", 60_000)
    server = private_server()
    client = server.client()
    listener = ChannelListener(client)
    push = RecordingPush()
    task = QueueTransferTask(
        name=queue_name,
        channel=f"channel:{queue_name}",
        presence=f"presence:{queue_name}",
        push=push,
        listener=listener,
    )
    task.start()
    before = settled(client, queue_name, push)

    server.kill()
    server.start()

    wait_until(lambda: push.count > before, description="a push after the restart")
    task.stop()
    listener.stop()


def test_stop_ends_the_thread_closes_the_push_and_leaves_the_channel(
    client: redis.Redis, queue_name: str, start: Callable[..., QueueTransferTask]
) -> None:
    push = RecordingPush()
    task = start(push)
    settled(client, queue_name, push)

    task.stop()
    task.stop()

    assert push.is_closed
    assert not task.is_running
    assert f"delayq-transfer-{queue_name}" not in names_of_threads()
    wait_until(
        lambda: client.pubsub_numsub(f"channel:{queue_name}")[0][1] == 0,
        description="unsubscribed",
    )


def test_task_can_be_started_again(
    client: redis.Redis, queue_name: str, start: Callable[..., QueueTransferTask]
) -> None:
    push = RecordingPush()
    task = start(push)
    task.stop()
    before = push.count

    task.start()
    task.start()

    wait_until(lambda: push.count > before, description="a push of the second start")
    assert names_of_threads().count(f"delayq-transfer-{queue_name}") == 1


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def kill_subscribers(client: redis.Redis, channel: str) -> None:
    killed = 0
    for row in client.client_list(_type="pubsub"):
        killed += client.client_kill_filter(_id=row["id"])
    assert killed

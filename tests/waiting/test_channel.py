import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from django_delayq.waiting.channel import ChannelListener
from tests.polling import wait_until
from tests.servers import Server


class Recorder:
    """A callback that keeps what it is called with."""

    def __init__(self) -> None:
        self.heard: list[bytes | None] = []

    def __call__(self, message: bytes | None) -> None:
        self.heard.append(message)

    def wait_for(self, heard: list[bytes | None], timeout: float = 30) -> None:
        wait_until(
            lambda: self.heard == heard,
            description=f"{heard} heard, not {self.heard}",
            timeout=timeout,
        )


@pytest.fixture
def listener(client: redis.Redis) -> Iterator[ChannelListener]:
    listener = ChannelListener(client)
    yield listener
    listener.stop()


def test_subscriber_hears_that_it_is_subscribed_and_then_every_message_in_order(
    client: redis.Redis, queue_name: str, listener: ChannelListener
) -> None:
    recorder = Recorder()
    listener.subscribe(queue_name, recorder)
    recorder.wait_for([None])

    messages = [b"%d" % number for number in range(500)]
    pipeline = client.pipeline(transaction=False)
    for message in messages:
        pipeline.publish(queue_name, message)
    pipeline.execute()

    recorder.wait_for([None, *messages])


def test_channels_are_told_apart(
    client: redis.Redis, queue_name: str, listener: ChannelListener
) -> None:
    first, second = Recorder(), Recorder()
    listener.subscribe(f"{queue_name}:1", first)
    listener.subscribe(f"{queue_name}:2", second)
    first.wait_for([None])
    second.wait_for([None])

    client.publish(f"{queue_name}:2", "x")

    second.wait_for([None, b"x"])
    assert first.heard == [None]


def test_second_subscriber_of_a_channel_is_told_at_once_and_the_first_not_again(
    client: redis.Redis, queue_name: str, listener: ChannelListener
) -> None:
    first, second = Recorder(), Recorder()
    listener.subscribe(queue_name, first)
    first.wait_for([None])

    listener.subscribe(queue_name, second)

    second.wait_for([None])
    client.publish(queue_name, "x")
    second.wait_for([None, b"x"])
    first.wait_for([None, b"x"])


def test_unsubscribed_hears_nothing_and_the_others_do(
    client: redis.Redis, queue_name: str, listener: ChannelListener
) -> None:
    first, second = Recorder(), Recorder()
    listener.subscribe(queue_name, first)
    listener.subscribe(queue_name, second)
    first.wait_for([None])
    second.wait_for([None])

    listener.unsubscribe(queue_name, first)
    client.publish(queue_name, "x")

    second.wait_for([None, b"x"])
    assert first.heard == [None]


def test_last_unsubscribe_leaves_the_channel_and_the_next_subscribe_comes_back(
    client: redis.Redis, queue_name: str, listener: ChannelListener
) -> None:
    recorder = Recorder()
    listener.subscribe(queue_name, recorder)
    recorder.wait_for([None])

    listener.unsubscribe(queue_name, recorder)
    wait_until(lambda: subscribers(client, queue_name) == 0, description="left")
    listener.subscribe(queue_name, recorder)

    recorder.wait_for([None, None])


def test_killed_connection_is_replaced_and_every_channel_says_so(
    client: redis.Redis, queue_name: str, listener: ChannelListener
) -> None:
    first, second = Recorder(), Recorder()
    listener.subscribe(f"{queue_name}:1", first)
    listener.subscribe(f"{queue_name}:2", second)
    first.wait_for([None])
    second.wait_for([None])

    for row in client.client_list(_type="pubsub"):
        client.client_kill_filter(_id=row["id"])

    first.wait_for([None, None])
    second.wait_for([None, None])
    client.publish(f"{queue_name}:1", "x")
    first.wait_for([None, None, b"x"])


def test_restarted_server_is_listened_to_soon_after_its_return(
    private_server: Callable[..., Server], queue_name: str
) -> None:
    server = private_server()
    recorder = Recorder()
    with listening_to(server) as listener:
        listener.subscribe(queue_name, recorder)
        recorder.wait_for([None])
        server.kill()
        server.start()

        recorder.wait_for([None, None])


def test_channel_that_the_acl_forbids_takes_only_itself_out(
    private_server: Callable[..., Server],
    queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("django_delayq.waiting.channel.REFUSED_MS", 20)
    server = private_server()
    admin = server.client()
    admin.acl_setuser(
        "app",
        enabled=True,
        passwords=["+pw"],
        commands=["+@all"],
        keys=["*"],
        channels=[f"{queue_name}:1", f"{queue_name}:3"],
        reset_channels=True,
    )
    recorders = [Recorder() for _ in range(3)]
    listener = ChannelListener(server.client(username="app", password="pw"))
    for number, recorder in enumerate(recorders, 1):
        listener.subscribe(f"{queue_name}:{number}", recorder)

    recorders[0].wait_for([None])
    recorders[2].wait_for([None])
    wait_until(
        # redis-py 5.0 leaves the value a text, "count=4".
        lambda: (
            int(
                re.findall(r"\d+", str(admin.info("errorstats")["errorstat_NOPERM"]))[0]
            )
            > 3
        ),
        description="the forbidden one is asked for again and again",
    )
    (told,) = [text for text in caplog.messages if "no right to listen" in text]
    assert f"ACL SETUSER <user> '&{queue_name}:2'" in told
    assert recorders[1].heard == []

    admin.acl_setuser("app", enabled=True, channels=[f"{queue_name}:2"])

    recorders[1].wait_for([None])
    admin.publish(f"{queue_name}:1", "x")
    admin.publish(f"{queue_name}:2", "y")
    recorders[0].wait_for([None, b"x"])
    recorders[1].wait_for([None, b"y"])
    assert f"now listening to channel {queue_name}:2" in caplog.messages
    listener.stop()


def test_subscribe_while_the_server_is_away_takes_effect_when_it_comes(
    private_server: Callable[..., Server], queue_name: str
) -> None:
    server = private_server()
    server.kill()
    recorder = Recorder()
    with listening_to(server) as listener:
        listener.subscribe(queue_name, recorder)
        server.start()

        recorder.wait_for([None])


@pytest.mark.slow
def test_server_that_says_nothing_is_given_up_and_connected_to_again(
    private_server: Callable[..., Server], queue_name: str
) -> None:
    server = private_server()
    recorder = Recorder()
    begun = time.monotonic()
    with listening_to(server) as listener:
        listener.subscribe(queue_name, recorder)
        recorder.wait_for([None])
        os.kill(server.pid, signal.SIGSTOP)
        try:
            # Ping after 2 s of silence, deadline 2 s later: then it tries to connect, and waits for that.
            wait_until(
                lambda: not has_socket(listener),
                description="the dead connection is given up",
            )
        finally:
            os.kill(server.pid, signal.SIGCONT)

        recorder.wait_for([None, None])
        assert time.monotonic() - begun > 3


def test_quiet_connection_is_kept(
    private_server: Callable[..., Server],
    queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_delayq.waiting.channel.PING_AFTER_MS", 20)
    server = private_server()
    client = server.client()
    recorder = Recorder()
    with listening_to(server) as listener:
        listener.subscribe(queue_name, recorder)
        recorder.wait_for([None])
        (row,) = client.client_list(_type="pubsub")

        wait_until(
            lambda: client.client_list(_type="pubsub")[0]["cmd"] == "ping",
            description="a sign of life was asked for",
        )
        client.publish(queue_name, "x")

        recorder.wait_for([None, b"x"])
        assert client.client_list(_type="pubsub")[0]["id"] == row["id"]


def test_callback_that_fails_does_not_deafen_the_others(
    client: redis.Redis, queue_name: str, listener: ChannelListener
) -> None:
    def fail(message: bytes | None) -> None:
        raise ZeroDivisionError

    recorder = Recorder()
    listener.subscribe(queue_name, fail)
    listener.subscribe(queue_name, recorder)
    recorder.wait_for([None])

    client.publish(queue_name, "x")
    client.publish(queue_name, "y")

    recorder.wait_for([None, b"x", b"y"])


def test_decoding_resp3_client_with_retries_is_listened_to_all_the_same(
    server: Server, queue_name: str
) -> None:
    client = server.client(protocol=3, decode_responses=True, health_check_interval=1)
    listener = ChannelListener(client)
    recorder = Recorder()
    listener.subscribe(queue_name, recorder)
    recorder.wait_for([None])

    client.publish(queue_name, "x")

    recorder.wait_for([None, b"x"])
    listener.stop()


def test_stop_ends_the_thread_and_the_next_subscribe_starts_another(
    client: redis.Redis, queue_name: str, listener: ChannelListener
) -> None:
    recorder = Recorder()
    before = set(threading.enumerate())
    listener.subscribe(queue_name, recorder)
    recorder.wait_for([None])
    # Others of this process may listen as well.
    ours = {each for each in threading.enumerate() if each.name == "delayq-channel"}
    assert len(ours - before) == 1

    listener.stop()
    listener.stop()
    assert not any(each.is_alive() for each in ours - before)
    listener.subscribe(queue_name, recorder)

    recorder.wait_for([None, None])


def test_stop_does_not_wait_for_a_server_that_is_away(
    private_server: Callable[..., Server], queue_name: str
) -> None:
    took = []
    for _ in range(3):
        server = private_server()
        recorder = Recorder()
        with listening_to(server) as listener:
            listener.subscribe(queue_name, recorder)
            recorder.wait_for([None])
            server.kill()
            begun = time.monotonic()
        took.append(time.monotonic() - begun)

    assert min(took) < 1


def subscribers(client: redis.Redis, channel: str) -> int:
    return int(client.pubsub_numsub(channel)[0][1])


def has_socket(listener: ChannelListener) -> bool:
    listening = listener._background.actor
    return listening is not None and listening._subscribed != set()


@contextmanager
def listening_to(server: Server) -> Iterator[ChannelListener]:
    listener = ChannelListener(server.client())
    yield listener
    listener.stop()

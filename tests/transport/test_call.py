from typing import Any

import hiredis
import pytest
import redis
from redis.connection import HiredisRespSerializer

from django_delayq.core.states import State
from django_delayq.transport import call as calls
from django_delayq.transport import server as servers
from django_delayq.transport.call import Call, CallPacker
from django_delayq.transport.line import line_of
from django_delayq.transport.once import Once
from django_delayq.transport.plain_command import Command
from django_delayq.transport.run import run
from django_delayq.transport.several import run_all, run_stream
from django_delayq.waiting.connection import DedicatedConnection
from tests.servers import ExternalServer, Server
from tests.transport.samples import script


class TestPacking:
    """`CallPacker` packs what redis-py packs, and refuses what redis-py refuses."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ("sha", 2, "key", "schlüssel", b"\x00\xff", 0, -1, State.SUCCEEDED),
            ("sha", 0),
            # No argument of ours is of these types, but redis-py takes them.
            ("sha", 1, "key", memoryview(b"view"), bytearray(b"array"), 0.5),
        ],
        ids=["ours", "none", "others"],
    )
    @pytest.mark.parametrize("command", ["EVALSHA", "EVAL", "CONFIG GET"])
    def test_is_that_of_redis(self, command: str, arguments: tuple[Any, ...]) -> None:
        try:
            theirs = HiredisRespSerializer().pack(command, *arguments)
        except redis.DataError:
            pytest.skip("this redis-py takes no view and no array")

        assert CallPacker().pack(command, *arguments) == theirs

    def test_refuses_what_redis_refuses(self) -> None:
        with pytest.raises(redis.DataError):
            CallPacker().pack("EVALSHA", "sha", 1, "key", None)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """Return the types of all arguments that reach hiredis from now on."""
    types: list[type] = []
    pack = hiredis.pack_command

    def note(args: tuple[Any, ...]) -> bytes:
        types.extend(map(type, args))
        return pack(args)

    monkeypatch.setattr(calls, "pack_command", note)
    monkeypatch.setattr(hiredis, "pack_command", note)
    return types


class TestNumbers:
    """hiredis ends the process if a signal handler raises while it writes a number, so it gets none."""

    CALL: Call[Any] = Call(script("return ARGV[2]"), ("q",), (900_000, 1, b"x", "y"))

    @pytest.mark.parametrize(
        "make",
        [
            lambda client: run(client, TestNumbers.CALL),
            lambda client: run_all(client, [TestNumbers.CALL] * 2),
            lambda client: list(run_stream(client, [TestNumbers.CALL] * 2)),
            lambda client: line_of(client).ask(TestNumbers.CALL).finish(),
            lambda client: Once(TestNumbers.CALL).do(client),
            lambda client: run(client, Command(("WAIT", 0, 5))),
            lambda client: client.set("number", 0.5, ex=10),
            lambda client: client.evalsha(TestNumbers.CALL.script.sha, 0, 5, 6),
            lambda client: client.pipeline(transaction=False).wait(0, 5).execute(),
            lambda client: DedicatedConnection(client, deadline_s=9).command(
                "WAIT", 0, 5
            ),
        ],
        ids=[
            "run",
            "run_all",
            "run_stream",
            "Line",
            "Once",
            "Command",
            "method",
            "evalsha",
            "pipeline",
            "dedicated",
        ],
    )
    def test_none_reaches_hiredis_on_our_connections(
        self, server: Server | ExternalServer, packed: list[type], make: Any
    ) -> None:
        found = servers.Server.at(server.url)
        pool = found.pool(db=1, client_name="numbers")
        client = found.client(pool, is_single=True)

        run(client, self.CALL)
        make(client)
        client.delete("number")
        client.close()
        pool.disconnect()

        assert packed
        assert set(packed) <= {bytes, str}

    @pytest.mark.parametrize("value", [2**70, -1, 0.5, 1e22])
    def test_are_written_as_hiredis_writes_them(self, value: float) -> None:
        assert CallPacker().pack("PUBLISH", value) == [
            hiredis.pack_command((b"PUBLISH", value))
        ]

from typing import Any

import pytest
import redis
from redis.connection import HiredisRespSerializer

from django_delayq.calls.call import CallPacker
from django_delayq.delivery.states import State


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

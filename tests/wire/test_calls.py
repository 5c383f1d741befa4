import os
import random
from collections.abc import Iterator

import pytest
import redis

from django_delayq.transport.run import run
from django_delayq.wire import script_calls
from django_delayq.wire.frame import FrameFormat, pack, unpack
from django_delayq.wire.queue_keys import QueueKeys
from django_delayq.wire.script_calls import START, Cursor
from tests.clock import at

#: 2026-01-01, epoch ms.
NOW_MS = 1_767_225_600_000


@pytest.fixture
def keys(queue_name: str) -> QueueKeys:
    return QueueKeys.of(queue_name)


class TestOffer:
    @pytest.mark.parametrize(
        ("now_us", "when", "start_time_ms"),
        [
            (NOW_MS * 1000, "+0", NOW_MS),
            (NOW_MS * 1000 + 1, "+0", NOW_MS + 1),
            (NOW_MS * 1000 + 999, "+1500", NOW_MS + 1501),
            (NOW_MS * 1000, f"={NOW_MS + 5}", NOW_MS + 5),
            (NOW_MS * 1000 + 1, f"={NOW_MS - 5}", NOW_MS + 1),
            (NOW_MS * 1000, "=0", NOW_MS),
            (NOW_MS * 1000, "=253402300799999", 253402300799999),
        ],
    )
    def test_start_time_is_a_whole_millisecond_and_never_early(
        self,
        client: redis.Redis,
        keys: QueueKeys,
        now_us: int,
        when: str,
        start_time_ms: int,
    ) -> None:
        returned = run(client, at(now_us, script_calls.offer(keys, b"x", when)))

        ((frame, score),) = client.zrange(keys.timeout_set, 0, -1, withscores=True)
        assert returned == score == start_time_ms
        assert unpack(frame).payload == b"x"

    @pytest.mark.parametrize("frame_format", FrameFormat)
    @pytest.mark.parametrize("payload", [b"", b"x", b"\0\r\n\xff" * 1000])
    def test_frame_is_packed_as_redisson_packs_it(
        self,
        client: redis.Redis,
        keys: QueueKeys,
        frame_format: FrameFormat,
        payload: bytes,
    ) -> None:
        run(client, script_calls.offer(keys, payload, "+0", frame_format=frame_format))

        (frame,) = client.lrange(keys.delay_queue, 0, -1)
        at = 1 if frame_format is FrameFormat.BC0LC0 else 0
        assert frame == pack(frame[at : at + 8], payload, frame_format)
        assert client.zscore(keys.timeout_set, frame) is not None

    def test_without_a_list_the_frame_says_so(
        self, client: redis.Redis, keys: QueueKeys
    ) -> None:
        run(client, script_calls.offer(keys, b"x", "+0", insertion_list=False))

        (frame,) = client.zrange(keys.timeout_set, 0, -1)
        assert frame[1:3] == b"\xd9U"
        assert client.exists(keys.delay_queue) == 0

    def test_numbers_ascend_in_the_order_of_the_list(
        self, client: redis.Redis, keys: QueueKeys
    ) -> None:
        for number in range(20):
            frame_format = list(FrameFormat)[number % 2]
            call = script_calls.offer(keys, b"x", "+0", frame_format=frame_format)
            run(client, call)

        ids = [
            unpack(frame).random_id for frame in client.lrange(keys.delay_queue, 0, -1)
        ]
        assert ids == sorted(ids)
        assert len(set(ids)) == 20


class TestWalk:
    """A walk sees every frame that stays, whatever is taken out or added between two pages."""

    @pytest.fixture(params=[True, False], ids=["list", "zset"])
    def insertion_list(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param)

    def walk(
        self,
        client: redis.Redis,
        keys: QueueKeys,
        insertion_list: bool,
        page: int,
        cursor: Cursor = START,
    ) -> Iterator[tuple[list[bytes], Cursor]]:
        while not cursor.is_at_end:
            found = run(
                client,
                script_calls.read(
                    keys, cursor, insertion_list=insertion_list, page=page
                ),
            )
            cursor = found.cursor
            yield found.frames, cursor

    def fill(self, client: redis.Redis, keys: QueueKeys, count: int) -> list[bytes]:
        frames = [
            pack(os.urandom(8), b"%d" % number, FrameFormat.BC0LC0)
            for number in range(count)
        ]
        # Many frames share few start times: among equal scores, their bytes say where they are.
        members = {frame: NOW_MS + number // 50 for number, frame in enumerate(frames)}
        client.zadd(keys.timeout_set, members)
        client.rpush(keys.delay_queue, *frames)
        return frames

    @pytest.mark.parametrize("page", [1, 7, 100, 1000])
    def test_every_frame_is_read_once_in_order(
        self, client: redis.Redis, keys: QueueKeys, insertion_list: bool, page: int
    ) -> None:
        frames = self.fill(client, keys, 150)
        if not insertion_list:
            frames = client.zrange(keys.timeout_set, 0, -1)

        pages = [found for found, _ in self.walk(client, keys, insertion_list, page)]

        assert [frame for found in pages for frame in found] == frames
        assert all(len(found) <= page for found in pages)

    def test_empty_queue_is_one_page(
        self, client: redis.Redis, keys: QueueKeys, insertion_list: bool
    ) -> None:
        assert [found for found, _ in self.walk(client, keys, insertion_list, 10)] == [
            []
        ]

    def test_page_of_large_frames_is_cut_by_size(
        self, client: redis.Redis, keys: QueueKeys, insertion_list: bool
    ) -> None:
        for number in range(20):
            frame = pack(os.urandom(8), b"x" * 200_000, FrameFormat.BC0LC0)
            client.zadd(keys.timeout_set, {frame: NOW_MS + number})
            client.rpush(keys.delay_queue, frame)

        pages = [found for found, _ in self.walk(client, keys, insertion_list, 100)]

        assert sum(len(found) for found in pages) == 20
        assert all(sum(map(len, found)) < 4 << 20 for found in pages)

    @pytest.mark.parametrize("seed", range(10))
    def test_what_stays_is_seen_whatever_goes_and_comes_meanwhile(
        self, client: redis.Redis, keys: QueueKeys, insertion_list: bool, seed: int
    ) -> None:
        chance = random.Random(seed)
        frames = self.fill(client, keys, 400)
        staying = set(frames)
        seen: set[bytes] = set()

        for found, _ in self.walk(client, keys, insertion_list, 40):
            seen |= set(found)
            going = chance.sample(sorted(staying), min(len(staying) // 2, 25))
            if chance.random() < 0.5 and found:
                going.append(found[-1])  # the cursor's frame
            for frame in going:
                client.lrem(keys.delay_queue, 1, frame)
                client.zrem(keys.timeout_set, frame)
                staying.discard(frame)
            for _ in range(chance.randrange(3)):
                frame = pack(os.urandom(8), b"new", FrameFormat.BC0LC0)
                client.zadd(keys.timeout_set, {frame: NOW_MS + chance.randrange(8)})
                client.rpush(keys.delay_queue, frame)

        assert staying <= seen

    def test_what_stays_is_seen_though_more_than_a_page_before_it_is_taken_out(
        self, client: redis.Redis, keys: QueueKeys, insertion_list: bool
    ) -> None:
        frames = self.fill(client, keys, 200)
        seen: list[bytes] = []

        for found, _ in self.walk(client, keys, insertion_list, 10):
            seen += found
            if len(seen) == 60:
                # All but the frame that holds the place.
                for frame in seen[:-1]:
                    client.lrem(keys.delay_queue, 1, frame)
                    client.zrem(keys.timeout_set, frame)

        assert sorted(seen) == sorted(frames)

    def test_page_behind_a_large_frame_costs_no_more_than_the_page_that_has_it(
        self, client: redis.Redis, keys: QueueKeys, insertion_list: bool
    ) -> None:
        for number, body in enumerate((b"x" * (1 << 20), b"last")):
            frame = pack(bytes([number] * 8), body, FrameFormat.BC0LC0)
            client.zadd(keys.timeout_set, {frame: NOW_MS})
            client.rpush(keys.delay_queue, frame)
        _, cursor = next(self.walk(client, keys, insertion_list, 1))

        def cost_s(cursor: Cursor) -> float:
            """Return the processor time of the server for a page, where nothing else held it up."""
            costs = []
            for _ in range(7):
                before = client.info("cpu")
                next(self.walk(client, keys, insertion_list, 1, cursor))
                after = client.info("cpu")
                costs.append(
                    sum(
                        after[key] - before[key]
                        for key in ("used_cpu_user", "used_cpu_sys")
                    )
                )
            return min(costs)

        # A search in Lua that compares the frame with itself costs fourteen times as much.
        assert cost_s(cursor) < 5 * cost_s(START)

    def test_frame_that_holds_the_place_may_be_moved_and_hides_none(
        self, client: redis.Redis, keys: QueueKeys
    ) -> None:
        frames = self.fill(client, keys, 100)
        seen: list[bytes] = []

        for found, _ in self.walk(client, keys, False, 30):
            seen += found
            if len(seen) == 30:
                # As when a job is given a later start time.
                client.zadd(keys.timeout_set, {found[-1]: NOW_MS + 1_000})

        assert set(seen) == set(frames)
        assert len(seen) == 101

    def test_contains_finds_each_payload_on_its_page(
        self, client: redis.Redis, keys: QueueKeys, insertion_list: bool
    ) -> None:
        self.fill(client, keys, 100)
        cursor, found = START, []
        while not cursor.is_at_end:
            sought = run(
                client,
                script_calls.contains(
                    keys,
                    [b"99", b"no", b"0", b"50"],
                    cursor,
                    insertion_list=insertion_list,
                    page=30,
                ),
            )
            cursor = sought.cursor
            found.append(sorted(sought.indexes))

        assert sorted(index for indexes in found for index in indexes) == [0, 2, 3]
        assert len(found) == 4

"""Payloads that the golden files of the versions do not hold, with a live Redisson on the other side.

Everything in tests/golden/extra.jsonl, null, a value of every class in ``django_delayq.codecs.values``, and queues
whose codec is not the one that they are read with.
"""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import redis

from django_delayq.codecs import get_codec
from django_delayq.codecs.values import (
    BigInteger,
    Byte,
    Char,
    Double,
    Float,
    Instant,
    Integer,
    JavaEnum,
    JavaList,
    JavaMap,
    JavaSet,
    JavaValue,
    Long,
    Short,
)
from django_delayq.core import queue_reads
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.states import State
from django_delayq.exceptions import DecodeError, EncodeError
from django_delayq.jobs.decorator import queue_handler
from django_delayq.queues.blocking_queue import BlockingQueue
from django_delayq.queues.delayed_queue import DelayedQueue
from django_delayq.transport.run import run
from tests.codecs.extra import (
    COMPRESSING,
    KRYO,
    RIVER,
    VALUES,
    extra_codec,
    rows,
)
from tests.codecs.vectors import codec_of, payload_of
from tests.interop.codecs import codecs_of, java_name, python_name
from tests.interop.golden import in_parts
from tests.interop.peers import Peer, PeerError, PeerOf
from tests.interop.values import describe, normal, order
from tests.polling import wait_until
from tests.servers import Server
from tests.worker.workers import InlineWorker

JSON = "JsonJacksonCodec"
WITHOUT_NULL = (
    "StringCodec",
    "LongCodec",
    "IntegerCodec",
    "DoubleCodec",
    "ByteArrayCodec",
)


def read_by(peer: Peer, codec: str, payload: bytes) -> Any:
    return peer.call("decode", codec=java_name(codec), payload=in_parts(payload.hex()))


@pytest.mark.parametrize("version", ["3.12.5", "3.16.6", "3.20.1", "4.7.0"])
def test_extra_golden_payloads_are_what_redisson_writes(
    version: str, peer_of: PeerOf
) -> None:
    peer = peer_of(version)
    # 3.20.1 has the JBoss Marshalling of 3.16.6.
    codecs = {KRYO, *COMPRESSING, *([RIVER] if version in ("3.12.5", "3.16.6") else [])}
    found = [
        row for row in rows() if version in row["versions"] and row["codec"] in codecs
    ]
    assert len({row["codec"] for row in found}) >= 4

    for row in found:
        payload, codec = payload_of(row), row["codec"]
        assert payload is not None
        description = describe(VALUES[row["label"]].value)
        # What we write is the same bytes, see tests/codecs/test_extra.py; so this is what it reads of ours.
        written = peer.call("encode", codec=codec, value=description)
        assert written == payload.hex(), (codec, row["label"])
        found_again = normal(read_by(peer, codec, payload))
        assert (found_again == normal(description)) is row["equal"]


@pytest.mark.parametrize("count", [65_534, 65_535, 65_536, 65_537, 70_000])
def test_text_far_back_is_named_as_java_names_it(count: int, peer_of: PeerOf) -> None:
    peer, codec = peer_of("3.16.6"), extra_codec(RIVER, "3.16.6")
    value = ["far", *map(str, range(count)), "far"]

    payload = bytes.fromhex(peer.call("encode", codec=RIVER, value=describe(value)))

    assert codec.encode(value) == payload
    assert codec.decode(payload) == value
    assert read_by(peer, RIVER, payload) == describe(value)


# null


@pytest.mark.parametrize("version", ["3.12.5", "4.7.0"])
def test_null_is_written_by_the_same_codecs_as_in_java(
    version: str, peer_of: PeerOf
) -> None:
    peer = peer_of(version)
    for name in codecs_of(version):
        if python_name(version, name) in ("FstCodec", "SerializationCodec"):
            continue
        codec = get_codec(python_name(version, name), version=version)
        if name in WITHOUT_NULL:
            with pytest.raises(PeerError, match="NullPointerException"):
                peer.call("encode", codec=name, value=["null"])
            with pytest.raises(EncodeError):
                codec.encode(None)
            continue
        payload = peer.call("encode", codec=java_name(name), value=["null"])
        assert codec.encode(None).hex() == payload
        assert codec.decode(bytes.fromhex(payload)) is None
        assert read_by(peer, name, codec.encode(None)) == ["null"]


@pytest.mark.parametrize("codec", [KRYO, JSON])
def test_null_goes_through_a_queue_both_ways(
    codec: str,
    peer_of: PeerOf,
    interop_client: redis.Redis,
    name: str,
) -> None:
    peer = peer_of("4.7.0")
    options: dict[str, Any] = {"codec": codec, "connection": interop_client}

    peer.call(
        "offer", queue=name, codec=codec, items=[[["null"], 1], [["String", "x"], 30]]
    )
    with BlockingQueue(name, **options) as queue:
        assert queue.poll(20) is None
        assert queue.poll(20) == "x"
    with DelayedQueue(name, frame_format="4.7.0", **options) as delayed:
        delayed.offer(None, 0.001)
        delayed.offer("y", 0.03)
        # take() of Peer.java leaves null out.
        taken = peer.call("take", queue=name, codec=codec, count=1, timeout_ms=20_000)
    assert taken == [["String", "y"]]
    assert interop_client.llen(name) == 0
    peer.call("destroy", queue=name)


# A value of every class


class Typed(NamedTuple):
    """A value of ours, and what Java has to say of it when it has read it."""

    value: object
    read: list[Any]
    #: Of KRYO, RIVER and JSON, and those of a version, where it is refused, or no Java reads it as this class: what
    #: Java writes for it has no class either, or cannot be read by Java itself.
    not_by: tuple[str, ...] = ()


def items(*values: object) -> list[Any]:
    return [describe(value) for value in values]


def pairs(**values: object) -> list[Any]:
    return [[describe(key), describe(value)] for key, value in values.items()]


_COLLECTIONS, _IMMUTABLE = (
    "java.util.Collections$",
    "java.util.ImmutableCollections$",
)
#: Without their class in JSON, so that Java itself cannot read them back.
_BARE = (JSON,)

TYPED = [
    Typed(Byte(-7), ["Byte", "-7"]),
    Typed(Short(-300), ["Short", "-300"]),
    Typed(Integer(5), ["Integer", "5"]),
    Typed(Long(5), ["Long", "5"]),
    Typed(BigInteger(5), ["BigInteger", "5"]),
    Typed(BigInteger(2**100), ["BigInteger", str(2**100)]),
    Typed(Float(0.1), ["Float", "0.1"]),
    Typed(Double(0.5), ["Double", "0.5"]),
    Typed(Char("订"), ["Character", "订"]),
    Typed(5, ["Integer", "5"]),
    Typed(2**31, ["Long", str(2**31)]),
    Typed(2**63, ["BigInteger", str(2**63)]),
    Typed(0.5, ["Double", "0.5"]),
    Typed(True, ["Boolean", True]),
    Typed("订", ["String", "订"]),
    Typed(b"\x00\xff", ["byte[]", "00ff"]),
    Typed(Decimal("12.340"), ["BigDecimal", "12.340"]),
    Typed(UUID(int=5), ["UUID", str(UUID(int=5))], (f"{KRYO} 3.16.6",)),
    Typed(datetime(2026, 11, 21, tzinfo=UTC), ["Date", "1795219200000"]),
    Typed(Instant(5, 7), ["Instant", "5:7"], (JSON,)),
    Typed(datetime(2024, 2, 29, 12, 30, 1), ["other", "java.time.LocalDateTime", "2024-02-29T12:30:01"], (JSON,)),
    Typed(date(2024, 2, 29), ["other", "java.time.LocalDate", "2024-02-29"], (JSON,)),
    Typed(time(1, 2, 3), ["other", "java.time.LocalTime", "01:02:03"], (JSON,)),
    Typed(timedelta(seconds=61), ["other", "java.time.Duration", "PT1M1S"], (JSON,)),
    Typed(JavaEnum("demo.Order$Status", "PAID"), ["demo.Order$Status", "PAID"]),
    Typed(JavaEnum("java.util.concurrent.TimeUnit", "DAYS"), ["java.util.concurrent.TimeUnit", "DAYS"]),
    Typed(order(5, "张三"), describe(order(5, "张三")), (JSON,)),
    Typed(order(5, "张三", is_typed=False), describe(order(5, "张三")), (KRYO, RIVER)),
    *(
        Typed(JavaList(["a", 1], name), [name, items("a", 1)])
        for name in ("java.util.ArrayList", "java.util.LinkedList", "[Ljava.lang.Object;")
    ),
    Typed(JavaList(["a", "b"], "java.util.Arrays$ArrayList"), ["java.util.Arrays$ArrayList", items("a", "b")], (JSON,)),
    Typed(JavaList(["a"], f"{_COLLECTIONS}UnmodifiableRandomAccessList"), [f"{_COLLECTIONS}UnmodifiableRandomAccessList", items("a")], (KRYO,)),
    Typed(JavaList(["a"], f"{_COLLECTIONS}SingletonList"), [f"{_COLLECTIONS}SingletonList", items("a")]),
    Typed(JavaList([], f"{_COLLECTIONS}EmptyList"), [f"{_COLLECTIONS}EmptyList", []]),
    Typed(JavaList(["a", "b"], f"{_IMMUTABLE}List12"), [f"{_IMMUTABLE}List12", items("a", "b")], _BARE),
    Typed(JavaList(["a", "b", "c"], f"{_IMMUTABLE}ListN"), [f"{_IMMUTABLE}ListN", items("a", "b", "c")], _BARE),
    Typed(JavaList(["a", None], "[Ljava.lang.String;"), ["[Ljava.lang.String;", items("a", None)], _BARE),
    Typed(JavaList([1, None], "[Ljava.lang.Integer;"), ["[Ljava.lang.Integer;", items(1, None)], _BARE),
    Typed(JavaList([1, -1], "[I"), ["[I", items(1, -1)], _BARE),
    Typed(JavaList([1, 2**40], "[J"), ["[J", items(Long(1), Long(2**40))], _BARE),
    Typed(JavaList([1, -1], "[S"), ["[S", items(Short(1), Short(-1))], _BARE),
    Typed(JavaList([0.5], "[D"), ["[D", items(0.5)], _BARE),
    Typed(JavaList([0.5], "[F"), ["[F", items(Float(0.5))], _BARE),
    Typed(JavaList([True, False], "[Z"), ["[Z", items(True, False)], _BARE),
    Typed(JavaList(["a", "订"], "[C"), ["[C", items(Char("a"), Char("订"))], _BARE),
    *(
        Typed(JavaMap({"a": 1}, name), [name, pairs(a=1)])
        for name in (
            "java.util.HashMap", "java.util.LinkedHashMap", "java.util.TreeMap",
            "java.util.concurrent.ConcurrentHashMap", f"{_COLLECTIONS}SingletonMap",
            "java.util.Hashtable",
        )
    ),
    Typed(JavaMap({"a": 1}, f"{_COLLECTIONS}UnmodifiableMap"), [f"{_COLLECTIONS}UnmodifiableMap", pairs(a=1)], (KRYO,)),
    Typed(JavaMap({}, f"{_COLLECTIONS}EmptyMap"), [f"{_COLLECTIONS}EmptyMap", []]),
    Typed(JavaMap({"a": 1}, f"{_IMMUTABLE}Map1"), [f"{_IMMUTABLE}Map1", pairs(a=1)], _BARE),
    Typed({"a"}, ["java.util.HashSet", items("a")]),
    *(
        Typed(JavaSet(["a", "b"], name), [name, items("a", "b")])
        for name in ("java.util.LinkedHashSet", "java.util.TreeSet")
    ),
    Typed(JavaSet(["a"], f"{_COLLECTIONS}UnmodifiableSet"), [f"{_COLLECTIONS}UnmodifiableSet", items("a")], (KRYO,)),
    Typed(JavaSet(["a"], f"{_COLLECTIONS}SingletonSet"), [f"{_COLLECTIONS}SingletonSet", items("a")]),
    Typed(JavaSet([], f"{_COLLECTIONS}EmptySet"), [f"{_COLLECTIONS}EmptySet", []]),
    Typed(JavaSet(["a"], f"{_IMMUTABLE}Set12"), [f"{_IMMUTABLE}Set12", items("a")], _BARE),
    Typed(JavaValue("java.util.Locale", "zh_CN"), ["other", "java.util.Locale", "zh_CN"]),
    Typed(JavaValue("java.lang.Class", "java.lang.String"), ["other", "java.lang.Class", "class java.lang.String"]),
    Typed(JavaValue("java.net.URL", "https://example.org/a"), ["other", "java.net.URL", "https://example.org/a"]),
    Typed(JavaValue("java.util.Optional", "x"), ["other", "java.util.Optional", "Optional[x]"], (RIVER, JSON)),
    Typed(JavaValue("java.time.OffsetDateTime", "2024-02-29T12:00+08:00"), ["other", "java.time.OffsetDateTime", "2024-02-29T12:00+08:00"], (JSON,)),
    Typed(JavaValue("java.time.ZonedDateTime", "2024-02-29T12:00+08:00[Asia/Shanghai]"), ["other", "java.time.ZonedDateTime", "2024-02-29T12:00+08:00[Asia/Shanghai]"], (JSON,)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "name_"),
    [("3.16.6", KRYO), ("4.7.0", KRYO), ("3.16.6", RIVER), ("3.16.6", JSON), ("4.7.0", JSON)],
)  # fmt: skip
def test_java_reads_each_value_as_the_class_that_python_chose(
    version: str, name_: str, peer_of: PeerOf
) -> None:
    peer, codec = peer_of(version), codec_of(name_, version)
    wrong = {}

    for typed in TYPED:
        is_not_by = bool({name_, f"{name_} {version}"} & {*typed.not_by})
        value, read = [typed.value], ["java.util.ArrayList", [typed.read]]
        cases = [(value, read)]
        # By itself a value has no class in JSON; docs/codecs.md says which have.
        cases += [(typed.value, typed.read)] * (name_ != JSON)
        for value, read in cases:
            try:
                found = normal(read_by(peer, name_, codec.encode(value)))
            except (EncodeError, PeerError) as error:
                found = f"{type(error).__name__}: {error}"[:300]
            if (found == normal(read)) is is_not_by:
                wrong[repr(value)] = found

    assert wrong == {}


# A codec that is not that of the queue

#: What Java writes with, and what is said of it.
FOREIGN = {
    "LZ4Codec(Kryo5Codec)": "it looks like LZ4Codec, and is read with JsonJacksonCodec",
    "SnappyCodecV2(StringCodec)": "it fits no known codec; perhaps the other program has its own codec, or one that encrypts or compresses",
    "CompositeCodec(StringCodec,StringCodec,Kryo5Codec)": "it looks like Kryo5Codec, and is read with JsonJacksonCodec",
    "SecretCodec(StringCodec)": "it fits no known codec; perhaps the other program has its own codec, or one that encrypts or compresses",
}  # fmt: skip
ORDER = "order 42: " + "cancel it unless it has been paid, " * 4


@pytest.fixture
def foreign(peer_of: PeerOf, name: str, settings: Any, interop_server: Server) -> str:
    """A queue with an element of each foreign codec, and a good one behind them."""
    settings.DELAYQ = {
        "CONNECTION": interop_server.url,
        "QUEUES": {name: {"REDISSON": "4.7.0", "CODEC": JSON}},
    }
    peer = peer_of("4.7.0")
    for n, codec in enumerate([*FOREIGN, JSON]):
        item = [["String", ORDER], 100 + 10 * n]
        peer.call("offer", queue=name, codec=codec, items=[item])
        peer.call("destroy", queue=name)
    return name


def assert_quarantined(client: redis.Redis, name: str, peer: Peer) -> None:
    """Each foreign payload is kept as it was, with a reason that says what it looks like."""
    in_quarantine = queue_reads.page(DeliveryKeys.of(name), State.QUARANTINED)
    # A worker tells of them as it goes on.
    rows = wait_until(
        lambda: len(rows := run(client, in_quarantine).rows) == len(FOREIGN) and rows,
        description="all foreign ones are in the quarantine",
    )
    found = {row.payload.hex(): row.error.decode() for row in rows}
    for codec, said in FOREIGN.items():
        payload = peer.call("encode", codec=codec, value=["String", ORDER])
        assert said in found[payload].replace("\\u0027", "'"), codec


def test_blocking_queue_quarantines_what_another_codec_wrote_and_goes_on(
    foreign: str, peer_of: PeerOf, interop_client: redis.Redis
) -> None:
    delayed = DelayedQueue(foreign, connection=interop_client)
    refused = []
    with BlockingQueue(foreign, connection=interop_client) as queue:
        for _ in FOREIGN:
            with pytest.raises(DecodeError) as caught:
                queue.poll(20)
            refused.append(str(caught.value))
        assert queue.poll(20) == ORDER
    delayed.destroy()

    for message, said in zip(refused, FOREIGN.values(), strict=True):
        assert said in message
    assert_quarantined(interop_client, foreign, peer_of("4.7.0"))


def test_worker_quarantines_what_another_codec_wrote_and_goes_on(
    foreign: str, peer_of: PeerOf, interop_client: redis.Redis
) -> None:
    handled: list[object] = []

    @queue_handler(foreign, name=f"{foreign}.handler")
    def handle(value: object) -> None:
        handled.append(value)

    worker = InlineWorker([foreign]).start()

    try:
        wait_until(lambda: handled, description="the good one has been handled")
        assert handled == [ORDER]
        assert_quarantined(interop_client, foreign, peer_of("4.7.0"))
    finally:
        worker.stop(grace_s=0)

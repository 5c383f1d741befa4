import json
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import models
from django.http import QueryDict
from django.http.request import HttpHeaders
from django.utils.datastructures import MultiValueDict
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given, settings
from hypothesis import strategies as st

from django_delayq import DecodeError, EncodeError, InvalidArguments
from django_delayq.codecs import Codec, get_codec
from django_delayq.codecs.known_codecs import CODEC_NAMES
from django_delayq.codecs.values import Char, JavaMap, Long
from django_delayq.exceptions import NotSigned
from django_delayq.jobs import json_values, stored_results
from django_delayq.jobs.envelope import (
    Envelope,
    encode,
    open_payload,
    peek_task,
    task_text,
)
from django_delayq.jobs.json_values import MAX_DEPTH, plain, plain_value
from django_delayq.wire import signatures as signing
from django_delayq.wire.signatures import Keyring

TOKEN = "AbCdEfGhIjKlMnOpQrSt-_"

KEYS = Keyring(["a secret of this test alone"])
QUEUE = "default"

#: Calls, and the bytes that have to stay what they are: jobs wait for years.
LITERAL = [
    (
        Envelope("app.tasks.send"),
        b'{"delayq":"AbCdEfGhIjKlMnOpQrSt-_","mac":"2yxQ8791dc9b6a525f143637b381eb97d9637","body":"{\\"task\\":\\"app.tasks.send\\"}"}',
    ),
    (
        Envelope("t", [1, -2.5, "x", None, True], {}),
        b'{"delayq":"AbCdEfGhIjKlMnOpQrSt-_","mac":"2yxQ8f3b9045768c9e0d188feb78fdfa76574",'
        b'"body":"{\\"task\\":\\"t\\",\\"args\\":[1,-2.5,\\"x\\",null,true]}"}',
    ),
    (
        Envelope("t", [], {"a": [{"b": []}], "c": ""}),
        b'{"delayq":"AbCdEfGhIjKlMnOpQrSt-_","mac":"2yxQ8cfa3f02637420508455e27d735bfb245",'
        b'"body":"{\\"task\\":\\"t\\",\\"kwargs\\":{\\"a\\":[{\\"b\\":[]}],\\"c\\":\\"\\"}}"}',
    ),
    (
        Envelope("t", [1], {"a": 2}, {"max_attempts": 1}),
        b'{"delayq":"AbCdEfGhIjKlMnOpQrSt-_","mac":"2yxQ8b15552734eea085bf926c8fdaf328b39",'
        b'"body":"{\\"task\\":\\"t\\",\\"args\\":[1],\\"kwargs\\":{\\"a\\":2},\\"options\\":{\\"max_attempts\\":1}}"}',
    ),
    (
        Envelope("t", ['\u00fc\u20ac\U0001f600 "\\\n\x00/']),
        b'{"delayq":"AbCdEfGhIjKlMnOpQrSt-_","mac":"2yxQ84cb752278fb31c14a34ed85579764498","body":"{\\"task\\":\\"t\\",'
        b'\\"args\\":[\\"\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80 \\\\\\"\\\\\\\\\\\\n\\\\u0000/\\"]}"}',
    ),
    (
        Envelope("t", at=1_700_000_000_000, headers={"trace": "1"}),
        b'{"delayq":"AbCdEfGhIjKlMnOpQrSt-_","mac":"2yxQ888b94fe65d016d4d0c3d1f76ff6127ac","body":"{\\"task\\":\\"t\\",'
        b'\\"at\\":1700000000000,\\"headers\\":{\\"trace\\":\\"1\\"}}"}',
    ),
]


def write(envelope: Envelope, codec: Codec | None = None) -> bytes:
    return encode(envelope, TOKEN, QUEUE, KEYS, codec)


def read(payload: bytes, codec: Codec | None = None, queue: str = QUEUE) -> Envelope:
    return open_payload(payload, queue, KEYS, codec)


@pytest.mark.parametrize(("envelope", "payload"), LITERAL)
def test_envelope_has_these_bytes(envelope: Envelope, payload: bytes) -> None:
    assert (write(envelope), read(payload)) == (payload, envelope)


@pytest.mark.parametrize("version", ["3.9.0", "3.16.6", "3.20.1", "3.27.2", "4.7.0"])
@pytest.mark.parametrize("envelope", [envelope for envelope, _ in LITERAL])
def test_envelope_travels_in_the_codecs_of_a_shared_queue(
    version: str, envelope: Envelope
) -> None:
    for name in ("StringCodec", "JsonJacksonCodec", "TypedJsonJacksonCodec"):
        codec = get_codec(name, version=version)

        payload = write(envelope, codec)

        assert read(payload, codec) == envelope
        assert TOKEN.encode() in payload[:120]


def test_plain_envelope_is_read_on_a_shared_queue_too() -> None:
    """Scheduled before the queue was shared, or by a process that does not know yet."""
    envelope, payload = LITERAL[3]

    for name in ("Kryo5Codec", "MarshallingCodec", "JsonJacksonCodec"):
        assert read(payload, get_codec(name, version="3.20.1")) == envelope


#: Every codec, and none.
CODECS = {name: get_codec(name) for name in CODEC_NAMES} | {"none": None}


@pytest.mark.parametrize("before", CODECS)
def test_job_is_read_whichever_codec_its_queue_has_by_now(before: str) -> None:
    text = 'a "b" \\ é 漢 😀 \n\0'
    envelope = Envelope("app.tasks.größe", [text], {text: [text]})
    try:
        payload = write(envelope, CODECS[before])
    except EncodeError:
        assert before in ("LongCodec", "IntegerCodec", "DoubleCodec")
        return

    for after, codec in CODECS.items():
        assert read(payload, codec) == envelope, after


def test_text_that_a_codec_has_cut_needs_that_codec() -> None:
    envelope = Envelope("t", ["é" * 5_000])
    payload = write(envelope, CODECS["CborJacksonCodec"])

    for name, codec in CODECS.items():
        if "Cbor" in name:
            assert read(payload, codec) == envelope
            continue
        with pytest.raises(NotSigned, match="does not read it, and it") as refused:
            read(payload, codec)
        unfit = "json" if codec is None else name
        assert refused.value.missing == f"codec other than {unfit}"
        assert refused.value.data == payload


def test_text_that_another_codec_wrote_has_to_be_signed() -> None:
    payload = write(Envelope("t", [12]), CODECS["Kryo5Codec"])

    with pytest.raises(NotSigned, match="does not fit its token") as refused:
        read(payload.replace(b"12", b"13"), CODECS["StringCodec"])

    assert refused.value.missing == ""


@pytest.mark.parametrize(
    "value",
    [Char("订"), Long(5), b"{}", [], None, JavaMap({1: 2})],
    ids=lambda value: type(value).__name__,
)
def test_what_java_offered_is_no_envelope_whatever_its_type(value: Any) -> None:
    codec = get_codec("Kryo5Codec")
    payload = codec.encode(value)

    with pytest.raises(DecodeError, match="not a job") as refused:
        read(payload, codec)

    assert refused.value.data == payload


def test_fields_that_nobody_knows_are_passed_over() -> None:
    payload = LITERAL[0][1][:-1] + b',"since":"9.9"}'

    assert read(payload) == LITERAL[0][0]


def test_field_of_a_newer_version_is_passed_over() -> None:
    body = b'{"task":"t","newer":"9.9"}'
    mac = KEYS.signer.sign(QUEUE, TOKEN, body)
    payload = json.dumps({"delayq": TOKEN, "mac": mac, "body": body.decode()})

    assert read(payload.encode()) == Envelope("t")


@pytest.mark.parametrize(
    "body", [b"", b"5", b"{}", b'{"task":5}', b'{"task":"t","args":{}}', b"\xc3\xbc"]
)
def test_body_that_is_signed_and_no_call_is_a_decode_error(body: bytes) -> None:
    mac = KEYS.signer.sign(QUEUE, TOKEN, body)
    sealed = {"delayq": TOKEN, "mac": mac, "body": body.decode()}

    with pytest.raises(DecodeError, match="not a call that this version reads"):
        read(json.dumps(sealed).encode())


def changed(**fields: str) -> bytes:
    return json.dumps(json.loads(LITERAL[0][1]) | fields).encode()


SIGNATURE = json.loads(LITERAL[0][1])["mac"]


@pytest.mark.parametrize(
    ("payload", "said", "missing"),
    [
        (changed(delayq="x" * 22), "does not fit its token", ""),
        (changed(body='{"task":"app.tasks.drop"}'), "does not fit", ""),
        (changed(body='{"task": "app.tasks.send"}'), "does not fit", ""),
        (changed(mac=""), "has 0 characters instead of 37", ""),
        (changed(mac=SIGNATURE[:-1]), "has 36 characters", ""),
        (changed(mac=SIGNATURE + "A"), "has 38 characters", ""),
        (changed(mac=SIGNATURE[:-1] + "ü"), "does not fit", ""),
        (changed(mac=SIGNATURE[:5] + "a" * 32), "does not fit", ""),
        (changed(mac="3" + SIGNATURE[1:]), "in format '3'", "format 3"),
        (changed(mac="2abcd" + SIGNATURE[5:]), "with the key 'abcd'", "key abcd"),
        # Whoever made these up has them in no log and on no terminal.
        (changed(mac="\n" + SIGNATURE[1:]), r"in format '\n', which", ""),
        (changed(mac="2\x1b[2J" + SIGNATURE[5:]), r"key '\x1b[2J', and no key", ""),
        # The end of the token is the beginning of the body.
        (
            changed(delayq=TOKEN + "{", body='"task":"app.tasks.send"}'),
            "its token has 23 characters",
            "",
        ),
    ],
)
def test_what_nobody_has_signed_is_told_from_what_cannot_be_checked(
    payload: bytes, said: str, missing: str
) -> None:
    with pytest.raises(NotSigned, match=re.escape(said)) as refused:
        read(payload)

    assert (refused.value.missing, refused.value.data) == (missing, payload)


def test_seal_of_a_key_that_none_can_be_names_no_key() -> None:
    with pytest.raises(NotSigned, match="no key has such an id") as refused:
        Keyring(["a secret of a project"]).unseal(
            "here", b"\x1b[2J" + b"0" * 32 + b"text"
        )

    assert refused.value.missing == ""


def test_text_of_a_codec_that_is_no_unicode_is_nothing_that_we_have_signed() -> None:
    sealed = {"@class": "java.util.HashMap"} | json.loads(changed(body="\ud800"))
    codec = get_codec("JsonJacksonCodec", version="3.20.1")

    with pytest.raises(NotSigned, match="not Unicode"):
        read(json.dumps(sealed).encode(), codec)


def test_signature_is_of_one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(signing, "MARKS", ("3", "E"))
        payload = encode(
            Envelope("t", [1, 2]), TOKEN, QUEUE, Keyring(["a secret of this test"])
        )
    keyring = Keyring(["a secret of this test"])
    sealed = json.loads(payload)

    with pytest.raises(NotSigned, match="in format '3', and this version reads for"):
        open_payload(payload, QUEUE, keyring)
    sealed["mac"] = "2" + sealed["mac"][1:]
    with pytest.raises(NotSigned, match="does not fit its token"):
        open_payload(json.dumps(sealed).encode(), QUEUE, keyring)


def test_signature_is_of_one_queue() -> None:
    with pytest.raises(NotSigned, match="its queue 'other'"):
        read(LITERAL[0][1], queue="other")


def test_key_keeps_what_it_needs_of_few_queues_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signing, "QUEUES_KEPT", 3)
    signer = Keyring(["one secret for all"]).signer

    signatures = {f"q{n}": signer.sign(f"q{n}", TOKEN, b"{}") for n in range(10)}

    assert len(signer) <= 3
    assert len(set(signatures.values())) == 10
    for queue, signature in signatures.items():
        Keyring(["one secret for all"]).check(signature, queue, TOKEN, b"{}")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b"\xff\xfe",
        b'{"delayq":"x"}',
        b'{"delayq":5,"mac":"m","body":"b"}',
        b'{"delayq":"x","mac":"m","body":{}}',
        b'{"delayq":"x","mac":null,"body":"b"}',
        b'{"delayq":"\xff","mac":"m","body":"b"}',
        b'{"delayq":"x","mac":"m","body":"b"} trailing',
        b"[" * 100_000,
        b'{"delayq":"x","mac":"m","more":' + b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("codec", [None, "StringCodec", "JsonJacksonCodec"])
def test_what_is_no_envelope_is_a_decode_error_that_keeps_the_bytes(
    payload: bytes, codec: str | None
) -> None:
    with pytest.raises(DecodeError) as refused:
        read(payload, None if codec is None else get_codec(codec, version="3.20.1"))

    assert refused.value.data == payload


# Arguments.


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Suit(models.TextChoices):
    HEARTS = "H", "hearts"


class Year(models.IntegerChoices):
    FIRST = 1, "first"


class Text(str):
    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (None, None),
        (True, True),
        (0, 0),
        (-(2**63), -(2**63)),
        (2**64 - 1, 2**64 - 1),
        (2**64, 2**64),
        (10**30, 10**30),
        (1.5, 1.5),
        (-0.0, -0.0),
        (5e-324, 5e-324),
        ("", ""),
        ("ü€😀\0", "ü€😀\0"),
        ((1, (2,)), [1, [2]]),
        ([], []),
        ({}, {}),
        ({"a": {"b": (1,)}}, {"a": {"b": [1]}}),
        (Colour.RED, "red"),
        (Size.BIG, 3),
        (Suit.HEARTS, "H"),
        (Year.FIRST, 1),
        (mark_safe("<b>"), "<b>"),
        (Text("itself"), "itself"),
        ({Colour.RED: 1}, {"red": 1}),
    ],
)
def test_argument_arrives_as_json_brings_it_back(value: Any, arrives: Any) -> None:
    args, kwargs = plain([value], {"name": value})

    assert (args, kwargs) == ([arrives], {"name": arrives})
    back = read(write(Envelope("t", args, kwargs)))
    assert (back.args, back.kwargs) == (args, kwargs)
    assert [type(item) for item in back.args] == [type(arrives)]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cycle() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


class Plain(Enum):
    A = 1


def woken() -> object:
    raise AssertionError("the lazy object was asked what it stands for")


class Loud(bytes):
    """A value whose repr is long, secret and a query."""

    def __repr__(self) -> str:
        raise AssertionError("somebody's __repr__ was called")


def test_lazy_object_is_refused_and_not_woken() -> None:
    with pytest.raises(InvalidArguments, match="the primary key of what it stands for"):
        plain([SimpleLazyObject(woken)], {})


@pytest.mark.parametrize(
    "value", [Loud(), {Loud()}, b"hunter2" * 2_000_000], ids=["loud", "set", "long"]
)
def test_refused_argument_is_told_by_its_type_and_not_by_its_value(value: Any) -> None:
    with pytest.raises(InvalidArguments) as refused:
        plain([], {"password": [value]})

    assert "password[0] is of type" in str(refused.value)
    assert len(str(refused.value)) < 200
    assert "hunter2" not in str(refused.value)


@dataclass
class Data:
    """An argument that is no JSON."""

    a: int


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, "args[0] is nan, which JSON does not have; pass None or a string"),
        (math.inf, "args[0] is inf, which JSON does not have"),
        ({"a": [1, -math.inf]}, "args[0]['a'][1] is -inf"),
        (b"x", "args[0] is of type bytes, which is not JSON; pass text, such as base6"),
        ({1, 2}, "args[0] is of type set, which is not JSON; pass list(value) instead"),
        (deque([1]), "of type deque, which is not JSON; pass list(value) instead"),
        ({}.keys(), "of type dict_keys, which is not JSON; pass list(value) instead"),
        ({}.values(), "type dict_values, which is not JSON; pass list(value) instead"),
        (range(2), "of type range, which is not JSON; pass list(value) instead"),
        (iter([1]), "of type list_iterator, which is not JSON; pass list(value) ins"),
        (HttpHeaders({}), "type HttpHeaders, which is not JSON; pass dict(value) ins"),
        (Data(1), "of type Data, which is not JSON; pass dataclasses.asdict(value) i"),
        (
            QueryDict("a=1&a=2"),
            "args[0] is a QueryDict, which may have many values for a key, but JSON has"
            " only one; pass value.dict() for the last value of each key, or"
            " dict(value.lists()) for all of them",
        ),
        ({"x": [MultiValueDict({"a": [1, 2]})]}, "args[0]['x'][0] is a MultiValueDict"),
        (Decimal("1.5"), "of type Decimal, which is not JSON; pass str(value) instead"),
        (datetime(2030, 1, 1, tzinfo=UTC), "of type datetime, which is not JSON; pass"),
        (date(2030, 1, 1), "pass value.isoformat() instead"),
        (
            timedelta(1),
            "of type timedelta, which is not JSON; pass value.total_seconds()",
        ),
        (UUID(int=5), "of type UUID, which is not JSON; pass str(value) instead"),
        (PurePath("x"), "pass str(value) instead"),
        (Plain.A, "of type Plain, which is not JSON; pass value.value instead"),
        (object, "of type type"),
        (1j, "of type complex, which is not JSON; pass something that JSON has"),
        (gettext_lazy("hello"), "which is not JSON; pass str(value) instead"),
        (User(pk=5), "of type User, which is not JSON; pass its primary key, value.pk"),
        (
            User.objects.all(),
            "of type QuerySet, which is not JSON; pass a list of prim",
        ),
        ({5: 1}, "args[0] has the key 5 of type int; the keys of JSON are strings"),
        ({"a": {None: 1}}, "args[0]['a'] has the key None of type NoneType"),
        ([{"list": [object()]}], "args[0][0]['list'][0] is of type object"),
        (nested(MAX_DEPTH + 2), f"is nested more than {MAX_DEPTH} deep"),
        (nested(5_000), f"is nested more than {MAX_DEPTH} deep"),
        (cycle(), f"is nested more than {MAX_DEPTH} deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "value",
)
def test_argument_that_is_no_json_is_refused_with_path_value_and_advice(
    value: Any, said: str
) -> None:
    with pytest.raises(InvalidArguments) as refused:
        plain([value], {})
    assert said in str(refused.value)

    with pytest.raises(InvalidArguments) as refused:
        plain([1], {"user": value})
    assert said.replace("args[0]", "user") in str(refused.value)


def test_as_deep_as_is_allowed_is_allowed() -> None:
    args, _ = plain([nested(MAX_DEPTH)], {})

    assert read(write(Envelope("t", args))).args == args


def test_text_that_is_no_unicode_is_refused() -> None:
    args, kwargs = plain(["\ud800"], {})

    with pytest.raises(InvalidArguments, match="cannot be written as JSON"):
        write(Envelope("t", args, kwargs))


def test_arguments_are_copied_so_that_later_changes_do_not_matter() -> None:
    inner = [1]
    args, kwargs = plain([inner], {"a": {"b": inner}})

    inner.append(2)

    assert (args, kwargs) == ([[1]], {"a": {"b": [1]}})


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
)


@settings(max_examples=50)
@given(
    st.lists(values, max_size=4),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values),
)
def test_every_json_argument_comes_back_as_it_was(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    plain_args, plain_kwargs = plain(args, kwargs)
    assert (plain_args, plain_kwargs) == (args, kwargs)

    back = read(write(Envelope("t", plain_args, plain_kwargs)))

    assert (back.args, back.kwargs) == (args, kwargs)


# Results and errors.


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (
            stored_results.result_text("succeeded", result={"a": [1, None]}),
            {"state": "succeeded", "result": {"a": [1, None]}},
        ),
        (
            stored_results.result_text("succeeded"),
            {"state": "succeeded", "result": None},
        ),
        (
            stored_results.result_text("dead", error="ValueError: ü"),
            {"state": "dead", "error": "ValueError: ü"},
        ),
    ],
)
def test_result_comes_back_as_it_was_written(text: bytes, body: dict[str, Any]) -> None:
    assert stored_results.read_result(text) == body


def test_error_comes_back_as_it_was_written() -> None:
    text = stored_results.error_text("E: x", kind="failed", traceback="at", at_ms=5)

    assert stored_results.read_error(text) == {
        "error": "E: x",
        "kind": "failed",
        "traceback": "at",
        "at": 5,
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", None),
        (b"no json", {"error": "no json"}),
        (b"\xff", {"error": "\ufffd"}),
        (b"5", {"error": "5"}),
        (b"[]", {"error": "[]"}),
        (b'{"error":"e"}', {"error": "e"}),
    ],
)
def test_error_of_any_origin_can_be_shown(
    text: bytes, error: dict[str, Any] | None
) -> None:
    assert stored_results.read_error(text) == error


@pytest.mark.parametrize("value", [math.nan, object(), {1: 2}, b"x"])
def test_result_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArguments, match="its result"):
        json_values.plain_value(value, "its result")


class Unruly:
    """A codec of a project's own, with errors of its own."""

    name = "Unruly"

    def encode(self, value: object) -> bytes:
        raise ZeroDivisionError("not today")

    decode = encode


class Loose:
    """A codec in whose maps the scripts would find a job's token, and not its signature."""

    name = "Loose"

    def encode(self, value: object) -> bytes:
        if isinstance(value, str):
            return json.dumps(value).encode()
        return json.dumps(value, separators=(" , ", ":")).encode()

    def decode(self, data: bytes) -> object:
        return json.loads(data)


def test_codec_that_hides_the_signature_from_the_scripts_is_refused() -> None:
    with pytest.raises(EncodeError, match="would not find its token and signature"):
        write(Envelope("t"), Loose())


def test_error_of_a_codec_of_ones_own_becomes_one_of_ours() -> None:
    with pytest.raises(
        EncodeError, match="Unruly failed: ZeroDivisionError: not today"
    ):
        write(Envelope("t"), Unruly())
    with pytest.raises(DecodeError, match="not a job: not today") as raised:
        read(b"from Java", Unruly())

    assert raised.value.data == b"from Java"
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (LITERAL[0][1], b"app.tasks.send"),
        (write(Envelope('a "b" \\ ü')), task_text('a "b" \\ ü')),
        (
            b'{"@class":"java.util.LinkedHashMap",' + LITERAL[0][1][1:],
            b"app.tasks.send",
        ),
        (b"\x05\x02" + LITERAL[0][1], b"app.tasks.send"),
        (b'{"delayq":"' + TOKEN.encode() + b'","body":"{}"}', None),
        (b'{"delayq":"short","task":"t"}', None),
        (LITERAL[0][1].replace(b"send", b"never ends" + b"x" * 999), None),
        (b" " * 10_000_000 + LITERAL[0][1], None),
        (b"", None),
    ],
    ids=range(9),
)
def test_task_is_peeked_without_decoding(payload: bytes, found: bytes | None) -> None:
    assert peek_task(payload) == found


class Level(IntEnum):
    HIGH = 3


class Color(StrEnum):
    RED = "r"


class Size(models.TextChoices):
    SMALL = "s"


class Loud(int):
    def __int__(self) -> int:
        return 0


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (Level.HIGH, 3),
        (Color.RED, "r"),
        (Size.SMALL, "s"),
        (mark_safe("<b>"), "<b>"),
        (Loud(5), 5),
        (Point(1, 2), [1, 2]),
        ((1, (2,)), [1, [2]]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Counter("aab"), {"a": 2, "b": 1}),
        ({Color.RED: True}, {"r": True}),
        (2**70, 2**70),
    ],
)
def test_what_json_narrows_without_a_loss_is_taken(given: Any, stored: Any) -> None:
    """The table of docs/howto/inside-a-task.md."""
    (args, kwargs), result = plain([given], {"a": [given]}), plain_value(given, "x")

    assert (args, kwargs, result) == ([stored], {"a": [stored]}, stored)
    for each in (args[0], result):
        assert type(each) is type(stored)
    assert json.loads(json.dumps(args)) == args


@pytest.mark.parametrize("key", [1, True, None, 1.5, (1,)])
def test_key_that_is_no_text_is_refused(key: Any) -> None:
    with pytest.raises(InvalidArguments, match="the keys of JSON are strings"):
        plain([{key: 1}], {})

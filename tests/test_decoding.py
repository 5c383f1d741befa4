"""Everything that others may have written goes through one class of decoders, which have bounds."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect
import pytest

import django_delayq
from django_delayq import decoder as decoding
from django_delayq.decoder import MAX_DEPTH, Decoder, score_of, whole_number
from django_delayq.exceptions import DecodeError

ROOT = Path(django_delayq.__file__).parent
#: What decodes on its own: the folder of the embedded server is ours alone; codecs have bounds of their own.
OTHERS = ("decoder.py", "embedded/", "codecs/", "testing/", "jobs/arguments.py")


def _decoders() -> Iterator[tuple[str, Decoder[Any]]]:
    for each in pkgutil.walk_packages([str(ROOT)], "django_delayq."):
        try:
            module = importlib.import_module(each.name)
        except ImportError:  # It needs a package that is not installed.
            continue
        for name, value in vars(module).items():
            found = getattr(value, "__self__", value)
            if isinstance(found, Decoder):
                yield f"{each.name}.{name}", found


def _parts_of(type: Any) -> list[Any]:
    found: list[Any] = []
    left: list[Any] = [msgspec.inspect.type_info(type)]
    while left:
        each = left.pop()
        if any(each is other or each == other for other in found):
            continue
        found.append(each)
        for name in (
            "item_type",
            "key_type",
            "value_type",
            "types",
            "item_types",
            "fields",
            "type",
        ):
            inner = getattr(each, name, ())
            left += inner if isinstance(inner, tuple) else [inner]
    return found


DECODERS = dict(_decoders())


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_of_what_others_write_has_bounds(name: str) -> None:
    decoder = DECODERS[name]
    if decoder.is_trusted:
        return

    parts = _parts_of(decoder.type)

    numbers = [
        each
        for each in parts
        if isinstance(each, msgspec.inspect.IntType | msgspec.inspect.FloatType)
    ]
    assert all(each.ge is not None and each.le is not None for each in numbers)
    is_open = any(isinstance(each, msgspec.inspect.AnyType) for each in parts)
    assert decoder.holds_any == is_open


def test_nothing_else_decodes() -> None:
    decodes = re.compile(
        r"json\.(decode|Decoder|loads?|JSONDecoder)\b|msgpack\.(decode|Decoder)\b"
    )

    for path in ROOT.rglob("*.py"):
        place = str(path.relative_to(ROOT))
        if not place.startswith(OTHERS):
            assert not decodes.search(path.read_text()), place


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 3_000 + b"]" * 3_000,
        b'{"a":' * 3_000 + b"1" + b"}" * 3_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"9" * 5_000,
        b"1e400",
        b"\xff",
        rb'"\ud800"',
        b"",
    ],
)
def test_what_is_beyond_the_bounds_is_an_error_of_ours(text: bytes) -> None:
    with pytest.raises(DecodeError, match=r"^it: "):
        Decoder[Any](Any, "it", holds_any=True).decode(text)


def test_what_cannot_be_read_is_said_once_for_each_kind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decoding, "_told", set())
    one, other = (Decoder[int](int, f"{kind} cannot be read") for kind in ("a", "b"))

    found = [one.read(text) for text in (b"nonsense", b"7", b"more")]
    found += [other.read(b"nonsense"), one.read(b"nonsense")]

    assert found == [None, 7, None, None, None]
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "a cannot be read",
        "b cannot be read",
    ]


def test_as_deep_as_the_bound_is_read() -> None:
    text = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)

    assert Decoder[Any](Any, holds_any=True).decode(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        ("17", 17),
        (b"9" * 16, 10**16 - 1),
        (b"9" * 17, None),
        (b"9" * 5_000, None),
        ("²", None),
        ("٣", None),
        (b"-1", None),
        (b"1e3", None),
        (b"", None),
    ],
)
def test_whole_number(text: bytes | str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        (b"1.5", 1),
        (2.0, 2),
        (b"inf", None),
        (b"nan", None),
        (b"", None),
        (None, None),
        (b"x", None),
    ],
)
def test_score(text: Any, ms: int | None) -> None:
    assert score_of(text) == ms

"""Values as readable JSON of bounded size: arguments, results, and whatever a codec reads."""

import json
from collections.abc import Callable, Mapping, Set
from itertools import islice
from typing import Any

from django_delayq.codecs.values import Instant, JavaEnum, JavaObject, JavaValue
from django_delayq.display.texts import PAGE_CHARACTERS, ROW_CHARACTERS, clean, cut
from django_delayq.redaction import HIDDEN, redact


class _Plain:
    """Turns values into readable JSON, up to a budget of characters.

    A decoder that follows Java's back references can make a tree of millions out of a hundred bytes; the budget stops it.
    """

    def __init__(self, budget: int) -> None:
        self._left = budget

    def __call__(self, value: object, depth: int = 0) -> Any:
        self._left -= 1
        if self._left <= 0 or depth > 120:
            return "…"
        match value:
            case None | bool() | float():
                return value
            case int():
                # Python refuses to print an integer of thousands of digits.
                return (
                    int(value)
                    if value.bit_length() < 4096
                    else f"<integer of {value.bit_length()} bits>"
                )
            case str():
                return self._text(str.__str__(value))
            case bytes() | bytearray():
                return self._text(f"<{len(value)} bytes> {bytes(value[:64]).hex()}")
            case dict():
                return self._mapping(value, depth)
            case list() | tuple() | Set():
                return self._items(value, depth)
            case JavaObject():
                return self._mapping(
                    {"@class": value.class_name, **value.fields}, depth
                )
            case JavaEnum():
                return self._text(f"{value.class_name}.{value.name}")
            case JavaValue():
                return self(value.value, depth + 1)
            case Instant():
                return f"{value.seconds}.{value.nano:09d} s since 1970"
            case _:
                return self._text(str(value))

    def _text(self, text: str) -> str:
        shown = redact(cut(text, max(self._left, 0)))
        self._left -= len(shown)
        return shown

    def _items(self, items: Any, depth: int) -> list[Any]:
        shown = []
        for item in islice(items, self._left):
            if self._left <= 0:
                break
            shown.append(self(item, depth + 1))
        return shown if len(shown) == len(items) else [*shown, "…"]

    def _mapping(self, items: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for key, item in items.items():
            if self._left <= 0:
                shown["…"] = "…"
                break
            name = (
                self._text(key)
                if isinstance(key, str)
                else self._text(json.dumps(self(key, depth + 1)))
            )
            shown[name] = self(item, depth + 1)
        return shown


def plain_value(value: object, limit: int = PAGE_CHARACTERS) -> Any:
    """Return a value as JSON can write it, of bounded size."""
    return _Plain(limit)(value)


def compact_json(value: object, limit: int = ROW_CHARACTERS) -> str:
    """Write a value in one line."""
    return cut(clean(json.dumps(_Plain(limit)(value), ensure_ascii=False)), limit)


def pretty_json(value: object, limit: int = PAGE_CHARACTERS) -> str:
    """Write a value in indented lines."""
    return cut(
        clean(json.dumps(_Plain(limit)(value), ensure_ascii=False, indent=2)), limit
    )


def value_text(value: object, write: Callable[[object], str] = pretty_json) -> str:
    """Write an argument or a result."""
    return repr(value) if value is HIDDEN else write(value)

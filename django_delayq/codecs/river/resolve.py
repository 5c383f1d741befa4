"""Python values for River's objects of the JDK's own classes.

An object becomes a JavaObject if we do not know its class, or not the form in which it is written.
The JavaObject keeps everything, and can be written back.
"""

import re
from collections.abc import Callable
from uuid import UUID

from django_delayq.codecs.decimals import as_decimal, read_big_integer
from django_delayq.codecs.river.classes import Block, ClassLayout
from django_delayq.codecs.values import (
    BigInteger,
    JavaList,
    JavaObject,
    JavaSet,
    JavaValue,
    java_date,
    java_map,
    java_set,
)

#: The field of a JavaObject for what its class wrote by itself, besides its fields.
WRITTEN = "#written"

#: A URL that its text alone can restore.
_PLAIN_URL = re.compile(
    r"[a-z][a-z0-9]*://[A-Za-z0-9.-]+(?:/[!-\"$->@-~]*)?(?:\?[!-\"$-~]+)?"
)

#: For each class of an object, topmost first: its layout, its fields, what it wrote besides.
Parts = list[tuple[ClassLayout, dict[str, object], tuple[object, ...]]]


def resolve_object(layout: ClassLayout, names: list[list[str]], parts: Parts) -> object:
    """Return the value of an object from its parts; ``names`` is what ``field_names`` returns.

    Raises:
        ValueError: the object is a map with keys that Python cannot hold, or a number out of bounds.
    """
    resolve = _RESOLVERS.get(layout.class_name)
    found = resolve(parts) if resolve else None
    return _as_object(layout, names, parts) if found is None else found


def field_names(layout: ClassLayout) -> list[list[str]]:
    """Return the names of a JavaObject's fields, for each of its classes, topmost first.

    If a subclass has a field of the same name, the field is named with its class: ``demo.Base#id``.
    """
    chain = layout.chain()
    names: list[list[str]] = []
    taken: set[str] = set()
    for level in reversed(chain):
        own = [name for name, _ in level.fields] + [WRITTEN] * level.writes_object
        names.append(
            [f"{level.class_name}#{name}" if name in taken else name for name in own]
        )
        taken.update(own)
    return names[::-1]


def _as_object(layout: ClassLayout, names: list[list[str]], parts: Parts) -> JavaObject:
    fields: dict[str, object] = {}
    for own, (level, values, written) in zip(names, parts, strict=True):
        fields.update(zip(own, values.values(), strict=False))
        if level.writes_object:
            fields[own[-1]] = written
    return JavaObject(layout.class_name, fields, layout)


def _written(parts: Parts, block_size: int) -> list[object] | None:
    """Return what the topmost class wrote after a block of ``block_size`` bytes, or None if it wrote otherwise."""
    written = parts[0][2]
    if (
        not written
        or not isinstance(written[0], Block)
        or len(written[0]) != block_size
    ):
        return None
    return (
        None
        if any(isinstance(part, Block) for part in written[1:])
        else list(written[1:])
    )


def _pairs(flat: list[object]) -> list[tuple[object, object]]:
    if len(flat) % 2:
        raise ValueError("a key without a value")
    return list(zip(flat[::2], flat[1::2], strict=True))


def _hash_map(parts: Parts) -> object:
    flat = _written(parts, 8)
    if flat is None or parts[-1][1].get("accessOrder"):
        return None
    return java_map(_pairs(flat), parts[-1][0].class_name)


def _tree_map(parts: Parts) -> object:
    flat = _written(parts, 4)
    if flat is None or parts[0][1].get("comparator") is not None:
        return None
    return java_map(_pairs(flat), "java.util.TreeMap")


def _concurrent_map(parts: Parts) -> object:
    written = parts[0][2]
    if len(written) < 2 or written[-2:] != (None, None):
        return None
    return java_map(_pairs(list(written[:-2])), parts[0][0].class_name)


def _hash_set(parts: Parts) -> object:
    items = _written(parts, 12)
    return None if items is None else java_set(items, parts[-1][0].class_name)


def _tree_set(parts: Parts) -> object:
    written = parts[0][2]
    if len(written) < 2 or written[0] is not None or not isinstance(written[1], Block):
        return None
    return JavaSet(written[2:], "java.util.TreeSet")


def _immutable(parts: Parts) -> object:
    items = _written(parts, 4)
    tag = parts[0][1].get("tag")
    if items is None:
        return None
    few = len(items) in (1, 2)
    if tag == 1:
        return JavaList(
            items, f"java.util.ImmutableCollections$List{'12' if few else 'N'}"
        )
    if tag == 2:
        return JavaSet(
            items, f"java.util.ImmutableCollections$Set{'12' if few else 'N'}"
        )
    if tag == 3:
        one = len(items) == 2
        return java_map(
            _pairs(items), f"java.util.ImmutableCollections$Map{'1' if one else 'N'}"
        )
    return None


def _date(parts: Parts) -> object:
    written = parts[0][2]
    if len(written) != 1 or not isinstance(written[0], Block) or len(written[0]) != 8:
        return None
    return java_date(int.from_bytes(written[0], "big", signed=True))


def _big_integer(parts: Parts) -> object:
    fields = parts[-1][1]
    magnitude, sign = fields.get("magnitude"), fields.get("signum")
    if not isinstance(magnitude, bytes) or sign not in (-1, 0, 1):
        return None
    found = read_big_integer(magnitude or b"\0", signed=False)
    return BigInteger(found * int(sign))


def _big_decimal(parts: Parts) -> object:
    fields = parts[-1][1]
    unscaled, scale = fields.get("intVal"), fields.get("scale")
    if not isinstance(unscaled, int) or not isinstance(scale, int):
        return None
    return as_decimal(unscaled, scale)


def _uuid(parts: Parts) -> object:
    fields = parts[0][1]
    least, most = fields.get("leastSigBits"), fields.get("mostSigBits")
    if not isinstance(least, int) or not isinstance(most, int):
        return None
    return UUID(int=(most % 2**64 << 64) | least % 2**64)


def _as_list(parts: Parts) -> object:
    items = parts[0][1].get("a")
    if not isinstance(items, list):
        return None
    return JavaList(items, "java.util.Arrays$ArrayList")


def _locale(parts: Parts) -> object:
    fields = parts[0][1]
    language, country = fields.get("language"), fields.get("country")
    if (fields.get("extensions"), fields.get("script"), fields.get("variant")) != (
        "",
        "",
        "",
    ):
        return None
    if not isinstance(language, str) or not isinstance(country, str) or not language:
        return None
    return JavaValue(
        "java.util.Locale", f"{language}_{country}" if country else language
    )


def _url(parts: Parts) -> object:
    fields = parts[0][1]
    text = f"{fields.get('protocol')}://{fields.get('authority')}{fields.get('file')}"
    plain = fields.get("host") == fields.get("authority") and fields.get("port") == -1
    if not plain or fields.get("ref") is not None or not _PLAIN_URL.fullmatch(text):
        return None
    return JavaValue("java.net.URL", text)


_RESOLVERS: dict[str, Callable[[Parts], object]] = {
    "java.math.BigDecimal": _big_decimal,
    "java.math.BigInteger": _big_integer,
    "java.net.URL": _url,
    "java.util.Arrays$ArrayList": _as_list,
    "java.util.CollSer": _immutable,
    "java.util.Date": _date,
    "java.util.HashMap": _hash_map,
    "java.util.HashSet": _hash_set,
    "java.util.LinkedHashMap": _hash_map,
    "java.util.LinkedHashSet": _hash_set,
    "java.util.Locale": _locale,
    "java.util.TreeMap": _tree_map,
    "java.util.TreeSet": _tree_set,
    "java.util.UUID": _uuid,
    "java.util.concurrent.ConcurrentHashMap": _concurrent_map,
}

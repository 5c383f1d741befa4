"""The tables of docs/codecs.md, made from the golden files, so that they say what the code does.

    python -m tests.codecs.page

writes them anew; a test compares them.
"""

from pathlib import Path

from django_delayq.codecs.values import JavaObject
from django_delayq.exceptions import DecodeError
from tests.codecs.listed import LISTED
from tests.codecs.test_golden import same
from tests.codecs.vectors import (
    codec_of,
    load,
    payload_of,
    value_of,
    versions_with,
)
from tests.pages import with_tables

PAGE = Path(__file__).parents[2] / "docs" / "codecs.md"

#: Each column and the codec that it shows, in its newest version.
COLUMNS = {
    "Kryo5": "Kryo5Codec",
    "Marshalling": "MarshallingCodec",
    "Json": "JsonJacksonCodec",
    "Cbor": "CborJacksonCodec",
    "MsgPack": "MsgPackJacksonCodec",
    "Smile": "SmileJacksonCodec",
    "Json 3": "JsonJackson3Codec",
    "Typed": "TypedJsonJacksonCodec(Object)",
    "Typed 3": "TypedJsonJackson3Codec(Object)",
    "Cbor 3": "CborJackson3Codec",
    "Smile 3": "SmileJackson3Codec",
}
#: Each row: the label of the golden value, what Java calls its type, what to write in Python.
ROWS = {
    "str.emoji": ("`String`", "`'😀'`"),
    "bool.true": ("`Boolean`", "`True`"),
    "int.1": ("`Integer`", "`1`"),
    "long.1": ("`Long` within 32 bits", "`Long(1)`"),
    "long.4294967296": ("`Long` beyond", "`4294967296`"),
    "double.0.1": ("`Double`", "`0.1`"),
    "float.0.1": ("`Float`", "`Float(0.1)`"),
    "byte.1": ("`Byte`", "`Byte(1)`"),
    "short.1": ("`Short`", "`Short(1)`"),
    "char.A": ("`Character`", "`Char('A')`"),
    "bytes.hello": ("`byte[]`", "`b'hello'`"),
    "bigint.-1": ("`BigInteger` within 64 bits", "`BigInteger(-1)`"),
    "bigint.2^100": ("`BigInteger` beyond", "`2**100`"),
    "bigdec.12.340": ("`BigDecimal`", "`Decimal('12.340')`"),
    "date": ("`Date`", "an aware `datetime`"),
    "instant": ("`Instant`", "`Instant(…)`, `Instant.of(…)`"),
    "localdatetime": ("`LocalDateTime`", "a naive `datetime`"),
    "localdate": ("`LocalDate`", "a `date`"),
    "localtime": ("`LocalTime`", "a `time`"),
    "duration": ("`Duration`", "a `timedelta`"),
    "offsetdatetime": ("`OffsetDateTime`", "`JavaValue`, ISO text"),
    "zoneddatetime": ("`ZonedDateTime`", "`JavaValue`, ISO text"),
    "uuid": ("`UUID`", "a `UUID`"),
    "enum": ("an enum", "`JavaEnum('demo.Status', 'PAID')`"),
    "locale": ("`Locale`", "`JavaValue(…, 'zh_CN')`"),
    "class": ("`Class`", "`JavaValue(…, 'java.lang.String')`"),
    "url": ("`URL`", "`JavaValue(…, 'https://…')`"),
    "optional": ("`Optional`", "`JavaValue(…, 'x')`"),
    "list.array.mixed": ("`ArrayList`", "`[…]`"),
    "list.linked": ("`LinkedList`", "`JavaList([…], …)`"),
    "list.asList": ("`Arrays.asList`", "`JavaList([…], …)`"),
    "list.of.3": ("`List.of`", "`JavaList([…], …)`"),
    "list.singleton": ("`singletonList`", "`JavaList([…], …)`"),
    "list.unmodifiable": ("`unmodifiableList`", "`JavaList([…], …)`"),
    "map.linked": ("`LinkedHashMap` with a null", "`{…}`"),
    "nested": ("`LinkedHashMap`, nested", "`{…}`"),
    "map.hash": ("`HashMap`", "`JavaMap({…}, …)`"),
    "map.tree": ("`TreeMap`", "`JavaMap({…}, …)`"),
    "map.concurrent": ("`ConcurrentHashMap`", "`JavaMap({…}, …)`"),
    "map.of": ("`Map.of`", "`JavaMap({…}, …)`"),
    "map.intkey": ("a map with `Integer` keys", "`{1: …}`"),
    "set.hash": ("`HashSet`", "`{…}`, a set"),
    "set.linked": ("`LinkedHashSet`", "`JavaSet([…])`"),
    "set.tree": ("`TreeSet`", "`JavaSet([…], …)`"),
    "set.of": ("`Set.of`", "`JavaSet([…], …)`"),
    "arr.object": ("`Object[]`", "`JavaList([…], …)`"),
    "arr.string": ("`String[]`", "`JavaList([…], …)`"),
    "arr.integer": ("`Integer[]`", "`JavaList([…], …)`"),
    "arr.int": ("`int[]`", "`JavaList([…], '[I')`"),
    "arr.double": ("`double[]`", "`JavaList([…], '[D')`"),
    "arr.char": ("`char[]`", "`JavaList([…], '[C')`"),
    "pojo": ("an object", "`JavaObject(…)`"),
    "pojo.not_serializable": ("one that is not `Serializable`", "`JavaObject(…)`"),
}  # fmt: skip


def cell(label: str, codec: str) -> str:
    """Say what becomes of a golden value in a codec's newest version."""
    version = list(versions_with(codec))[-1]
    row = load(version)[codec, label]
    payload = payload_of(row)
    if payload is None:
        return "–"
    try:
        found = codec_of(codec, version).decode(payload)
    except DecodeError:
        return "refused"
    want = value_of(row)
    lost = "°" if row.get("decode_error") else ""
    if _is_same(want, found):
        return f"✓{lost}"
    return f"`{type(found).__name__}`{lost}"


def _is_same(want: object, found: object) -> bool:
    if type(want) is not type(found) or not same(want, found):
        return False
    name = getattr(want, "class_name", "")
    if name != getattr(found, "class_name", ""):
        return False
    # The elements of a char[] are Chars, where the golden values have text.
    return name == "[C" or [type(item) for item in _inside(want)] == [
        type(item) for item in _inside(found)
    ]


def _inside(value: object) -> list[object]:
    if isinstance(value, JavaObject):
        return list(value.fields.values())
    return list(value.values()) if isinstance(value, dict) else (
        list(value) if isinstance(value, list) else []
    )  # fmt: skip


def types_table() -> str:
    """Return the table of Java types and codecs. Rows that say the same share one, and so do columns."""
    columns: dict[tuple[str, ...], list[str]] = {}
    for title, codec in COLUMNS.items():
        columns.setdefault(tuple(cell(label, codec) for label in ROWS), []).append(title)  # fmt: skip
    rows: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for words, cells in zip(ROWS.values(), zip(*columns, strict=True), strict=True):
        rows.setdefault(cells, []).append(words)
    heads = [", ".join(titles) for titles in columns.values()]
    lines = [f"| Java | in Python | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]  # fmt: skip
    for cells, found in rows.items():
        for python, java in _by_python(found):
            lines.append(f"| {java} | {python} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_python(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return what Python has with what Java has for it, in rows of which either has one name or both as many."""
    by_python: dict[str, list[str]] = {}
    for java, python in found:
        by_python.setdefault(python, []).append(java)
    alone = [(python, java[0]) for python, java in by_python.items() if len(java) == 1]
    shared = [(python, ", ".join(java)) for python, java in by_python.items() if len(java) > 1]  # fmt: skip
    if alone:
        pythons, javas = zip(*alone, strict=True)
        shared.insert(0, ("; ".join(pythons), "; ".join(javas)))
    return shared


def listed_table() -> str:
    """Return the table of what is not read or written to the letter."""
    said = {"read": "read", "write": "written", "again": "written back"}
    rows: dict[str, list[str]] = {}
    for codec, entries in LISTED.items():
        for entry in entries:
            claims = ", ".join(said[claim] for claim in entry.claims.split())
            labels = " ".join(f"`{label}`" for label in entry.labels.split())
            since = ".".join(map(str, entry.since))
            until = ".".join(map(str, entry.until))
            versions = " ".join(
                [f"from {since}"] * (since != "0") + [f"before {until}"] * (until != "99")
            )  # fmt: skip
            row = f"{labels} | {claims} | {entry.reason} | {versions or 'all'} |"
            names = rows.setdefault(row, [])
            if (name := f"`{codec.partition('(')[0]}`") not in names:
                names.append(name)
    lines = ["| codec | golden values | not | because | versions |", "|---|---|---|---|---|"]  # fmt: skip
    lines += [f"| {', '.join(names)} | {row}" for row, names in rows.items()]
    return "\n".join(lines)


def with_codecs(text: str) -> str:
    """Return the page with its tables made anew."""
    return with_tables(text, {"types": types_table(), "listed": listed_table()})


if __name__ == "__main__":
    PAGE.write_text(with_codecs(PAGE.read_text("utf-8")), "utf-8")

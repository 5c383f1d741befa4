"""Which codec has probably written a payload, told from its first bytes, for errors and commands.

Shapes only: nothing is decoded, and what is looked at is bounded, so any payload takes a few
microseconds. Short payloads fit several codecs; then all of them are named.
"""

import re
from collections.abc import Callable

#: Looked at of a payload, however long it is.
LOOKED_AT = 256
#: Values of CBOR or MessagePack that are walked over; a list of numbers needs no more.
_STEPS = 32
#: A binary text of so many bytes does not look like a printable one by chance.
_NO_CHANCE = 24

#: How well a payload fits.
_COULD, _FITS, _IS_TEXT, _MARKED, _SURE = 1, 3, 5, 7, 9

#: Of those that fit equally well, the one that is met more often comes first. The last four compress
#: what another codec wrote, and have no reader here.
_ORDER = (
    "Kryo5Codec",
    "MarshallingCodec",
    "FstCodec",
    "SerializationCodec",
    "StringCodec",
    "JsonJacksonCodec",
    "TypedJsonJacksonCodec",
    "json",
    "LongCodec",
    "IntegerCodec",
    "DoubleCodec",
    "JsonJackson3Codec",
    "TypedJsonJackson3Codec",
    "MsgPackJacksonCodec",
    "CborJacksonCodec",
    "CborJackson3Codec",
    "SmileJacksonCodec",
    "SmileJackson3Codec",
    "SnappyCodec",
    "SnappyCodecV2",
    "ZStdCodec",
    "LZ4Codec",
)
_PLACE = {name: place for place, name in enumerate(_ORDER)}
_TYPED_JSON = ("JsonJacksonCodec", "JsonJackson3Codec")
_PLAIN_JSON = ("TypedJsonJacksonCodec", "json", "TypedJsonJackson3Codec")
_ALL_JSON = (*_TYPED_JSON, *_PLAIN_JSON)

#: Each byte fits in one place only, so that no payload makes a search go back and forth.
_CLASS = rb"\[*(?:[A-Za-z_$][\w$]*(?:\.[\w$]+)+;?|[ZBCSIJFD])"
_TYPED = re.compile(rb'\{"@class":|\["' + _CLASS + rb'",')
_NAMED = re.compile(rb"@class.{1,5}" + _CLASS + rb"|\[?L?java\.\w+\.\w", re.DOTALL)
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:E[+-]?[0-9]+)?", re.ASCII)
_NO_PRINT = re.compile("[\0-\x08\x0e-\x1f]")
#: The last character has its top bit set, and may be beyond what is seen.
_KRYO_CLASS = re.compile(
    rb"\x01\x00(?:[\[\w.$;]{1,499}(?:[\xa4\xb0-\xb9\xbb\xc1-\xda\xdf\xe1-\xfa]|\Z)|[\x80-\xff])"
)
_KRYO_ASCII = re.compile(rb"[\x00-\x7f]{1,31}(?:[\x80-\xff]|\Z)")
_FST_CLASS = re.compile(rb"(?:\x00\x01|\xfa\x01|\xfb\x00).{1,3}" + _CLASS, re.DOTALL)
_RIVER_CLASS = re.compile(
    rb"\x04(?:[\x09\x38](?:\x3e.|\x3f..)|[\x0a\x0c]\0\0..)" + _CLASS, re.DOTALL
)


def probable_codecs(payload: bytes, *, size: int | None = None) -> tuple[str, ...]:
    """Return the names of the codecs that could have written a payload, the likeliest first.

    ``payload`` may be its first bytes only, some 256 of them, ``size`` is then how long it is.
    ``ByteArrayCodec`` is always the last, for it writes anything; alone it means that no codec
    known here fits: one of the peer's own, or one that encrypts. Among the names may be those of
    codecs that are known by their shape and not read: ``FstCodec``, ``SerializationCodec``, and
    what compresses, ``LZ4Codec`` (or ``LZ4CodecV2``), ``SnappyCodec``, ``SnappyCodecV2`` and
    ``ZStdCodec``.
    """
    return (*_found(payload, size), "ByteArrayCodec")


def likely_codecs(payload: bytes, *, size: int | None = None) -> tuple[str, ...]:
    """Return those of the probable codecs that hardly differ from the likeliest; none: no codec fits."""
    found = _found(payload, size)
    best = max(found.values(), default=0)
    return tuple(name for name, score in found.items() if score >= best - 1)


def looks_like(payload: bytes, *, size: int | None = None) -> str:
    """Say in a few words which codec has probably written a payload: ``looks like Kryo5Codec``."""
    if likely := likely_codecs(payload, size=size):
        return f"looks like {' or '.join(likely[:3])}"
    return "fits no codec known here: one of the peer's own, or one that encrypts"


def _found(payload: bytes, size: int | None) -> dict[str, int]:
    total = len(payload) if size is None else size
    data = payload[:LOOKED_AT]
    found: dict[str, int] = {}
    for rule in _RULES:
        rule(data, total, found)
    best = sorted(found, key=lambda name: (-found[name], _PLACE[name]))
    return {name: found[name] for name in best}


def _text(data: bytes, total: int, found: dict[str, int]) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if len(data) == total or error.start < len(data) - 3:
            return
        text = data[: error.start].decode()
    if _NO_PRINT.search(text):
        found["StringCodec"] = _COULD
        return
    # Nobody's text begins with a tab, but a Long or a double of Kryo's does.
    found["StringCodec"] = _FITS if text[:1] in ("\t", "\n") else _IS_TEXT
    whole = len(data) == total
    if whole and _number(text, found):
        return
    if not whole and _NUMBER.match(text):
        found.update(dict.fromkeys(_ALL_JSON, _COULD))
    elif text in ("true", "false", "null"):
        found.update(dict.fromkeys(_ALL_JSON, _IS_TEXT + 1))
    elif data.startswith(b'{"delayq":"'):  # a job of ours
        found.update(dict.fromkeys(_PLAIN_JSON, _MARKED), json=_MARKED + 1)
    elif _TYPED.match(data):
        found.update(dict.fromkeys(_PLAIN_JSON, _COULD))
        found.update(dict.fromkeys(_TYPED_JSON, _SURE))
    elif text[:1] in ('"', "{", "[") and not (
        whole and text[-1:] != {'"': '"', "{": "}", "[": "]"}[text[0]]
    ):
        # Neither Jackson nor our json writes a space after a colon or a comma; people do.
        bare = text[0] != '"'
        score = _FITS if bare and re.search(r'[\]}":\d,]\s', text) else _MARKED
        found.update(dict.fromkeys(_ALL_JSON, score))
        if bare:
            found.update(dict.fromkeys(_TYPED_JSON, score - 1))


def _number(text: str, found: dict[str, int]) -> bool:
    if _WHOLE.fullmatch(text):
        number = int(text)
        found.update(dict.fromkeys(_ALL_JSON, _FITS))
        found["DoubleCodec"] = _COULD
        if -(2**63) <= number < 2**63:
            found["LongCodec"] = _FITS + 1
        if -(2**31) <= number < 2**31:
            found["IntegerCodec"] = _FITS + 1
        return True
    if _NUMBER.fullmatch(text):
        found.update(dict.fromkeys(_ALL_JSON, _FITS))
        found["DoubleCodec"] = _IS_TEXT + 1
        return True
    if text.removeprefix("-") in ("NaN", "Infinity"):
        found["DoubleCodec"] = _IS_TEXT + 1
        return True
    return False


def _kryo(data: bytes, total: int, found: dict[str, int]) -> None:
    first = data[0] if data else 0xFF
    if first > 0x0A:
        return
    if first == 0x03:
        ascii_text = _KRYO_ASCII.match(data, 1)
        if ascii_text:
            seen = ascii_text.end()
            fits = seen == total if data[seen - 1] >= 0x80 else seen < total <= 33
        else:
            units, start = _kryo_units(data)
            fits = start + units <= total <= start + 3 * units
        score = _MARKED if fits else 0
    elif first == 0x01:
        score = _SURE if _KRYO_CLASS.match(data) else 0
    else:
        least, most = _KRYO_SIZES[first]
        score = _FITS + 1 if least <= total <= most else 0
        if score and first in (0x02, 0x09):  # a number ends with a byte below 80
            score *= len(data) == 10 or data[-1] < 0x80
    if score:
        found["Kryo5Codec"] = score


#: Bytes of what begins with each class id: null, int, float, boolean, byte, char, short, long, double.
_KRYO_SIZES = {
    0x00: (1, 1), 0x02: (2, 6), 0x04: (5, 5), 0x05: (2, 2), 0x06: (2, 2), 0x07: (3, 3),
    0x08: (3, 3), 0x09: (2, 10), 0x0A: (9, 9),
}  # fmt: skip


def _kryo_units(data: bytes) -> tuple[int, int]:
    number, shift = (data[1] & 0x3F if len(data) > 1 else 0), 6
    position = 2
    more = len(data) > 1 and data[1] & 0x40
    while more and position < min(len(data), 7):
        number |= (data[position] & 0x7F) << shift
        more = data[position] & 0x80
        shift += 7
        position += 1
    return max(number - 1, 0), position


def _river(data: bytes, total: int, found: dict[str, int]) -> None:
    if data[:1] == b"\x04":
        if _river_value(data, total):
            found["MarshallingCodec"] = _MARKED + 1
    elif data[:1] == b"\0":
        # 3.12.5 leaves zero bytes before the payloads that follow one it refused.
        bare = data.lstrip(b"\0")
        if bare[:1] == b"\x04" and _river_value(bare, total - len(data) + len(bare)):
            found["MarshallingCodec"] = _FITS


def _river_value(data: bytes, total: int) -> bool:
    tag = data[1] if len(data) > 1 else 0
    if tag in _RIVER_SIZES:
        return total == _RIVER_SIZES[tag]
    if tag == 0x04:
        return _RIVER_CLASS.match(data, 1) is not None
    if 0x3E <= tag <= 0x40:
        width = 1 << (tag - 0x3E)
        units = int.from_bytes(data[2 : 2 + width], "big") or 1 << 8 * width
        return 2 + width + units <= total <= 2 + width + 3 * units
    if 0x41 <= tag <= 0x44 or 0x52 <= tag <= 0x55:
        width = (0, 1, 2, 4)[(tag - 0x41) % 0x11]
        kind = data[2 + width] if len(data) > 2 + width else 0
        kinds = _RIVER_ELEMENTS if tag < 0x52 else _RIVER_COLLECTIONS
        return kind in kinds
    return tag in _RIVER_OTHERS


#: Bytes of a payload that is one value: null, true, false, numbers, "", and what is empty.
_RIVER_SIZES = {
    0x01: 2, 0x14: 2, 0x3D: 2, 0x50: 2, 0x51: 2, 0x49: 3, 0x4A: 4, 0x4B: 6, 0x4C: 10, 0x4D: 4,
    0x4E: 6, 0x4F: 10, 0x5D: 2, 0x62: 2, 0x69: 2,
}  # fmt: skip
_RIVER_ELEMENTS = frozenset(
    [0x07, 0x09, 0x0A, 0x0C, 0x0D, *range(0x14, 0x34), 0x38, *range(0x5A, 0x7A)]
)
_RIVER_COLLECTIONS = frozenset([*range(0x5A, 0x6D), *range(0x75, 0x7C)])
_RIVER_OTHERS = frozenset([0x5C, 0x61, 0x68, 0x77, *range(0x7C, 0x82)])


def _fst(data: bytes, total: int, found: dict[str, int]) -> None:
    first = data[0] if data else 0x01
    if first in (0xEF, 0xF0, 0xFF):
        score = _FITS + 1 if total == 1 else 0
    elif first in (0xF6, 0xF7):
        widths = {0x80: 4, 0x81: 6, 0x82: 10}
        expected = widths.get(data[1], 2) if len(data) > 1 else 0
        score = _MARKED if total == expected else 0
    elif first == 0xFC:
        units, start = _fst_units(data)
        score = _MARKED if start + units <= total <= start + 3 * units else 0
    elif _FST_CLASS.match(data):
        score = _SURE
    elif first == 0xFB:
        score = _FITS if len(data) > 2 and 0x20 <= data[1] < 0x40 else 0
    else:
        known = first == 0 and len(data) > 2 and 0x04 <= data[1] < 0x20
        score = _FITS + 1 if known else 0
    if score:
        found["FstCodec"] = score


def _fst_units(data: bytes) -> tuple[int, int]:
    width = {0x80: 2, 0x81: 4}.get(data[1], 0) if len(data) > 1 else 0
    if not width:
        return (data[1] if len(data) > 1 else 0), 2
    return int.from_bytes(data[2 : 2 + width], "little"), 2 + width


def _serialization(data: bytes, total: int, found: dict[str, int]) -> None:
    if data.startswith(b"\xac\xed\0\x05"):
        found["SerializationCodec"] = _SURE


def _smile(data: bytes, total: int, found: dict[str, int]) -> None:
    if data.startswith(b":)\n") and len(data) > 3 and data[3] < 0x08:
        _jackson(data[4:], 0xF8, 0xFA, "Smile", _MARKED, found)


def _cbor(data: bytes, total: int, found: dict[str, int]) -> None:
    if _walks(data, total, _cbor_head):
        score = _FITS if total < _NO_CHANCE else _IS_TEXT + 1
        _jackson(data, 0x9F, 0xBF, "Cbor", score, found)


def _message_pack(data: bytes, total: int, found: dict[str, int]) -> None:
    if _walks(data, total, _message_pack_head):
        score = _FITS if total < _NO_CHANCE else _IS_TEXT + 1
        found["MsgPackJacksonCodec"] = _SURE if _NAMED.search(data) else score


def _jackson(
    body: bytes, array: int, entries: int, name: str, score: int, found: dict[str, int]
) -> None:
    """Tell Jackson 2, which names classes, from Jackson 3, which does not."""
    bare = body[:1] and (body[0] in (array, entries) or 0x80 <= body[0] < 0xC0)
    typed = bare and _NAMED.search(body)
    found[f"{name}JacksonCodec"] = _SURE if typed else score
    found[f"{name}Jackson3Codec"] = _COULD if typed else score + bool(bare)


#: What a byte begins: bytes of its length or number, bytes that follow, values that follow; None for
#: nothing that is written. -1 values: up to a break.
_Head = Callable[[bytes, int], tuple[int, int] | None]


def _walks(data: bytes, total: int, head: _Head) -> bool:
    """Say whether the bytes are one value that ends where the payload does, as far as they are seen."""
    position, open_ = 0, [1]
    for _ in range(_STEPS):
        while open_ and not open_[-1]:
            open_.pop()
        if not open_:
            return position == total
        if position >= total:
            return False
        if position >= len(data):
            return True
        if data[position] == 0xFF and open_[-1] < 0:
            open_.pop()
            position += 1
            continue
        open_[-1] -= open_[-1] > 0
        read = head(data, position)
        if read is None:
            return False
        position, inside = read
        if position > total or inside > total - position:
            return False
        if inside:
            open_.append(inside)
    return True


def _cbor_head(data: bytes, position: int) -> tuple[int, int] | None:
    major, info = data[position] >> 5, data[position] & 0x1F
    position += 1
    if info == 31:
        return (position, -1) if 2 <= major <= 5 else None
    if info > 27:
        return None
    width = 1 << (info - 24) if info > 23 else 0
    number = int.from_bytes(data[position : position + width], "big") if width else info
    position += width
    match major:
        case 2:
            return position + number, 0
        case 3:
            return _text_end(data, position, number)
        case 4:
            return position, number
        case 5:
            return position, 2 * number
        case 6:
            return (position, 1) if number in (2, 3, 4) else None
        case 7:
            return (position, 0) if info in (20, 21, 22, 26, 27) else None
        case _:
            return position, 0


def _message_pack_head(data: bytes, position: int) -> tuple[int, int] | None:
    first = data[position]
    position += 1
    if first < 0x80 or first >= 0xE0:
        return position, 0
    if first < 0x90:
        return position, 2 * (first & 0x0F)
    if first < 0xA0:
        return position, first & 0x0F
    if first < 0xC0:
        return _text_end(data, position, first & 0x1F)
    if first in _PACKED_SIZES:
        return position + _PACKED_SIZES[first], 0
    if first not in _PACKED_WIDTHS:
        return None
    width = _PACKED_WIDTHS[first]
    number = int.from_bytes(data[position : position + width], "big")
    position += width
    if 0xD9 <= first <= 0xDB:
        return _text_end(data, position, number)
    if first < 0xDC:
        return position + number, 0
    return position, number if first < 0xDE else 2 * number


def _text_end(data: bytes, position: int, size: int) -> tuple[int, int] | None:
    """Walk over a text; None where its bytes are none. Java writes half a surrogate pair, too."""
    end = position + size
    text = data[position:end]
    try:
        text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        if end <= len(data) or error.start < len(text) - 3:
            return None
    return end, 0


#: Bytes after each tag, and bytes of the length after it.
_PACKED_SIZES = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1,
    0xD1: 2, 0xD2: 4, 0xD3: 8,
}  # fmt: skip
_PACKED_WIDTHS = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,
}  # fmt: skip


def _compressed(data: bytes, total: int, found: dict[str, int]) -> None:
    if total < 6 or len(data) < 6 or max(found.values(), default=0) > _COULD:
        return
    number = int.from_bytes(data[:4], "big")
    if data[4:8] == b"\x28\xb5\x2f\xfd":
        found["ZStdCodec"] = _SURE
    elif 0 < number <= total - 4 and _is_snappy(data[4:], number):
        if number == total - 4:
            found["SnappyCodec"] = _FITS + 1
    elif 0 < number <= 255 * total and _is_lz4(data[4:], total - 4, number):
        found["LZ4Codec"] = _FITS
    if "SnappyCodec" not in found and _is_snappy(data, total):
        found["SnappyCodecV2"] = _FITS


def _is_snappy(data: bytes, total: int) -> bool:
    """Walk over Snappy's literals and copies; they have to make up the length in front of them."""
    length, position = 0, 0
    for position in range(min(5, len(data))):
        length |= (data[position] & 0x7F) << 7 * position
        if data[position] < 0x80:
            break
    position += 1
    made = 0
    for _ in range(_STEPS):
        if position >= total:
            return position == total and made == length > 0
        if position >= len(data):
            return made <= length
        tag = data[position]
        position += 1
        if tag & 3 == 0:
            size, width = tag >> 2, max(0, (tag >> 2) - 59)
            if width:
                size = int.from_bytes(data[position : position + width], "little")
            position += width + size + 1
            made += size + 1
        else:
            if not made:  # nothing to copy from
                return False
            made += (tag >> 2 & 7) + 4 if tag & 3 == 1 else (tag >> 2) + 1
            position += (1, 2, 4)[(tag & 3) - 1]
    return made <= length


def _is_lz4(data: bytes, total: int, length: int) -> bool:
    """Walk over an LZ4 block; its sequences have to make up the length in front of it."""
    position = made = 0
    for _ in range(_STEPS):
        if position >= len(data):
            return position <= total and made <= length
        token = data[position]
        literals, position = _lz4_length(data, position + 1, token >> 4)
        position += literals
        made += literals
        if position >= total:
            return position == total and made == length
        if not made:
            return False
        copied, position = _lz4_length(data, position + 2, token & 15)
        made += copied + 4
        if made > length:
            return False
    return True


def _lz4_length(data: bytes, position: int, nibble: int) -> tuple[int, int]:
    length = nibble
    if nibble == 15:
        while position < len(data):
            length += data[position]
            position += 1
            if data[position - 1] != 255:
                break
    return length, position


_RULES = (
    _serialization,
    _smile,
    _text,
    _kryo,
    _river,
    _fst,
    _cbor,
    _message_pack,
    _compressed,
)

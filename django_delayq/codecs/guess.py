"""Guesses which codec wrote a payload, for errors and commands.

The first bytes of a payload give some codecs away. The others try to decode it, if it is whole and
not long. A short payload may fit several codecs; the answer then names all of them.
"""

import re

from django_delayq.codecs.known_codecs import get_codec
from django_delayq.exceptions import DecodeError

#: How many bytes at the beginning of a payload are searched for marks.
LOOKED_AT = 256
#: The longest payload, in bytes, that codecs try to decode: a longer one takes long, and its beginning
#: says enough.
LONGEST_TRIED = 4096
#: A binary payload of this many bytes is never printable text by chance.
_NO_CHANCE = 24

#: How well a codec fits, from worst to best. Users see the best ones.
_COULD, _TEXT, _FITS, _SURE = range(1, 5)

#: Of codecs that fit equally well, the more common one comes first.
_ORDER = (
    "Kryo5Codec", "MarshallingCodec", "FstCodec", "SerializationCodec", "StringCodec", "JsonJacksonCodec",
    "TypedJsonJacksonCodec", "json", "LongCodec", "IntegerCodec", "DoubleCodec", "JsonJackson3Codec",
    "TypedJsonJackson3Codec", "MsgPackJacksonCodec", "CborJacksonCodec", "CborJackson3Codec", "SmileJacksonCodec",
    "SmileJackson3Codec", "SnappyCodec", "ZStdCodec", "LZ4Codec",
)  # fmt: skip

#: Each byte fits in one place only, so no payload makes a search backtrack.
_CLASS = rb"\[*(?:[A-Za-z_$][\w$]*(?:\.[\w$]+)+;?|[ZBCSIJFD])"
_NAMED = re.compile(rb"@class.{1,5}" + _CLASS + rb"|\[?L?java\.\w+\.\w", re.DOTALL)
_TYPED_JSON = re.compile(rb'^\{"@class":|^\["' + _CLASS + rb'",')
#: Neither Jackson nor our json writes a space after a colon or a comma; people do.
_SPACED_JSON = re.compile(rb'[{\[].*?[\]}":\d,]\s', re.DOTALL)
_NUMBER = re.compile(rb"-?\d")
#: Nobody's text begins with a tab or a line feed; Kryo's Long (class 9) and Double (class 10) do.
_NO_PRINT = re.compile("^[\t\n]|[\0-\x08\x0e-\x1f]")

#: Beginnings that only one codec writes. Kryo and Fst name the class of most objects.
_MARKS = [
    (name, re.compile(rb"\A(?:%b)" % mark, re.DOTALL))
    for name, mark in (
        ("Kryo5Codec", rb"\x01\x00(?:[\[\w.$;]{1,499}(?:[\x80-\xff]|\Z)|[\x80-\xff])"),
        # After an object that 3.12.5 refused, it leaves zero bytes before the payloads that follow.
        ("MarshallingCodec", rb"(?:\x00\x00+)?\x04[\x01\x04\x09-\x81]"),
        ("FstCodec", rb"(?:\x00\x01|\xfa\x01|\xfb\x00).{1,3}" + _CLASS),
        ("FstCodec", rb"\xfc[\x00-\x81]|\xfb[ -?].|\x00[\x04-\x1f]."),
        ("FstCodec", rb"(?:[\xef\xf0\xff]|[\xf6\xf7](?:[^\x80-\x82]|\x80..|\x81.{4}|\x82.{8}))\Z"),
        ("SerializationCodec", rb"\xac\xed\x00\x05"),
        ("DoubleCodec", rb"-?(?:\d+\.\d+(?:E-?\d+)?|NaN|Infinity)\Z"),
        ("json", rb'\{"delayq":"'),
        ("ZStdCodec", rb".{4}\x28\xb5\x2f\xfd"),
    )
]  # fmt: skip

#: Beginnings that a codec may have written, for payloads that it does not try to decode.
_BEGINNINGS = {
    name: re.compile(beginning, re.DOTALL)
    for name, beginning in (
        ("Kryo5Codec", rb"\x03"),
        ("json", rb'["{\[\d-]'),
        ("MsgPackJacksonCodec", rb"(?:[\x81-\x8f]|\xde..)[\xa1-\xbf\xd9]|[\x91-\x9f]|\xdc..|[\xc4\xd9][ -\xff]|[\xc5\xda].|[\xc6\xdb\xdd]\x00"),
        ("CborJacksonCodec", rb"[\xbf\x7f][\x60-\x7b]|[\x81-\x97\x9f]|[\x58\x78\x98][\x18-\xff]|[\x59\x79\x99].|[\x5a\x7a\x9a]\x00"),
    )
}  # fmt: skip


def probable_codecs(payload: bytes, *, size: int | None = None) -> tuple[str, ...]:
    """Return the names of the codecs that could have written a payload, the likeliest first.

    ``payload`` may be the first 256 bytes; ``size`` is then the length of the whole.
    ``ByteArrayCodec``, which writes anything, always comes last. If it stands alone, no codec known
    here fits: the peer uses a codec of its own, or one that encrypts or compresses. The names may
    include codecs that we recognise but cannot read: ``FstCodec``, ``SerializationCodec``, ``LZ4Codec``
    (or ``LZ4CodecV2``), ``SnappyCodec`` and ``ZStdCodec``. A payload of ``SnappyCodecV2`` has no mark.

    Example::

        probable_codecs(b'{"id":1}')
    """
    return (*_Guess(payload, size).names(), "ByteArrayCodec")


def likely_codecs(payload: bytes, *, size: int | None = None) -> tuple[str, ...]:
    """Return the probable codecs that fit best, or an empty tuple if no codec fits."""
    guess = _Guess(payload, size)
    return tuple(name for name in guess.names() if guess.found[name] == guess.best)


def looks_like(payload: bytes, *, size: int | None = None) -> str:
    """Say in a few words which codec has probably written a payload: ``looks like Kryo5Codec``."""
    if likely := likely_codecs(payload, size=size):
        return f"looks like {' or '.join(likely[:3])}"
    return "fits no known codec; perhaps the other program has its own codec, or one that encrypts or compresses"


class _Guess:
    """How well each codec fits one payload."""

    def __init__(self, payload: bytes, size: int | None) -> None:
        self._payload = payload
        self._start = start = payload[:LOOKED_AT]
        self._size = size = len(payload) if size is None else size
        self.found = {name: _SURE for name, mark in _MARKS if mark.match(start)}
        if re.match(rb":\)\n[\x00-\x07]", start):
            self._add_jackson(
                ("SmileJacksonCodec",),
                ("SmileJackson3Codec",),
                _SURE,
                is_container=start[4:5] in (b"\xf8", b"\xfa"),
                class_name=_NAMED,
            )
        is_text = self._is_text()
        if is_text is not None:
            self._add("StringCodec", _TEXT if is_text else _COULD)
        if is_text:
            self._add_texts()
        self._add_binary(_COULD if is_text and size < _NO_CHANCE else _FITS)
        if self.best <= _COULD and len(start) > 5:
            self._add_compressed()

    @property
    def best(self) -> int:
        return max(self.found.values(), default=0)

    def names(self) -> list[str]:
        return sorted(
            self.found, key=lambda name: (-self.found[name], _ORDER.index(name))
        )

    def _add(self, name: str, score: int) -> None:
        self.found.setdefault(name, score)

    def _add_jackson(
        self,
        typed: tuple[str, ...],
        untyped: tuple[str, ...],
        score: int,
        *,
        is_container: bool,
        class_name: re.Pattern[bytes],
    ) -> None:
        """Add the codecs of one format: the typed ones name the class of a list or a map, the untyped do not."""
        is_typed = is_container and class_name.search(self._start)
        for name in typed:
            self._add(name, _SURE if is_typed else score - is_container)
        for name in untyped:
            self._add(name, _COULD if is_typed else score)

    def _fits(self, name: str) -> bool:
        if len(self._payload) != self._size or self._size > LONGEST_TRIED:
            beginning = _BEGINNINGS.get(name)
            return beginning is not None and beginning.match(self._start) is not None
        try:
            get_codec(name).decode(self._payload)
        except DecodeError:
            return False
        return True

    def _is_text(self) -> bool | None:
        """Tell whether the payload is printable text; None if it is not text at all."""
        start = self._start
        try:
            text = start.decode()
        except UnicodeDecodeError as error:
            # The last character may be cut in two.
            if len(start) == self._size or error.start < len(start) - 3:
                return None
            text = start[: error.start].decode()
        return not _NO_PRINT.search(text)

    def _add_texts(self) -> None:
        for name in ("LongCodec", "IntegerCodec"):
            if self._fits(name):
                self._add(name, _TEXT)
        if self._fits("DoubleCodec"):
            self._add("DoubleCodec", _COULD)
        if self._fits("json"):
            score = _TEXT if _SPACED_JSON.match(self._start) else _FITS
            if _NUMBER.match(self._start):
                score = _COULD
            self._add_jackson(
                ("JsonJacksonCodec", "JsonJackson3Codec"),
                ("TypedJsonJacksonCodec", "json", "TypedJsonJackson3Codec"),
                score,
                is_container=self._start[:1] in (b"[", b"{"),
                class_name=_TYPED_JSON,
            )

    def _add_binary(self, score: int) -> None:
        for name in ("Kryo5Codec", "MarshallingCodec"):
            if self._fits(name):
                self._add(name, _FITS)
        if self._fits("MsgPackJacksonCodec"):
            self._add(
                "MsgPackJacksonCodec", _SURE if _NAMED.search(self._start) else score
            )
        if self._fits("CborJacksonCodec"):
            self._add_jackson(
                ("CborJacksonCodec",),
                ("CborJackson3Codec",),
                score,
                is_container=b"\x80" <= self._start[:1] < b"\xc0",
                class_name=_NAMED,
            )

    def _add_compressed(self) -> None:
        start, size = self._start, self._size
        # Snappy begins with the length of the rest, LZ4 with the length of the original.
        length = int.from_bytes(start[:4], "big")
        if length == size - 4:
            self._add("SnappyCodec", _FITS)
        elif max(0, size - 20 - size // 64) < length <= 255 * size and start[4] > 0x0F:
            self._add("LZ4Codec", _FITS)

"""JSON as Redisson's Jackson codecs write it: JsonJacksonCodec, TypedJsonJacksonCodec, …3Codec.

The typed ones write ``["java.util.ArrayList",[1,["java.lang.Long",2]]]`` and
``{"@class":"java.util.LinkedHashMap","a":1}``, the TypedJson ones plain JSON.
"""

import base64
import re
from decimal import Decimal
from json.encoder import encode_basestring

from django_delayq.codecs.jackson.read import JsonNumber, TreeReader
from django_delayq.codecs.jackson.tree import Dialect, Tagged
from django_delayq.codecs.jackson.write import TreeWriter
from django_delayq.codecs.java_text import (
    decimal_plain_text,
    decimal_text,
    double_text,
    to_surrogates,
)
from django_delayq.codecs.plain_json import load_json
from django_delayq.exceptions import DecodeError, EncodeError

_HALF = re.compile("[\ud800-\udfff]")
#: A small hex digit in an escape of Python's, where Java writes a capital. An even number of
#: backslashes before the escape is text.
_SMALL_HEX = re.compile(r"(?<!\\)((?:\\\\)*\\u00[01])([a-f])")


class JacksonJsonCodec:
    """One of Redisson's JSON codecs, in one dialect."""

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.name = name
        self._dialect = dialect
        self._writer = TreeWriter(dialect)
        self._reader = TreeReader(dialect)

    def __repr__(self) -> str:
        return f"JacksonJsonCodec({self.name!r}, {self._dialect!r})"

    def encode(self, value: object) -> bytes:
        """Write a value; ``values`` says which Python type is which in Java.

        Raises:
            EncodeError: Java's JSON cannot hold the value, or one inside it.
        """
        try:
            return self._json(self._writer.tree(value)).encode()
        except RecursionError:
            raise EncodeError(f"{self.name}: nested too deep") from None
        except EncodeError:
            raise
        except ValueError as error:  # an int of more digits than Python prints
            raise EncodeError(f"{self.name}: {error}") from None

    def decode(self, payload: bytes) -> object:
        """Read a payload.

        Raises:
            DecodeError: the payload is not JSON, is nested too deep, or does not fit the classes it names.
        """
        dialect = self._dialect
        if not (dialect.typed or dialect.tags_uuid):
            return load_json(payload, self.name)
        keeps_digits = JsonNumber if b"BigDecimal" in payload else None
        tree = load_json(payload, self.name, keeps_digits)
        try:
            return self._reader.value(tree)
        except DecodeError as error:
            raise DecodeError(f"{self.name}: {error}", payload) from None
        except RecursionError:
            raise DecodeError(f"{self.name}: nested too deep", payload) from None

    def _json(self, node: object) -> str:
        kind = type(node)
        if kind is str:
            return self._quoted(node)  # type: ignore[arg-type]
        if node is None:
            return "null"
        if kind is bool:
            return "true" if node else "false"
        if isinstance(node, int):
            return int.__repr__(node)
        if isinstance(node, float):
            return double_text(node) if node - node == 0 else f'"{double_text(node)}"'
        if kind is Tagged:
            return f"[{self._quoted(node.class_name)},{self._json(node.body)}]"  # type: ignore[attr-defined]
        if isinstance(node, list):
            parts = []
            for item in node:
                parts.append(self._json(item))
            return f"[{','.join(parts)}]"
        if isinstance(node, dict):
            parts = []
            for key, item in node.items():
                parts.append(f"{self._quoted(key)}:{self._json(item)}")
            return f"{{{','.join(parts)}}}"
        if isinstance(node, Decimal):
            return (
                decimal_text(node)
                if self._dialect.jackson3
                else decimal_plain_text(node)
            )
        if isinstance(node, bytes):
            return f'"{base64.b64encode(node).decode()}"'
        raise EncodeError(f"{node!r} cannot be written as JSON")

    def _quoted(self, text: str) -> str:
        quoted = encode_basestring(text)
        if "\\u00" in quoted:
            quoted = _SMALL_HEX.sub(lambda found: found[1] + found[2].upper(), quoted)
        if text.isascii():
            return quoted
        # Jackson 2 escapes every character beyond U+FFFF, Jackson 3 only half of a surrogate pair.
        split = quoted if self._dialect.jackson3 else to_surrogates(quoted)
        return _HALF.sub(lambda half: f"\\u{ord(half[0]):04X}", split)

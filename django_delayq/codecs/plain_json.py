"""Plain JSON between Python programs: the codec ``json``. Redisson has none of this name.

A Java peer reads it with TypedJsonJacksonCodec.
"""

import json
from collections.abc import Callable, Iterator

from django_delayq.codecs.codec import MAX_DEPTH
from django_delayq.exceptions import DecodeError, EncodeError
from django_delayq.redaction import show

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


class JsonCodec:
    """Compact UTF-8 JSON as Python's ``json`` writes it, without NaN and Infinity."""

    name = "json"

    def encode(self, value: object) -> bytes:
        """Write a value of JSON's types: None, bool, int, float, str, lists and dicts of them.

        Raises:
            EncodeError: the value holds anything else; the error has the path to it.
        """
        try:
            return _encode(value).encode()
        except UnicodeEncodeError:
            # The text has half of a surrogate pair, which only an escape can write.
            return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise _explain(value, error) from None

    def decode(self, payload: bytes) -> object:
        """Read JSON.

        Raises:
            DecodeError: the payload is not JSON; the error has the byte where it stops being JSON.
        """
        return load_json(payload, self.name)


def load_json(
    payload: bytes, name: str, parse_float: Callable[[str], object] | None = None
) -> object:
    """Read one JSON document in UTF-8; errors call the codec ``name``.

    ``parse_float`` reads numbers with a point or an exponent; by default they become floats.
    """
    try:
        text = payload.decode()
        if parse_float is None:
            return _decode(text)
        decoder = json.JSONDecoder(
            parse_float=parse_float, parse_constant=_refuse_constant
        )
        return decoder.decode(text)
    except UnicodeDecodeError as error:
        raise DecodeError(f"{name}: {error}", payload, error.start) from None
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        raise DecodeError(
            f"{name}: {error.msg} at byte {offset}", payload, offset
        ) from None
    except RecursionError:
        raise DecodeError(f"{name}: nested too deep", payload) from None
    except ValueError as error:  # NaN, or an int of more digits than Python reads
        raise DecodeError(f"{name}: {error}", payload) from None


def _explain(value: object, error: Exception) -> EncodeError:
    try:
        for path, culprit in _walk(value, "$", ()):
            if reason := _fault(culprit):
                return EncodeError(f"json cannot hold {path}: {reason}")
    except ValueError:  # an int of more digits than Python prints
        pass
    return EncodeError(f"json cannot hold this value: {error}")


def _fault(value: object) -> str:
    if value is None or isinstance(value, str | bool | int | list | tuple):
        return ""
    if isinstance(value, float):
        return "" if value - value == 0 else f"{value} is not a JSON number"
    if isinstance(value, dict):
        for key in value:
            if not (key is None or isinstance(key, str | bool | int | float)):
                return f"the key {show(key)} is of type {type(key).__name__}"
        return ""
    return f"{show(value)} is of type {type(value).__name__}"


def _walk(
    value: object, path: str, around: tuple[int, ...]
) -> Iterator[tuple[str, object]]:
    yield path, value
    # If a value contains itself or nests too deep, the error has json's own message instead of a path.
    if id(value) in around or len(around) >= MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}", (*around, id(value)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]", (*around, id(value)))

"""Shows values and texts to people: without passwords, short, and without running their code.

Messages, logs, pages and reprs of this package show a user's values through these functions only: `redact_url` for a
value that should be a URL, `redact` for a text that may contain URLs, `show` for any value. `hide_url`,
`Password` and `hide` are for values that others may show, such as Django's debug page.
"""

import enum
import re
from collections.abc import Sized
from datetime import date, time, timedelta, timezone
from decimal import Decimal
from types import FunctionType
from typing import Any, TypeVar
from urllib.parse import unquote
from uuid import UUID

T = TypeVar("T")

#: Characters of a value that `show` repeats.
SHOWN = 80
#: Types whose repr is short.
_PLAIN = frozenset({bool, float, complex, date, timedelta, timezone, UUID})
#: How many items of a container, and how many levels of nesting, `show` repeats.
SHOWN_ITEMS, SHOWN_DEPTH = 10, 3
#: The longest integer that `show` repeats, bits. Python refuses to write the digits of very long ones.
SHOWN_BITS = 256
MASK = "***"


class Hidden:
    """In the place of a value that is never shown."""

    def __repr__(self) -> str:
        return MASK


HIDDEN = Hidden()
#: In the place of what is encrypted.
ENCRYPTED = "encrypted"

#: Names of URL parameters and dict keys whose values are never shown.
_SECRET = re.compile(r"pass|pwd|secret|token|auth|credential|api.?key", re.IGNORECASE)
#: Parameters of a URL whose values are shown.
_HARMLESS = re.compile(
    r"db|protocol|(sentinel_)?username|client_name|timeout|max_connections|health_check_interval|decode_responses"
    r"|(socket|retry|encoding|ssl)_(?!password)\w+"
)
_PLACE = re.compile(r"\A([^/#]*)(.*)\Z", re.DOTALL)
#: A bound on the scheme keeps the search from looking again and again at a long text that has no URL.
_URL = re.compile(r"(?:\b[a-z][a-z0-9+.-]{0,30})?://\S+", re.IGNORECASE)
#: A URL whose slashes were forgotten.
_NEAR_URL = re.compile(r"((rediss?|valkeys?)(\+\w+)?|unix):", re.IGNORECASE)
_HOST = re.compile(r"(\[[^\]@]*\]|[^:@\[\]]*)(:\d*)?")
#: An old server repeats the arguments of an unknown command; those of HELLO and AUTH contain a password.
_REPEATED = re.compile(r"(with args beginning with:).*")
#: Python repeats what it took for the port, which may be the start of a password with a slash in it.
_PORT = re.compile(r"(Port could not be cast to integer value as).*")


def redact_url(url: str) -> str:
    """Return the URL of a server without its password, or little more than the scheme if it is malformed.

    The alias of a django-redis cache has no password, and is returned as it is.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        if "@" in url:
            return f"{MASK}@{url.rpartition('@')[2]}"
        near = _NEAR_URL.match(url)
        return f"{near[0]}{MASK}" if near else url
    rest, question, query = rest.partition("?")
    place, path = _PLACE.findall(rest)[0]
    parameters = query.split("&") if question else []
    if "@" in path or any("@" in item and "=" not in item for item in parameters):
        # The password holds an unencoded slash or question mark, so nothing shows where it ends.
        return f"{scheme}://{MASK}"
    account, at, host = place.rpartition("@")
    if at:
        user, colon, _ = account.partition(":")
        place = f"{user}:{MASK}@{host}" if colon else f"{MASK}@{host}"
    elif not all(map(_HOST.fullmatch, _hosts(scheme, host))):
        # The port is not a number, or a password stands without a server. A path is shown only if it can be a database.
        name, _, _ = host.partition(":")
        if question or not re.fullmatch(r"(/\d*)?", path):
            return f"{scheme}://{MASK}"
        place = f"{name}:{MASK}"
    return f"{scheme}://{place}{path}{question}" + "&".join(
        map(_redact_parameter, parameters)
    )


def _hosts(scheme: str, place: str) -> list[str]:
    # Sentinels, and the nodes of a cluster, are several: redis+sentinel://host1:26379,host2:26379/name/0
    return place.split(",") if "+" in scheme else [place]


def _redact_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    if equals and (value == MASK or _HARMLESS.fullmatch(unquote(name))):
        return parameter
    # An unknown name may be the part of a password after an &.
    return f"{name}={MASK}" if equals and _SECRET.search(unquote(name)) else MASK


def redact(text: str) -> str:
    """Return a text without the passwords in its URLs, or in the commands that servers repeat."""
    for repeated in (_REPEATED, _PORT):
        text = repeated.sub(rf"\1 {MASK}", text)
    return _URL.sub(_redact_match, text)


def _redact_match(match: re.Match[str]) -> str:
    # Punctuation at the end belongs to the sentence, not to the URL.
    url = match[0].rstrip("'\"`.,;:)>]}")
    return redact_url(url) + match[0][len(url) :]


def show(value: object) -> str:
    """Return a value for a message: a short repr if that runs no code of the value, else its type.

    Strings, numbers, times and containers of them are shown without passwords, cut after about 80 characters. The repr
    of anything else may be long, secret, or a database query.
    """
    return _show(value, SHOWN_DEPTH)


def _show(value: object, depth: int) -> str:
    # type() and not isinstance, which would make a lazy object ask the database.
    cls = type(value)
    if value is None or cls in _PLAIN:
        return repr(value)
    if cls is Decimal and len(text := repr(value)) <= SHOWN:
        return text
    if cls is int:
        assert isinstance(value, int)
        return _show_int(value)
    if issubclass(cls, str) and not issubclass(cls, enum.Enum):
        return _show_text(str.__str__(value))
    if issubclass(cls, date | time) and cls.__module__ == "datetime":
        return repr(value)
    if cls in (dict, list, tuple, set, frozenset) and depth:
        return _show_container(value, depth - 1)
    if issubclass(cls, type) or cls is FunctionType:
        return f"<{cls.__name__} {getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}>"
    return f"<{cls.__qualname__}>"


def _show_int(value: int) -> str:
    if value.bit_length() > SHOWN_BITS:
        return f"<int of {value.bit_length():,} bits>"
    return repr(value)


def _show_text(text: str) -> str:
    # The text may have megabytes: cut before the search, and once more after it.
    start = text[: SHOWN * 10]
    start = redact_url(start) if "://" in start else redact(start)
    if len(start) <= SHOWN and len(text) <= SHOWN * 10:
        return repr(start)
    return f"{start[:SHOWN] + '…'!r} ({len(text):,} characters)"


def _show_container(value: object, depth: int) -> str:
    if isinstance(value, dict):
        pairs = zip(value.items(), range(SHOWN_ITEMS), strict=False)
        parts = [_show_pair(key, item, depth) for (key, item), _ in pairs]
        opening, closing = "{", "}"
    else:
        assert isinstance(value, list | tuple | set | frozenset)
        items = zip(value, range(SHOWN_ITEMS), strict=False)
        parts = [_show(item, depth) for item, _ in items]
        brackets = {list: ("[", "]"), tuple: ("(", ")")}
        opening, closing = brackets.get(type(value), ("{", "}"))
        if not value and isinstance(value, set | frozenset):
            return f"{type(value).__name__}()"
    if len(value) > SHOWN_ITEMS:
        parts.append("…")
    if isinstance(value, tuple) and len(value) == 1:
        parts.append("")
    text = ", ".join(parts).rstrip()
    if len(text) > SHOWN * 2:
        text = text[: SHOWN * 2] + "…"
    return opening + text + closing


def _show_pair(key: object, item: object, depth: int) -> str:
    is_secret = isinstance(key, str) and _SECRET.search(key)
    return f"{_show(key, depth)}: {MASK if is_secret else _show(item, depth)}"


def brief(cls: type[T]) -> type[T]:
    """Have the repr of a class of records show only the size of what may hold the arguments of a call.

    Such are bytes and containers. Debug pages, error mails and failed tests write the reprs of all variables.
    """
    cls.__repr__ = _brief_repr  # type: ignore[method-assign]
    return cls


def _brief_repr(record: Any) -> str:
    cls = type(record)
    fields = (f"{name}={_sized(getattr(record, name))}" for name in cls.__match_args__)
    return f"{cls.__qualname__}({', '.join(fields)})"


def _sized(value: object) -> str:
    cls = type(value)
    if cls in (bytes, list, tuple, dict, set, frozenset) and value:
        assert isinstance(value, Sized)
        return f"<{cls.__name__} of {len(value)}>"
    return show(value) if cls in (str, int) else repr(value)


def conceal(arguments: dict[str, Any], *, is_async: bool = False) -> dict[str, Any]:
    """Return the arguments of redis-py's connections, changed so that no repr or traceback shows the password."""
    password = arguments.get("password")
    if password is None:
        return arguments
    if not isinstance(password, Password):
        password = Password(password)
    concealed = arguments | {"password": password}
    if arguments.get("redis_connect_func") in (None, _greet, _agreet):
        concealed["redis_connect_func"] = _agreet if is_async else _greet
    return concealed


def _greet(connection: Any) -> None:
    try:
        connection.on_connect()
    except Exception as error:
        raise _without_frames(error) from None


async def _agreet(connection: Any) -> None:
    # Over a Unix socket, the asyncio client of redis-py 8 greets once before it calls this; that traceback stays.
    try:
        await connection.on_connect()
    except Exception as error:
        raise _without_frames(error) from None


def _without_frames(error: Exception) -> Exception:
    # The frames of redis-py hold the command with the password, and a debug page shows the variables of frames.
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


class SecretUrl(str):
    """A URL whose repr has no password, for debug pages, error mails and logs that show everything."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(redact_url(str.__str__(self)))


def hide_url(value: Any) -> Any:
    """Return a URL in a form whose repr has no password, and anything else as it is."""
    return SecretUrl(value) if isinstance(value, str) else value


class Secret(str):
    """A secret text of the settings whose repr is masked."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK)


class SecretBytes(bytes):
    """Secret bytes of the settings whose repr is masked."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK)


def hide(value: Any) -> Any:
    """Return a setting, a secret or a list of secrets, in a form whose repr is masked."""
    if isinstance(value, str):
        return Secret(value)
    if isinstance(value, bytes):
        return SecretBytes(value)
    if type(value) in (list, tuple):
        return type(value)(map(hide, value))
    return value


def is_secret_name(name: object) -> bool:
    """Return whether a setting of this name holds a secret, even if the name is misspelt."""
    return isinstance(name, str) and (
        "key" in name.lower() or _SECRET.search(name) is not None
    )


class Password(str):
    """A password that repr, str and format mask; a connection still sends its text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK)

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return MASK

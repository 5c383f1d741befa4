"""A server in memory: it runs our own scripts with Lua 5.1, as the servers do, on keys in this process.

It needs lupa, which brings Lua: ``pip install "django-delayq[testing]"``.
"""

import json
import threading
from collections.abc import Callable
from functools import cache
from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from django_delayq.exceptions import InvalidSettings
from django_delayq.testing.memory import lua_libraries
from django_delayq.testing.memory.commands import Keyspace, Ok

try:
    from lupa.lua51 import LuaError, LuaRuntime, lua_type
except ImportError:
    # Only who makes a server needs it: a module of tests may import `frozen_queue` for other tests.
    LuaError = LuaRuntime = lua_type = None

#: What a server gives its scripts beside ``redis``, written in terms of the functions that `_Lua` adds.
_LIBRARIES = rb"""
local host = ...
local call, pcall_ = host.call, host.pcall
redis = {
  call = function(...) return call(...) end,
  pcall = function(...) return pcall_(...) end,
  error_reply = function(text) return { err = text } end,
  status_reply = function(text) return { ok = text } end,
}
struct = { pack = host.pack, unpack = host.unpack }
cmsgpack = { pack = host.msgpack, unpack = host.msgunpack }

local null = newproxy()
local SHORT = {
  ['"'] = '\\"', ['\\'] = '\\\\', ['/'] = '\\/', ['\b'] = '\\b', ['\t'] = '\\t', ['\n'] = '\\n', ['\f'] = '\\f', ['\r'] = '\\r',
}
local function quoted(text)
  return '"' .. text:gsub('[%c"\\/\127]', function(char)
    return SHORT[char] or string.format('\\u%04x', char:byte())
  end) .. '"'
end
local encode
local function encode_table(value)
  local length, parts = 0, {}
  for key in pairs(value) do
    if type(key) ~= 'number' or key < 1 or key % 1 ~= 0 then length = -1 break end
    length = math.max(length, key)
  end
  if length > 0 then
    for i = 1, length do parts[i] = encode(value[i]) end
    return '[' .. table.concat(parts, ',') .. ']'
  end
  for key, item in pairs(value) do
    parts[#parts + 1] = quoted(type(key) == 'number' and string.format('%.14g', key) or key) .. ':' .. encode(item)
  end
  return '{' .. table.concat(parts, ',') .. '}'
end
function encode(value)
  local kind = type(value)
  if value == nil or value == null then return 'null' end
  if kind == 'string' then return quoted(value) end
  if kind == 'boolean' then return tostring(value) end
  if kind == 'number' then
    if value ~= value or value == math.huge or value == -math.huge then error('Cannot serialise number: must not be NaN or Inf') end
    return string.format('%.14g', value)
  end
  if kind == 'table' then return encode_table(value) end
  error('Cannot serialise ' .. kind)
end
cjson = { encode = encode, decode = function(text) return host.decode(text, null) end, null = null }
"""


class _Lua:
    """One Lua for all servers of the process: making one, and compiling the scripts, costs more than a test."""

    def __init__(self) -> None:
        self._runtime = LuaRuntime(
            encoding=None,
            unpack_returned_tuples=True,
            register_eval=False,
            register_builtins=False,
        )
        self._globals = self._runtime.globals()
        self._scripts: dict[bytes, Any] = {}
        self._compiled: dict[bytes, Any] = {}
        self._keyspace: Keyspace | None = None
        self._lock = threading.RLock()
        host = self._runtime.table_from(
            {
                b"call": self._call,
                b"pcall": self._pcall,
                b"pack": lua_libraries.pack,
                b"unpack": lua_libraries.unpack,
                b"msgpack": lambda table: lua_libraries.msgpack(_lists_of(table)),
                b"msgunpack": self._msgunpack,
                b"decode": self._decode,
            }
        )
        self._runtime.compile(_LIBRARIES)(host)

    def run(
        self, sha: bytes, keyspace: Keyspace, keys: list[bytes], args: list[bytes]
    ) -> Any:
        """Run a script that was compiled, and return its reply.

        Raises:
            NoScriptError: it was not.
            ResponseError: a command, or the script itself, has failed.
        """
        with self._lock:
            script = self._compiled.get(sha)
            if script is None:
                raise NoScriptError("No matching script. Please use EVAL.")
            self._globals[b"KEYS"] = self._runtime.table_from(keys)
            self._globals[b"ARGV"] = self._runtime.table_from(args)
            self._keyspace = keyspace
            try:
                return self._reply(script())
            except (LuaError, ValueError, TypeError) as error:
                raise ResponseError(f"Error running script: {error}") from error
            finally:
                self._keyspace = None

    def compile(self, source: bytes) -> bytes:
        sha = sha1(source, usedforsecurity=False).hexdigest().encode()
        with self._lock:
            if sha not in self._compiled:
                self._compiled[sha] = self._runtime.compile(source)
        return sha

    def _call(self, name: bytes, *args: Any) -> Any:
        assert self._keyspace is not None
        reply = self._keyspace.do(
            name, [arg if type(arg) is bytes else _text(arg) for arg in args]
        )
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        return self._to_lua(reply)

    def _pcall(self, name: bytes, *args: Any) -> Any:
        try:
            return self._call(name, *args)
        except ResponseError as error:
            return self._runtime.table_from({b"err": _error_text(error)})

    def _to_lua(self, reply: Any) -> Any:
        """Return a reply as scripts see it: nil is false, a status is a table."""
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._runtime.table_from(
                [each if type(each) is bytes else self._to_lua(each) for each in reply]
            )
        if isinstance(reply, Ok):
            return self._runtime.table_from({b"ok": bytes(reply)})
        return reply

    def _reply(self, value: Any) -> Any:
        """Return what a script returned as a client sees it: a number loses its fraction, a list ends at nil."""
        kind = type(value)
        if kind is bytes:
            return value
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if kind is int or kind is float:
            return int(value)
        if lua_type(value) != "table":
            return None
        if (text := value[b"err"]) is not None:
            raise error_of(text)
        if (text := value[b"ok"]) is not None:
            return Ok(text)
        found = []
        for i in range(1, len(value) + 1):
            if (item := value[i]) is None:
                break
            found.append(self._reply(item))
        return found

    def _msgunpack(self, text: bytes) -> Any:
        """Do as cmsgpack.unpack for a list of texts, numbers and such lists."""
        return self._runtime.table_from(lua_libraries.msgunpack(text), recursive=True)

    def _decode(self, text: Any, null: Any) -> Any:
        """Do as cjson.decode."""
        if not isinstance(text, bytes):
            text = _text(text)
        value = json.loads(
            text.decode(errors="surrogateescape"), parse_int=float, strict=False
        )
        return self._from_json(value, null)

    def _from_json(self, value: Any, null: Any) -> Any:
        if value is None:
            return null
        if isinstance(value, str):
            return value.encode(errors="surrogateescape")
        if isinstance(value, list):
            return self._runtime.table_from([self._from_json(v, null) for v in value])
        if isinstance(value, dict):
            return self._runtime.table_from(
                {
                    key.encode(errors="surrogateescape"): self._from_json(item, null)
                    for key, item in value.items()
                }
            )
        return value


def _lists_of(value: Any) -> Any:
    """Return a table of Lua as a list, with those in it."""
    if lua_type(value) != "table":
        return value
    return [_lists_of(each) for each in value.values()]


@cache
def _lua() -> _Lua:
    return _Lua()


class MemoryServer:
    """One server: its keys, and the commands that clients send."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        """``now_us`` is its clock, epoch us.

        Raises:
            InvalidSettings: lupa is not installed.
        """
        if LuaRuntime is None:
            raise InvalidSettings(
                "a frozen queue runs the scripts of the server with lupa, which is not installed:"
                ' pip install "django-delayq[testing]"'
            )
        self.keyspace = Keyspace(now_us)
        self._lock = threading.RLock()
        self._lua = _lua()

    def execute(self, command: tuple[Any, ...]) -> Any:
        name, *args = (each if type(each) is bytes else _text(each) for each in command)
        with self._lock:
            if name == b"EVALSHA":
                return self._run(args[0], args)
            if name == b"EVAL":
                return self._run(self._lua.compile(args[0]), args)
            # Several words in one: redis-py sends some commands like this.
            first, *words = name.split(b" ")
            return self.keyspace.do(first, [*words, *args])

    def _run(self, sha: bytes, args: list[bytes]) -> Any:
        count = int(args[1])
        return self._lua.run(sha, self.keyspace, args[2 : 2 + count], args[2 + count :])

    def conclude(self, reply: Any) -> None:
        """Nothing follows from a command."""

    async def aconclude(self, reply: Any) -> None:
        """Nothing follows from a command."""


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return b"%d" % value if value.is_integer() else b"%.17g" % value
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value
    raise ResponseError("Lua redis lib command arguments must be strings or integers")


def error_of(text: bytes) -> ResponseError:
    message = text.decode(errors="replace")
    return ResponseError(message.removeprefix("ERR "))


def _error_text(error: ResponseError) -> bytes:
    text = str(error)
    code = text.partition(" ")[0]
    return (text if code.isupper() and code.isalpha() else f"ERR {text}").encode()

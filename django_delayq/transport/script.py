"""Lua scripts: reading their files, adding the preludes that they use, numbering their keys and arguments."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha1
from importlib import resources
from itertools import combinations
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec


class Script(msgspec.Struct, frozen=True):
    """A Lua script: the text that the server gets, with the parts of its preludes that it uses, and its SHA-1."""

    name: str
    source: str
    sha: str
    #: The names of its keys, in order. ``name?`` may be missing, ``name?group`` may be missing with the others of its
    #: group; ``name...`` stands for any number of keys.
    keys: tuple[str, ...] = ()
    #: The names of its arguments, in order, and behind them its lists.
    args: tuple[str, ...] = ()
    lists: tuple["Record", ...] = ()
    #: Takes the first of them out of those that a call names; quick, as each call does it.
    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]] = lambda _: ()

    def named(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of a call by name; of lists, the first has all that stands behind the others."""
        found = dict(zip(self.args, args, strict=False))
        for record in self.lists[:1]:
            listed = args[len(self.args) :]
            found[record.name] = (
                list(rows(listed, record.size)) if record.fields else listed
            )
        return found


class Record(NamedTuple):
    """A list of arguments, as the header of a script writes it: ``jobs... (token, fence)``."""

    name: str
    #: The names of the arguments for each; empty: there is one.
    fields: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.fields) or 1


#: Each script that this process has loaded, by its SHA-1: for a server of tests that has no Lua.
LOADED: dict[str, Script] = {}

#: How a definition in a prelude begins. It ends where the next one begins.
_DEFINITION = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)


#: A definition of nothing but a number or a text.
_CONSTANT = re.compile(r"local ([A-Z]\w*) = (\d+|'[^'\n]*')\n")
#: A word, but none in a comment or a text.
_WORD = re.compile(r"(?:--.*|'(?:\\.|[^'\\])*'|\b[A-Z]\w*\b)")


@cache
def load_script(
    packages: tuple[str, ...], name: str, left_out: frozenset[str] = frozenset()
) -> Script:
    """Read ``lua/<name>.lua`` of one of the packages, preceded by the definitions that it uses from its preludes.

    A header line ``-- Prelude  clock, frame`` names ``_clock.lua`` and ``_frame.lua``. They may be in any of the packages,
    as no two of them have a file of the same name.

    The header writes keys that a call may leave out as ``name?``, or as ``name?group`` if it leaves out several
    together. In the script that is loaded without them, those in ``left_out`` are nil, and a line ``if keys.name then …
    end`` is left out, with the definitions that only it uses.

    Arguments have names as well: ``args.limit`` is one of them. Behind them come lists, such as ``jobs... (token, fence)``:
    ``args.jobs`` is where the first list begins, ``#args.jobs`` is 2, and ``args.jobs[i].fence`` the second argument of
    the job that begins at ``i``. An argument ``limit?slots`` goes with the key ``slots``, or with the group of keys. A
    prelude names the fields that it needs.

    Numbers and texts that a prelude names are written where they are used: a Lua function has 200 locals at most, and
    `claim` needs most of them.

    Unused definitions are left out, because the server creates each function of a script again at each call. They would
    cost `schedule` an eighth of its time on the server.
    """
    text = _without(left_out, text_of(packages, name, left_out))
    definitions: list[tuple[set[str], str]] = []
    args, lists = args_of(text)
    records = {record.name: record for record in lists}
    for prelude in preludes_of(text):
        its_text = _find(packages, f"_{prelude}")
        definitions += _definitions_of(its_text)
        records |= {record.name: record for record in args_of(its_text)[1]}
    used, needed = _names_in(text), [text]
    constants: dict[str, str] = {}
    for names, definition in reversed(definitions):
        if names & used:
            if constant := _CONSTANT.match(definition):
                constants[constant[1]] = constant[2]
                continue
            used |= _names_in(definition)
            needed.append(definition)
    groups = {"": ""} | {
        key.partition("?")[2] or name_of(key): name_of(key) for key in keys_of(text)
    }
    keys = tuple(key for key in keys_of(text) if name_of(key) not in left_out)
    given = tuple(arg for arg in args if groups[arg.partition("?")[2]] not in left_out)
    source = _WORD.sub(
        lambda word: constants.get(word[0], word[0]), "".join(reversed(needed))
    )
    source = _with_numbers(source, keys, name, left_out)
    source = _with_arguments(source, args, given, records, lists[:1], name)
    sha = sha1(source.encode(), usedforsecurity=False).hexdigest()
    named = tuple(map(name_of, given))
    script = Script(name, source, sha, keys, named, lists, _picker_of(named))
    LOADED[sha] = script
    return script


def _picker_of(
    names: tuple[str, ...],
) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if len(names) == 1:
        return lambda named: (named[names[0]],)
    return itemgetter(*names) if names else lambda _: ()


def variants_of(packages: tuple[str, ...], name: str) -> Iterator[Script]:
    """Yield a script with all its keys, and without each choice of those that a call may leave out."""
    groups: dict[str, set[str]] = {}
    for key in load_script(packages, name).keys:
        if "?" in key:
            key, _, group = key.partition("?")
            groups.setdefault(group or key, set()).add(key)
    for count in range(len(groups) + 1):
        for left_out in combinations(groups.values(), count):
            yield load_script(packages, name, frozenset().union(*left_out))


#: The line that stands for a part of a script.
_PART = re.compile(r"^ *-- Part  (\w+)(?:  if (\w+))?$", re.MULTILINE)


def text_of(
    packages: tuple[str, ...], name: str, left_out: frozenset[str] = frozenset()
) -> str:
    """Return a script without its preludes, with each line ``-- Part  due`` replaced by the text of ``_due.lua``.

    A part may be in another package than its script, and sees the locals of the script. In a branch that is not taken it
    costs nothing. ``-- Part  admit  if slots`` is left out where that key is.
    """
    return _PART.sub(
        lambda part: "" if part[2] in left_out else _find(packages, f"_{part[1]}"),
        _find(packages, name),
    )


#: A line that a script does not need without an optional key.
_IF_KEY = re.compile(r"^ *if keys\.(\w+) then .* end\n", re.MULTILINE)


def _without(left_out: frozenset[str], text: str) -> str:
    return _IF_KEY.sub(lambda line: "" if line[1] in left_out else line[0], text)


def name_of(key: str) -> str:
    """Return the name of a key as a header writes it."""
    return key.rstrip(".").partition("?")[0]


_KEYS = re.compile(r"^-- Keys     (.*(?:\n--          .*)*)", re.MULTILINE)


def keys_of(text: str) -> tuple[str, ...]:
    """Return the names in the ``-- Keys`` lines of a script's header."""
    match = _KEYS.search(text)
    return tuple(re.findall(r"[\w?.]+", match[1])) if match else ()


def _with_numbers(
    source: str,
    keys: tuple[str, ...],
    script: str,
    left_out: frozenset[str] = frozenset(),
) -> str:
    """Replace the names of keys by what the server calls them: ``keys.leases`` by ``KEYS[3]``, ``#keys`` by their number.

    A key that is left out becomes nil.
    """
    numbers = {name_of(key): i for i, key in enumerate(keys, 1)}

    def number(match: re.Match[str]) -> str:
        if match[1] in left_out:
            return "nil"
        if match[1] not in numbers:
            raise KeyError(
                f"{script}.lua uses {match[0]}, which its header does not name"
            )
        return f"KEYS[{numbers[match[1]]}]"

    source = re.sub(r"\bkeys\.(\w+)", number, source)
    return source.replace(
        "#keys", str(len([key for key in keys if not key.endswith("...")]))
    )


_ARGS = re.compile(r"^-- Args     .*(?:\n--          .*)*", re.MULTILINE)
_ARG = re.compile(
    r"^--(?: Args     |          )(\*?\w+(?:\?\w*)?)(\.\.\.)?(?: \(([\w, ]+)\))?:",
    re.MULTILINE,
)


def args_of(text: str) -> tuple[tuple[str, ...], tuple[Record, ...]]:
    """Return the names in the ``-- Args`` lines of a header, and the lists behind them."""
    match = _ARGS.search(text)
    found = _ARG.findall(match[0]) if match else []
    return (
        tuple(name for name, dots, fields in found if not dots and not fields),
        tuple(
            Record(name, tuple(re.findall(r"\w+", fields)))
            for name, dots, fields in found
            if dots or fields
        ),
    )


_OF_LIST = re.compile(r"(#?)\bargs\.(\w+)(?:\[([^\[\]]+)\](?:\.(\w+))?)?")


def _with_arguments(
    source: str,
    args: tuple[str, ...],
    given: tuple[str, ...],
    records: dict[str, Record],
    first: tuple[Record, ...],
    script: str,
) -> str:
    """Replace the names of arguments by what the server calls them, as `load_script` says.

    An argument that is left out becomes nil.
    """
    numbers = {name_of(arg): f"ARGV[{i}]" for i, arg in enumerate(given, 1)}
    numbers |= {record.name: str(len(given) + 1) for record in first}

    def number(match: re.Match[str]) -> str:
        sign, name, place, field = match.groups()
        record = records.get(name)
        if record is not None and sign and not place:
            return str(record.size)
        if (
            record is not None
            and place
            and (field in record.fields or (field is None and not record.fields))
        ):
            offset = record.fields.index(field) if field else 0
            return (
                f"{sign}ARGV[{place} + {offset}]" if offset else f"{sign}ARGV[{place}]"
            )
        if place is None and name in numbers:
            return f"{sign}{numbers[name]}"
        if place is None and name in map(name_of, args):
            return "nil"
        raise KeyError(f"{script}.lua uses {match[0]}, which its header does not name")

    return _OF_LIST.sub(number, source)


def _definitions_of(prelude: str) -> list[tuple[set[str], str]]:
    """Return the names that each definition of a prelude defines, and its text."""
    found = list(_DEFINITION.finditer(prelude))
    ends = [match.start() for match in found[1:]] + [len(prelude)]
    return [
        (set(match[1].split(", ")), prelude[match.start() : end])
        for match, end in zip(found, ends, strict=True)
    ]


def _names_in(text: str) -> set[str]:
    return set(re.findall(r"\w+", re.sub(r"--.*", "", text)))


def rows(values: Sequence[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a list in a reply, which has them one behind the other: each table would cost the server more."""
    each = iter(values)
    return zip(*[each] * size, strict=True)


def preludes_of(text: str) -> list[str]:
    """Return the names in the ``-- Prelude`` line of a script's header."""
    for line in text.splitlines():
        if line.startswith("-- Prelude  "):
            return [
                name.strip() for name in line.removeprefix("-- Prelude  ").split(",")
            ]
    return []


def _find(packages: tuple[str, ...], name: str) -> str:
    for package in packages:
        # By its path: importing the package of a feature here would import all that it needs.
        root, *folders = package.split(".")
        file = resources.files(root).joinpath(*folders, "lua", f"{name}.lua")
        if file.is_file():
            return file.read_text("utf-8")
    raise FileNotFoundError(f"no lua/{name}.lua in {', '.join(packages)}")

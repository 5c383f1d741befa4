"""Every Lua script of the package: its body does what its header promises, on each server.

The first half reads the sources. The second takes the tour of tests/core/tour.py, where each operation meets a
queue to which it has something to write: on a full server, with a key of the wrong type, without rights.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from redis.exceptions import (
    NoPermissionError,
    OutOfMemoryError,
    ResponseError,
)

from django_delayq.core.scripts import PACKAGES
from django_delayq.features.schedules import writes as schedule_writes
from django_delayq.transport import script as script_module
from django_delayq.transport.script import (
    Script,
    args_of,
    keys_of,
    load_script,
    preludes_of,
    variants_of,
)
from tests import conftest
from tests.core.rig import Rig, names_of
from tests.core.tour import DRAINS, TOUR
from tests.scripts import FILES, SCRIPTS, script_of
from tests.servers import Server

ROOT = Path(__file__).parent.parent / "django_delayq"
SHARED = {
    name.removeprefix("_"): path for name, path in FILES.items() if name[0] == "_"
}
#: A prelude has definitions for several scripts; a part is a piece of one script.
PARTS = {
    name: path
    for name, path in SHARED.items()
    if path.read_text("utf-8").startswith("-- Part of ")
}
PRELUDES = {name: path for name, path in SHARED.items() if name not in PARTS}
scripts = pytest.mark.parametrize("script", SCRIPTS)


def text_of(script: str) -> str:
    """Return a script with its parts and without its preludes."""
    return script_module.text_of(PACKAGES, script)


def split(text: str) -> tuple[str, str]:
    """Return the comment that a file begins with, and the rest."""
    lines = text.splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("--"))
    return "\n".join(lines[:end]), "\n".join(lines[end:])


# A reader of as much Lua as these tests need.

TOKEN = re.compile(
    r"""(?P<space>\s+|--\[\[.*?\]\]|--[^\n]*)
      | (?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<op>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^\#<>=(){}\[\];:,.])""",
    re.VERBOSE | re.DOTALL,
)
KEYWORDS = set(
    [
        "and",
        "break",
        "do",
        "else",
        "elseif",
        "end",
        "false",
        "for",
        "function",
        "if",
        "in",
        "local",
        "nil",
        "not",
        "or",
        "repeat",
        "return",
        "then",
        "true",
        "until",
        "while",
    ]
)
#: What the server gives to a script, and ``keys`` and ``args``, which the loader replaces by numbers.
GLOBALS = set(
    [
        "keys",
        "args",
        "KEYS",
        "ARGV",
        "redis",
        "cjson",
        "cmsgpack",
        "struct",
        "math",
        "string",
        "table",
        "tonumber",
        "tostring",
        "ipairs",
        "pairs",
        "unpack",
        "type",
        "error",
        "pcall",
    ]
)


def tokens_of(source: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(source):
        match = TOKEN.match(source, at)
        assert match is not None, f"no Lua: {source[at : at + 40]!r}"
        at = match.end()
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
    return found


def names_in(source: str) -> tuple[set[str], set[str], set[str]]:
    """Return the names that are declared, read, and assigned to, without fields and keys of tables."""
    declared: set[str] = set()
    read: set[str] = set()
    assigned: set[str] = set()
    tokens = [*tokens_of(source), ("op", ""), ("op", "")]
    braces: list[str] = []
    i = 0
    while i < len(tokens) - 2:
        kind, text = tokens[i]
        after = tokens[i + 1][1]
        if text in ("(", "{", "["):
            braces.append(text)
        elif text in (")", "}", "]"):
            braces.pop()
        elif text in ("local", "for") and after != "function":
            i += 1
            declared.add(tokens[i][1])
            while tokens[i + 1][1] == ",":
                i += 2
                declared.add(tokens[i][1])
        elif text == "function":
            i += 1
            if tokens[i][0] == "name":
                declared.add(tokens[i][1])
                i += 1
            while tokens[i][1] != ")":
                declared |= {tokens[i][1]} - {"(", ","}
                i += 1
        elif kind == "name" and text not in KEYWORDS:
            is_field = tokens[i - 1][1] in (".", ":") if i else False
            is_key = after == "=" and braces[-1:] == ["{"]
            if not is_field and not is_key:
                is_target = after == "=" or (after == "," and _is_list(tokens, i))
                (assigned if is_target and not braces else read).add(text)
        i += 1
    return declared, read, assigned


def _is_list(tokens: list[tuple[str, str]], at: int) -> bool:
    # a, b.c, d[1] = …: names on the left of an assignment, from the start of a statement on.
    if at and (
        tokens[at - 1][0] != "name" and tokens[at - 1][1] not in (")", "]", ",", "")
    ):
        return False
    if at and tokens[at - 1][1] in ("return", "in", "and", "or", "not"):
        return False
    while tokens[at][0] == "name" and tokens[at + 1][1] == ",":
        at += 2
    return tokens[at][0] == "name" and tokens[at + 1][1] == "="


@pytest.mark.parametrize(
    ("source", "assigned", "read"),
    [
        ("a = 1", {"a"}, set()),
        ("local a = b", set(), {"b"}),
        ("a, b = c, d", {"a", "b"}, {"c", "d"}),
        ("t.x = y.z", set(), {"t", "y"}),
        ("t[i] = j", set(), {"t", "i", "j"}),
        ("f{ key = value }", set(), {"f", "value"}),
        ("if a == b then return c end", set(), {"a", "b", "c"}),
        ("for i = 1, n do g(i, 'x = y') end -- z = 1", set(), {"n", "g", "i"}),
        ("local function f(p) q = p end", {"q"}, {"p"}),
        ("local _\n_, x = f()", {"_", "x"}, {"f"}),
    ],
)
def test_the_reader_of_lua_tells_what_is_assigned_and_what_is_read(
    source: str, assigned: set[str], read: set[str]
) -> None:
    _, found_read, found_assigned = names_in(source)

    assert (found_assigned, found_read) == (assigned, read)


# Headers.


def test_there_are_scripts_and_no_two_files_have_one_name() -> None:
    folders = {path.parent for path in FILES.values()}

    assert len(SCRIPTS) > 15
    assert len(FILES) == len(list(ROOT.rglob("*.lua")))
    assert folders == {ROOT.parent / p.replace(".", "/") / "lua" for p in PACKAGES}
    assert {"clock", "frame", "list", "job", "settle"} <= set(PRELUDES)


@scripts
def test_header_names_the_keys_that_the_script_uses(script: str) -> None:
    """For a key that the script uses and the header does not name, the loader raises an error."""
    header, body = split(text_of(script))
    source = script_of(script).source
    named = keys_of(header)
    code = re.sub(r"--.*", "", source)

    assert len(set(named)) == len(named) > 0
    for number, name in enumerate(named, 1):
        if name.endswith("..."):
            assert number == len(named), "a list comes last"
            assert re.search(r"\bKEYS\[(?!\d+\])", code), name
        else:
            assert f"KEYS[{number}]" in code, name
    assert not re.search(r"\bKEYS\[\d+\]", body), "keys have names"


def test_a_key_that_the_header_does_not_name_is_an_error() -> None:
    with pytest.raises(
        KeyError, match=r"lost\.lua uses keys\.leases, which its header"
    ):
        script_module._with_numbers(
            "redis.call('ZCARD', keys.leases)", ("headers",), "lost"
        )


@scripts
def test_header_names_the_arguments_that_the_script_uses(script: str) -> None:
    """For an argument that the script uses and the header does not name, the loader raises an error."""
    header, _ = split(text_of(script))
    args, lists = args_of(header)
    source = with_preludes(script)
    named = [name.partition("?")[0] for name in args]
    places = [*named, *(record.name for record in lists)]

    assert len(set(places)) == len(places)
    assert not re.search(r"\bARGV\[", source), "arguments have names"
    for name in named:
        assert re.search(rf"\bargs\.{name}\b", source), name
    for record in lists:
        fields = record.fields or ("",)
        assert len(set(fields)) == len(fields)
        for field in fields:
            assert is_read(source, record.name, field), f"{record.name}: {field}"
    assert not re.search(r"#ARGV.*, -?\d+ do$", source, re.MULTILINE), (
        "rows have a size"
    )


@scripts
def test_header_says_of_each_argument_what_it_is(script: str) -> None:
    header, _ = split(text_of(script))
    block = re.search(r"^-- Args     .*(?:\n--          .*)*", header, re.MULTILINE)
    lines = block[0].splitlines() if block else []

    for line in lines:
        assert re.match(
            r"-- (?:Args    |        ) (?:\w+(?:\?\w*)?|\w+\.\.\.(?: \([\w, ]+\))?): \S|--            \S",
            line,
        ), line
    lists = [line for line in lines if "..." in line.partition(":")[0]]
    is_list = [line in lists for line in lines if not line.startswith("--            ")]
    assert is_list == sorted(is_list), "lists come last"


@scripts
def test_lists_of_new_jobs_begin_as_the_prelude_says(script: str) -> None:
    header, _ = split(text_of(script))
    if "new" not in preludes_of(header):
        return
    (new,) = args_of(PRELUDES["new"].read_text("utf-8"))[1]
    _, lists = args_of(header)

    assert any(record.fields[: new.size] == new.fields for record in lists)


def with_preludes(script: str) -> str:
    """Return the body of a script and the definitions that it uses, with the names of keys and arguments."""
    header, body = split(text_of(script))
    parts = [body]
    used = set(re.findall(r"\w+", script_of(script).source))
    for name in preludes_of(header):
        text = PRELUDES[name].read_text("utf-8")
        for names, definition in script_module._definitions_of(text):
            if names & used:
                parts.append(re.sub(r"--.*", "", definition))
    return "".join(parts)


def is_read(source: str, name: str, field: str) -> bool:
    """Whether a script reads a field of a list, or hands it on to those that read new jobs."""
    names = {name, "new"} if name in ("jobs", "followers", "job") else {name}
    if not field:
        return (
            re.search(rf"\bargs\.{name}\[|\bunpack\(ARGV, .*args\.{name}", source)
            is not None
        )
    return any(
        re.search(rf"\bargs\.{each}\[[^]]+\]\.{field}\b", source) for each in names
    )


def test_an_argument_that_the_header_does_not_name_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "misspelt" / "lua"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    head = "-- Does it.\n--\n-- Args     one: first\n--          jobs... (token, fence): all\n"
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in {
        "scalar": "return args.two",
        "field": "return args.jobs[1].text",
        "list": "return args.job[1].token",
        "whole": "return args.jobs[1]",
    }.items():
        (folder / f"{name}.lua").write_text(f"{head}{text}\n")
        with pytest.raises(KeyError, match=rf"{name}\.lua uses args\."):
            load_script(("misspelt",), name)


#: Where a table for each job would cost the server too much.
READ_BY_FIELDS = {"settle", "due", "claim_few"}


@pytest.mark.parametrize("name", [*SCRIPTS, *SHARED])
def test_one_prelude_knows_how_a_job_is_packed(name: str) -> None:
    path = {**SCRIPTS, **SHARED}[name]
    code = re.sub(r"--.*", "", path.read_text("utf-8"))
    constants = re.findall(r"\b(?:HEADER|\w*LOCATOR|SPARED)\b", code)
    fields = re.findall(r"\bunpack_(?:header|locator)\b", code)

    if name != "job":
        assert constants == []
        assert not fields or name in READ_BY_FIELDS


@scripts
def test_header_says_what_the_script_is_for_and_what_it_returns(script: str) -> None:
    header, _ = split(text_of(script))
    first = header.splitlines()[0]

    assert re.match(r"-- [A-Z].*[.:,\w]$", first)
    returns = re.findall(r"^-- Returns  (\S+)", header, re.MULTILINE)
    if reply_of(header):
        # It may do nothing, and let the caller use another script.
        assert returns in ([], ["nil"])
    else:
        assert len(returns) == 1


def reply_of(header: str) -> list[tuple[str, int | None]]:
    """Return the names of the fields of a script's reply; of a list, how many values each row has, one behind the other."""
    block = re.search(r"^-- Reply    .*(?:\n--          .*)*", header, re.MULTILINE)
    if block is None:
        return []
    lines = block[0].replace("-- Reply    ", "-- Args     ")
    return [
        (name, len(re.findall(r"\w+", fields)) or 1 if dots or name[0] == "*" else None)
        for name, dots, fields in script_module._ARG.findall(lines)
    ]


def sizes_of_replies(body: str) -> list[int]:
    """Return how many values each table has that a script returns."""
    found, depth, starts = [], 0, []
    tokens = [text for _, text in tokens_of(body)]
    for i, text in enumerate(tokens):
        if text == "{" and tokens[i - 1] == "return":
            starts.append((depth, len(found)))
            found.append(0 if tokens[i + 1] == "}" else 1)
        if starts and text == "," and depth == starts[-1][0] + 1:
            found[starts[-1][1]] += tokens[i + 1] != "}"
        depth += (text in "({[") - (text in ")}]")
        if starts and text == "}" and depth == starts[-1][0]:
            starts.pop()
    return found


@scripts
def test_every_reply_has_the_fields_that_the_header_names(script: str) -> None:
    header, body = split(text_of(script))
    fields = reply_of(header)

    assert len({name for name, _ in fields}) == len(fields)
    if fields and sizes_of_replies(body):
        count = sum(name[0] != "*" for name, _ in fields)
        assert set(sizes_of_replies(body)) == {count}


def check_reply(script: Script, reply: Any) -> None:
    """Compare the reply to a call with what the header of the script says."""
    name = script.name
    header, _ = split(text_of("claim" if name == "claim_few" else name))
    fields = reply_of(header)
    if not fields or reply is None:
        return
    if fields[-1][0][0] == "*":
        # The last list stands behind the other fields.
        reply = [*reply[: len(fields) - 1], reply[len(fields) - 1 :]]
    assert len(reply) == len(fields), name
    for value, (field, size) in zip(reply, fields, strict=True):
        if value is not None:
            assert isinstance(value, list) == (size is not None), field
        if size and value:
            assert len(value) % size == 0, field


@pytest.mark.parametrize("stop", TOUR)
def test_each_reply_is_as_the_header_says(tour_rig: Rig, stop: str) -> None:
    rig = tour_rig
    call = TOUR[stop](rig)
    run = rig.run

    def checking(call: Any) -> Any:
        def read(reply: Any) -> Any:
            check_reply(call.script, reply)
            return call.read(reply)

        full = call.full and (lambda: replace(call.full(), read=read))
        return run(replace(call, read=read, full=full))

    rig.run = checking  # type: ignore[method-assign]
    call()


@scripts
def test_preludes_exist_and_stand_behind_those_they_need(script: str) -> None:
    before: list[str] = []
    for name in preludes_of(text_of(script)):
        assert name in PRELUDES
        header, _ = split(PRELUDES[name].read_text("utf-8"))
        assert header.startswith("-- Prelude: ")
        assert needs_of(header) <= set(before), f"_{name} before what it needs"
        before.append(name)
    assert len(set(before)) == len(before)


def needs_of(header: str) -> set[str]:
    joined = re.sub(r"\n--\s*", " ", header)
    match = re.search(r"\bNeeds ((?:_\w+(?:, )?)+)\.", joined)
    return {name[1:] for name in match[1].split(", ")} if match else set()


@pytest.mark.parametrize("prelude", PRELUDES)
def test_prelude_needs_what_it_uses_and_says_so(prelude: str) -> None:
    header, body = split(PRELUDES[prelude].read_text("utf-8"))
    declared, read, _ = names_in(body)
    given = {
        name: set(names_in(split(path.read_text())[1])[0])
        for name, path in PRELUDES.items()
    }
    top_level = {
        name: {
            match
            for line in split(path.read_text())[1].splitlines()
            for match in re.findall(r"^local (?:function )?(\w+(?:, \w+)*)", line)
        }
        for name, path in PRELUDES.items()
    }
    used = {
        name
        for name in PRELUDES
        if name != prelude and (read - declared - GLOBALS) & top_level[name]
    }

    assert used <= needs_of(header)
    reachable = set().union(*(given[name] for name in needs_of(header)), GLOBALS)
    assert read - declared <= reachable


def listed(header: str, what: str) -> set[str]:
    """Return the names in one line of a part's header."""
    match = re.search(
        rf"^-- {what:<7}  (.*(?:\n--          .*)*)", header, re.MULTILINE
    )
    return set(re.findall(r"\w+", match[1])) if match else set()


@pytest.mark.parametrize("part", PARTS)
def test_part_says_which_locals_of_its_script_it_uses_and_which_it_sets(
    part: str,
) -> None:
    header, body = split(PARTS[part].read_text("utf-8"))
    match = re.match(r"-- Part of (\w+): [a-z]", header)
    assert match is not None
    text = text_of(match[1])
    of_script = names_in(text)[0]
    declared, read, assigned = names_in(body)
    uses, fills, sets = (listed(header, what) for what in ("Uses", "Fills", "Sets"))

    filled = set(re.findall(r"\b(\w+)\[[^\]]+\](?:, \w+)* = ", body)) - declared

    assert header in text, "it stands in its script"
    assert assigned - declared == sets
    assert uses | fills | sets == (read | assigned) - declared - GLOBALS - given_to(
        text
    )
    assert len(uses) + len(fills) + len(sets) == len(uses | fills | sets)
    assert uses | fills | sets <= of_script
    assert filled <= fills


def given_to(text: str) -> set[str]:
    """Return the names that the preludes of a script define."""
    return {
        name
        for prelude in preludes_of(text)
        for line in split(PRELUDES[prelude].read_text("utf-8"))[1].splitlines()
        for match in re.findall(r"^local (?:function )?(\w+(?:, \w+)*)", line)
        for name in match.split(", ")
    }


@pytest.mark.parametrize("prelude", PRELUDES)
def test_prelude_has_nothing_but_definitions(prelude: str) -> None:
    """A script is sent with the definitions that it uses; anything else between them would go with the one before."""
    _, body = split(PRELUDES[prelude].read_text("utf-8"))
    begins = {
        line.split(maxsplit=1)[0]
        for line in body.splitlines()
        if line.strip() == line and line
    }

    assert begins <= {"local", "end", "}", "--"}


@scripts
def test_what_a_script_does_not_use_is_not_sent(script: str) -> None:
    source = script_of(script).source
    functions = re.findall(r"^local function (\w+)", source, re.MULTILINE)
    code = re.sub(r"--.*", "", source)

    assert [
        name for name in functions if len(re.findall(rf"\b{name}\b", code)) < 2
    ] == []


@scripts
def test_no_name_is_global(script: str) -> None:
    """Redis refuses an assignment to a global only when the script reaches it, and a misspelt name is nil."""
    source = script_of(script).source
    declared, read, assigned = names_in(source)

    assert assigned - declared == set()
    assert read - declared - GLOBALS == set()


@scripts
def test_keys_of_commands_are_passed_in_and_never_built(script: str) -> None:
    """A key that is not in KEYS might lie in another slot of a cluster, or be closed to the user."""
    source = script_of(script).source
    calls = re.findall(
        r"redis\.p?call\(\s*((?:'\w+')|[^,)]+)\s*(?:,\s*([^,)]+))?", source
    )
    keyless = {"'TIME'"}

    assert len(calls) == source.count("redis.call(") + source.count("redis.pcall(")
    for command, key in calls:
        if command not in keyless:
            assert re.fullmatch(
                r"[a-z]\w*(\.\w+)?|KEYS\[(?:\w+|[\d+ -]*\bi\b[\d+ -]*)\]|place\[2\]|results\[[\w.]+\]",
                key,
            ), f"{command} {key}"


@scripts
def test_script_reads_the_clock_once(script: str) -> None:
    _, body = split(text_of(script))

    assert "'TIME'" not in body
    assert body.count("read_clock(") <= 1


# On each server.


@scripts
def test_script_compiles(client: "redis.Redis[bytes]", script: str) -> None:
    text = script_of(script)

    assert client.script_load(text.source) in (text.sha, text.sha.encode())


#: A function of Lua has 200 local variables at most. `claim` has most: whoever adds some there has to see the end coming.
SPARE_LOCALS = 8


@scripts
def test_script_has_local_variables_to_spare(
    client: "redis.Redis[bytes]", script: str
) -> None:
    for variant in variants_of(PACKAGES, script):
        client.script_load("local spare\n" * SPARE_LOCALS + variant.source)


def test_script_that_is_unknown_to_the_server_is_sent_with_its_text(
    private_server: Callable[..., Server],
) -> None:
    client = private_server().client()
    rig = Rig(client, "q")

    rig.schedule({"a": 0})
    client.script_flush()

    assert names_of(rig.claim()) == ["a"]


@pytest.fixture(scope="module")
def own_server(server_kind: str) -> Iterator[Server]:
    """A server whose memory, users and monitor nobody else uses."""
    if server_kind == "external":
        pytest.skip("reconfigures its server; DELAYQ_TEST_URL is somebody's")
    server = Server(server_kind, {"maxmemory_policy": "noeviction"})
    yield server.start()
    server.stop()


@pytest.fixture
def tour_rig(own_server: Server) -> Iterator[Rig]:
    client = own_server.client()
    client.flushall()  # a server of our own
    yield Rig(client, "q")
    client.config_set("maxmemory", 0)


@contextmanager
def monitored(server: Server) -> Iterator[Callable[[], list[list[str]]]]:
    """Record what scripts do; yields a function that returns their commands so far, each with its first argument."""
    with server.client().monitor() as monitor, server.client() as echo:

        def commands() -> list[list[str]]:
            echo.echo("end")
            found = []
            while True:
                entry = monitor.next_command()
                if entry["command"] == "ECHO end":
                    return found
                if entry["client_type"] == "lua":
                    found.append(entry["command"].split(" ")[:2])

        yield commands


def flags_of(client: "redis.Redis[bytes]", name: str) -> set[str]:
    (info,) = client.execute_command("COMMAND", "INFO", name).values()
    return {
        flag.decode() if isinstance(flag, bytes) else flag for flag in info["flags"]
    }


@pytest.mark.parametrize("stop", TOUR)
def test_scripts_touch_the_keys_passed_in_and_no_others(
    own_server: Server, tour_rig: Rig, stop: str
) -> None:
    call = TOUR[stop](tour_rig)
    passed = record_keys(tour_rig)
    with monitored(own_server) as commands:
        call()

        touched = {key for name, *rest in commands() for key in rest if name != "TIME"}

    assert touched <= passed
    assert len(touched) > 0


def record_keys(rig: Rig) -> set[str]:
    """Collect the keys that the rig's calls pass from now on."""
    passed: set[str] = set()
    run = rig.run

    def recording(call: Any) -> Any:
        passed.update(call.keys)
        if call.full is not None:
            passed.update(call.full().keys)
        return run(call)

    rig.run = recording  # type: ignore[method-assign]
    return passed


@pytest.mark.parametrize("stop", sorted(DRAINS))
def test_first_write_of_what_drains_a_queue_is_one_that_a_full_server_takes(
    own_server: Server, tour_rig: Rig, stop: str
) -> None:
    call = TOUR[stop](tour_rig)
    with monitored(own_server) as commands:
        call()

        names = [command[0] for command in commands()]

    flags = {name: flags_of(tour_rig.client, name) for name in set(names)}
    writes = [name for name in names if "write" in flags[name]]
    assert "denyoom" not in flags[writes[0]] if writes else True


def snapshot(rig: Rig) -> dict[bytes, bytes | None]:
    """Return everything that the server holds of a queue."""
    return {
        key: rig.client.dump(key)
        for key in conftest.keys_of(rig.client, rig.keys.queue.name)
    }


@pytest.mark.parametrize("stop", TOUR)
def test_full_server_goes_on_draining_and_refuses_new_jobs_whole(
    tour_rig: Rig, stop: str
) -> None:
    rig = tour_rig
    call = TOUR[stop](rig)
    before = snapshot(rig)
    rig.client.config_set("maxmemory", 1)

    if stop in DRAINS:
        call()
        return
    with pytest.raises(OutOfMemoryError):
        call()

    rig.client.config_set("maxmemory", 0)
    assert snapshot(rig) == before


def fill_up(rig: Rig, prefix: str, *, wait: int, size: int) -> int:
    """Schedule until the server takes no more; returns how many jobs it took."""
    for n in range(10_000):
        try:
            rig.schedule({f"{prefix}{n}": wait + n}, size=size)
        except OutOfMemoryError:
            return n
    raise AssertionError("the server is never full")


def test_server_that_filled_up_drains_and_takes_jobs_again(
    private_server: Callable[..., Server],
) -> None:
    server = private_server(maxmemory="12mb", maxmemory_policy="noeviction")
    rig = Rig(server.client(), "q")
    stored = fill_up(rig, "j", wait=0, size=50_000)
    assert stored > 20
    assert len(rig.state()["timeout_set"]) == stored
    # The server refuses a large command sooner than a small one.
    small = fill_up(rig, "small", wait=5_000, size=10)
    assert rig.reschedule("j0", 5) == ("rescheduled", 5)
    assert rig.cancel("j1") == "cancelled"
    rig.now = 10_000

    got: list[str] = []
    while jobs := rig.claim(7).jobs:
        assert rig.renew(*jobs) == []
        if not got:
            assert rig.retry(jobs[0], wait=0) == []
            assert rig.give_back(jobs[1]) == []
            assert rig.bury(jobs[2]) == []
            assert rig.replay("j4") == 1
            jobs = jobs[3:]
        assert rig.acknowledge(*jobs) == []
        got += [job.token.rstrip("-") for job in jobs]

    taken = {f"j{n}" for n in range(stored)} | {f"small{n}" for n in range(small)}
    assert sorted(got) == sorted(taken - {"j1"})
    rig.schedule({"again": 0})
    assert names_of(rig.claim()) == ["again"]


# Keys of the wrong type.


@pytest.mark.parametrize("stop", TOUR)
def test_key_of_the_wrong_type_is_an_error_before_anything_is_written(
    own_server: Server, stop: str
) -> None:
    client = own_server.client()
    rig = Rig(client, "q")
    client.flushall()
    keys = record_keys(rig)
    TOUR[stop](rig)()
    written_before = {}
    for key in sorted(keys):
        client.flushall()
        rig = Rig(client, "q")
        call = TOUR[stop](rig)
        client.delete(key)
        client.set(key, "another application's")
        before = snapshot(rig)
        try:
            call()
        except ResponseError as error:
            after = snapshot(rig)
            changed = {k for k in before | after if before.get(k) != after.get(k)}
            # These are no loss: the last request of an owner, as its repeat is a new claim; a number that no frame
            # carries; and when the queue was last served.
            harmless = {
                rig.keys.claims.encode(),
                rig.keys.counters.encode(),
                rig.keys.control.encode(),
            }
            if changed - harmless or "WRONGTYPE" not in str(error):
                written_before[key] = str(error), sorted(changed)

    assert written_before == {}


# Rights.


@pytest.mark.parametrize("stop", TOUR)
def test_user_without_rights_to_the_keys_changes_nothing(
    own_server: Server, tour_rig: Rig, stop: str
) -> None:
    rig = tour_rig
    call = TOUR[stop](rig)
    before = snapshot(rig)
    rig.client.acl_setuser(
        "stranger", enabled=True, nopass=True, keys=["elsewhere*"], categories=["+@all"]
    )
    stranger = own_server.client(username="stranger", password="")

    with stranger:
        rig.client, client = stranger, rig.client
        with pytest.raises((NoPermissionError, ResponseError), match=r"(?i)perm|acl"):
            call()
        rig.client = client

    assert snapshot(rig) == before


@pytest.mark.parametrize("stop", TOUR)
def test_refused_publish_fails_no_call(
    own_server: Server, tour_rig: Rig, stop: str
) -> None:
    """A new user of Redis 7 may use no channel, and a script's earlier writes stay."""
    rig = tour_rig
    rig.client.acl_setuser(
        "mute",
        enabled=True,
        nopass=True,
        keys=["*"],
        categories=["+@all"],
        reset_channels=True,
    )
    call = TOUR[stop](rig)
    admin, mute = rig.client, own_server.client(username="mute", password="")

    with mute:
        rig.client = mute
        call()
        rig.client = admin


def test_schedules_catch_up_with_as_many_moments_as_the_script_does():
    """Python counts what a changed schedule has missed, and the script what one that goes on has."""
    (path,) = ROOT.rglob("advance.lua")

    assert f"local MOST_BEHIND = {schedule_writes.MOST_BEHIND}\n" in path.read_text(
        "utf-8"
    )

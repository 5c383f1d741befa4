"""``manage.py delayq_frames``: what it says of a queue, what it does, and how it ends."""

import os
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import (
    BaseCommand,
    CommandError,
    call_command,
    load_command_class,
)
from redis.exceptions import ResponseError

from django_delayq.features.pauses import calls as pause_calls
from django_delayq.management import progress_line
from django_delayq.management.commands import delayq_frames
from django_delayq.management.progress_line import ProgressLine
from django_delayq.tools import frame_calls
from django_delayq.tools.reframe import Reframing
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat, format_of, pack
from tests import forked
from tests.core.rig import T0, Rig
from tests.pages import DOCUMENTS, ROOT, blocks_of
from tests.polling import wait_until
from tests.servers import Server

OLD, NEW = FrameFormat.DLC0, FrameFormat.BC0LC0
HELLO = {OLD: b"\x04\x3e\x05hello", NEW: b"\x03hell\xef"}

Call = Callable[..., tuple[int, str]]
pytestmark = pytest.mark.usefixtures("delayq")


@pytest.fixture
def rig(client: "redis.Redis[bytes]", queue_name: str) -> Rig:
    """The queue that the command is called for. Its clock, T0, lies in the past."""
    return Rig(client, queue_name)


@pytest.fixture
def call(queue_name: str) -> Call:
    """Call the command; return its exit status and what it printed."""

    def call(*arguments: str) -> tuple[int, str]:
        output = StringIO()
        status = 0
        try:
            call_command(
                "delayq_frames", *(arguments or ()), stdout=output, stderr=StringIO()
            )
        except SystemExit as end:
            status = int(str(end.code))
        return status, output.getvalue()

    return lambda *arguments: call(queue_name, *arguments)


def offer(rig: Rig, count: int, wait: int, frame_format: FrameFormat) -> None:
    for n in range(count):
        rig.java_offer(HELLO[frame_format], wait + n, frame_format=frame_format)


def jam(rig: Rig) -> None:
    """Three that arrive again and again, one that stops an old Redisson, five behind it."""
    offer(rig, 3, 0, OLD)
    offer(rig, 1, 3, NEW)
    offer(rig, 5, 4, OLD)
    rig.now = 100
    with pytest.raises(ResponseError, match="data string too short"):
        rig.java_transfer(frame_format=OLD)


def dump(rig: Rig) -> dict[bytes, bytes | None]:
    found = rig.client.scan_iter(match=f"*{rig.keys.queue.name}*", count=1000)
    return {key: rig.client.dump(key) for key in found}


def formats_in(rig: Rig) -> set[FrameFormat | None]:
    waiting = rig.client.zrange(rig.keys.queue.timeout_set, 0, -1)
    return {format_of(frame, len(frame)) for frame in waiting}


# Looking.


def test_jammed_queue_is_told_and_what_to_do_about_it(
    rig: Rig, call: Call, queue_name: str, settings: Any
) -> None:
    settings.TIME_ZONE = "Asia/Kathmandu"
    jam(rig)
    before = dump(rig)

    status, output = call()

    assert status == 0
    assert dump(rig) == before
    lines = {" ".join(line.split()) for line in output.splitlines()}
    assert lines >= {
        "dLc0 up to 3.21.0 8 8 5",
        "Bc0Lc0 from 3.21.1 on 1 1 1",
        "not frames 0 0 0",
        "destination queue 3",
        "It never reaches the 5 due frames behind it.",
        "Each of its processes delivers the 3 due frames ahead of it again every 5 s.",
    }
    assert "STUCK: Redisson up to 3.21.0 stops at a Bc0Lc0 frame" in output
    assert "number 4 of the timeout set, due since 2023-11-15 03:58:20 +0545" in output
    assert "ALREADY DELIVERED: 3 frames" in output
    assert f"manage.py delayq_frames {queue_name} --to 3.21.0 --dry-run" in output
    assert f"manage.py delayq_frames {queue_name} --to 3.21.1 --dry-run" in output
    assert "--follow" in output
    assert "--drop-delivered" in output


def test_paused_queue_is_told(rig: Rig, call: Call, queue_name: str) -> None:
    rig.java_offer("x", 5)
    run(rig.client, pause_calls.pause(rig.keys, reason="migration"))

    assert f"queue {queue_name} has been paused since " in call()[1]


def test_frame_that_is_not_due_yet_is_foretold(rig: Rig, call: Call) -> None:
    offer(rig, 1, 10**12, OLD)
    offer(rig, 1, 10**12 + 5, NEW)

    _, output = call()

    assert "WILL BE STUCK: Redisson up to 3.21.0 will stop at a Bc0Lc0" in output
    assert "due at 2055-" in output
    assert "nothing is due; the first will be at 2055-" in output


def test_queue_of_one_format_is_not_stuck(rig: Rig, call: Call) -> None:
    offer(rig, 3, 10**12, NEW)

    _, output = call()

    assert (
        "All frames have one format, which Redisson from 3.21.1 on reads. Redisson up to"
        in output
    )
    assert "STUCK:" not in output


def test_due_frames_that_nobody_transfers_are_told(rig: Rig, call: Call) -> None:
    offer(rig, 3, 0, NEW)

    _, output = call()

    assert "NOT TRANSFERRED: 3 due frames." in output


def test_everything_odd_is_told(rig: Rig, call: Call) -> None:
    timeout_set = rig.keys.queue.timeout_set
    offer(rig, 2, 0, NEW)
    rig.client.zrem(timeout_set, rig.java_offer("alone", 0))
    rig.client.zadd(timeout_set, {b"bad": T0 + 5})
    for score, text in ((1.5, "a"), (-4, "b")):
        rig.client.zadd(timeout_set, {rig.java_offer(text, 0): score})
    rig.client.zadd(timeout_set, {b"\x08abcdefg\x01" + bytes(8): T0})
    rig.schedule({"a": 0}, insertion_list=False)

    _, output = call()

    assert "STUCK: Redisson from 3.21.1 on stops at 3" in output
    assert "NEVER TRANSFERRED: 1 frame only in the delay queue" in output
    assert "START TIMES: 1 not in whole ms" in output
    assert "START TIMES: 1 below 0" in output
    assert "1 of 17 bytes" in output
    assert "1, INSERTION_LIST is or was off" in output
    assert "Members that are not frames are quarantined" in output


# Settings.


@pytest.mark.parametrize(
    ("configured", "frame_format", "told"),
    [
        (None, OLD, '{"REDISSON": "3.16.6"}'),
        (None, NEW, '{"REDISSON": "4.7.0"}'),
        ({"REDISSON": "3.16.6"}, OLD, "The settings of this queue are correct."),
        ({"REDISSON": "3.27.2"}, NEW, "The settings of this queue are correct."),
        (
            {"REDISSON": "3.27.2"},
            OLD,
            "it writes Bc0Lc0, but dLc0 was found; its codec is Kryo5Codec, but the payloads look like Marshall",
        ),
        (
            {"REDISSON": "3.16.6", "CODEC": "StringCodec", "FRAME": "Bc0Lc0"},
            OLD,
            '{"REDISSON": "3.21.0", "CODEC": "StringCodec"}',
        ),
        ({"REDISSON": "3.16.6", "CODEC": "LongCodec"}, OLD, '{"REDISSON": "3.16.6"}'),
        ({}, OLD, '{"FRAME": "dLc0"}'),
    ],
)
def test_settings_are_held_to_what_was_found(
    rig: Rig,
    call: Call,
    queue_name: str,
    settings: Any,
    configured: dict[str, str] | None,
    frame_format: FrameFormat,
    told: str,
) -> None:
    if configured is not None:
        settings.DELAYQ = settings.DELAYQ | {"QUEUES": {queue_name: configured}}
    offer(rig, 3, 0, frame_format)

    _, output = call()

    assert told in output
    if told.startswith("{"):
        assert f'  DELAYQ["QUEUES"]["{queue_name}"] = {told}\n' in output


def test_queue_of_jobs_alone_needs_no_options(
    rig: Rig, call: Call, queue_name: str
) -> None:
    rig.schedule({"a": 0})

    _, output = call()

    assert f'  DELAYQ["QUEUES"]["{queue_name}"] = {{}}\n' in output


def test_codec_of_their_own_is_told(rig: Rig, call: Call) -> None:
    for n in range(5):
        rig.java_offer(random.Random(n).randbytes(200), n)

    _, output = call()

    assert "unknown: plain, encrypted" in output
    assert "set CODEC to an object with name, encode and decode" in output


def test_payloads_of_several_codecs_are_told(rig: Rig, call: Call) -> None:
    offer(rig, 3, 0, OLD)
    rig.java_offer('{"@class":"demo.Order","id":1}', 0)

    _, output = call()

    assert "several, or a custom one: MarshallingCodec 3" in output


# Names.


def test_name_without_its_prefix_leads_to_the_queue(
    client: "redis.Redis[bytes]", call: Call, queue_name: str
) -> None:
    offer(Rig(client, f"app:{queue_name}"), 1, 0, OLD)

    status, output = call()

    assert status == 0
    assert f"\n  manage.py delayq_frames app:{queue_name}\n" in output
    assert f'"app:{queue_name}"' in output
    assert "NameMapper" in output


def test_name_that_nothing_has_is_told(call: Call) -> None:
    status, output = call()

    assert status == 0
    assert "No other queue's name contains this one" in output


def test_name_whose_braces_part_its_keys_is_refused(client: object) -> None:
    with pytest.raises(CommandError, match="different slots of a Redis Cluster"):
        call_command("delayq_frames", "a{b")


# Rewriting.


@pytest.mark.parametrize(
    ("to", "target"),
    [("3.27.2", NEW), ("Bc0Lc0", NEW), ("3.16.6", OLD), ("dLc0", OLD)],
)
def test_rewrite_leaves_one_format_and_says_how_much_it_did(
    rig: Rig, call: Call, to: str, target: FrameFormat
) -> None:
    jam(rig)

    status, output = call("--to", to)

    assert status == 0
    assert formats_in(rig) == {target}
    assert f"{8 if target is NEW else 1:12,}  rewritten" in output
    assert "0  still in another format" in output
    assert "Nothing stops Redisson" in output
    assert "9  in this format now" in output


def test_delivered_ones_are_removed_when_asked(rig: Rig, call: Call) -> None:
    jam(rig)

    _, output = call("--to", "3.16.6", "--drop-delivered")

    assert "3  removed, already delivered" in output
    assert "6  in this format now" in output


def test_what_is_no_frame_goes_to_quarantine(rig: Rig, call: Call) -> None:
    offer(rig, 2, 0, NEW)
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad": T0})

    status, output = call("--to", "4.7.0")

    assert status == 0
    assert "1  quarantined" in output
    assert rig.client.hvals(rig.keys.payloads) == [b"bad"]


@pytest.mark.parametrize("drop", [True, False])
def test_dry_run_changes_nothing_and_says_what_would_be_done(
    rig: Rig, call: Call, drop: bool
) -> None:
    jam(rig)
    rig.client.zadd(rig.keys.queue.timeout_set, {b"bad": T0 + 50})
    rig.client.zrem(rig.keys.queue.timeout_set, rig.java_offer("alone", 0))
    before = dump(rig)

    options = ["--drop-delivered"] if drop else []
    status, output = call("--to", "3.27.2", "--dry-run", *options)

    assert status == 1
    assert dump(rig) == before
    assert f"{5 if drop else 8:12,}  would be rewritten in the timeout set" in output
    assert ("3  already delivered, would be removed" in output) == drop
    assert "1  not frames, would be quarantined" in output
    assert "Nothing was changed." in output


def test_dry_run_is_the_number_that_a_run_has(rig: Rig, call: Call) -> None:
    jam(rig)
    _, plan = call("--to", "3.27.2", "--dry-run", "--drop-delivered")
    _, done = call("--to", "3.27.2", "--drop-delivered")

    assert "5  would be rewritten" in plan
    assert "5  rewritten" in done


def test_dry_run_where_nothing_is_left_to_do_ends_with_zero(
    rig: Rig, call: Call
) -> None:
    offer(rig, 2, 0, NEW)

    assert call("--to", "3.27.2", "--dry-run")[0] == 0


def test_status_is_one_where_something_is_left(
    rig: Rig, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    jam(rig)
    monkeypatch.setattr(Reframing, "run", lambda self: self.tally)

    status, output = call("--to", "3.27.2")

    assert status == 1
    assert "8  still in another format" in output
    assert "run it again, or use --follow" in output.lower()


# Following.


def test_follow_goes_on_until_interrupted(
    rig: Rig, server: Server, queue_name: str
) -> None:
    jam(rig)
    child = forked.Popen(
        [
            *(sys.executable, "-m", "django", "delayq_frames", queue_name),
            *("--to", "3.27.2", "--follow"),
        ],
        env=os.environ
        | {
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DELAYQ_TEST_URL": server.socket_url,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdout is not None
    assert (
        "Rewritten so far: 8. Still running; press Ctrl-C to stop."
        in child.stdout.readline()
    )

    offer(rig, 3, 10**12, OLD)
    wait_until(lambda: formats_in(rig) == {NEW}, description="rewritten")
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)

    assert child.returncode == 0, output
    assert "11  rewritten" in output
    assert "0  still in another format" in output


# What the documentation says of it.


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_on_a_page_can_be_given(document: Path) -> None:
    command = load_command_class("django_delayq", "delayq_frames")
    parser = command.create_parser("manage.py", "delayq_frames")
    for block in blocks_of(document):
        for line in block.text.splitlines():
            _, found, arguments = line.partition("manage.py delayq_frames ")
            if found:
                parser.parse_args(shlex.split(arguments.partition("   ")[0]))


def test_every_option_is_documented() -> None:
    parser = load_command_class("django_delayq", "delayq_frames").create_parser("", "")
    of_django = BaseCommand().create_parser("", "")._option_string_actions
    page = (ROOT / "docs" / "howto" / "upgrade-redisson.md").read_text("utf-8")
    for action in parser._actions:
        for option in action.option_strings:
            assert option in of_django or f"`{option}" in page, option


# Redisson's list.


def test_list_of_a_queue_is_emptied_and_filled(rig: Rig, call: Call) -> None:
    rig.schedule({"a": 9_000, "b": 8_000})
    rig.java_offer("x", 7_000)
    lone = pack(b"12345678", b"lone", NEW)
    rig.client.rpush(rig.keys.queue.delay_queue, lone)
    before = dump(rig)

    status, output = call("--list", "off", "--dry-run")

    assert (status, dump(rig)) == (0, before)
    lines = {" ".join(line.split()) for line in output.splitlines()}
    assert lines >= {
        "Dry run, list off. Nothing was changed.",
        "3 would be removed from the list, and still wait",
        "1 only in the list, would stay there",
    }

    status, output = call("--list", "off")

    assert status == 0
    assert rig.frames() == [lone]
    lines = {" ".join(line.split()) for line in output.splitlines()}
    assert lines >= {
        "List off, in 1 step:",
        "3 removed from the list; they still wait",
        "1 only in the list, never transferred; they stay there",
    }
    assert "so it does not show what was delivered" in call()[1]

    lines = {
        " ".join(line.split())
        for line in call("--list", "on", "--dry-run")[1].splitlines()
    }
    assert "3 would be added to the list" in lines
    status, output = call("--list", "on")

    assert status == 0
    assert "3  added to the list" in output
    assert len(rig.frames()) == 4
    assert rig.state()["delay_queue"][1:3] == ["a", "b"]
    assert "does not show" not in call()[1]
    rig.is_checked = False


@pytest.mark.parametrize(
    ("options", "wanted", "message"),
    [
        ({}, "on", "keeps no list, so jobs scheduled from now on would be missing"),
        ({"INSERTION_LIST": True}, "off", "keeps the list, which would fill up again"),
        (
            {"REDISSON": "4.7.0", "CODEC": "StringCodec"},
            "off",
            "Set INSERTION_LIST to False, restart all processes",
        ),
    ],
)
def test_list_is_not_brought_out_of_line_with_the_settings(
    rig: Rig,
    call: Call,
    settings: Any,
    queue_name: str,
    options: dict[str, Any],
    wanted: str,
    message: str,
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {queue_name: options}}
    rig.schedule({"a": 9_000})
    before = dump(rig)

    with pytest.raises(CommandError, match=message) as error:
        call("--list", wanted)

    assert queue_name in str(error.value)
    assert dump(rig) == before


def test_second_list_command_is_told_to_wait(rig: Rig, call: Call) -> None:
    rig.schedule({"a": 9_000, "b": 9_000})
    run(rig.client, frame_calls.delist(rig.keys, run="other", step=1, batch=1))

    with pytest.raises(CommandError, match="another process is filling or emptying"):
        call("--list", "off")
    rig.is_checked = False


def test_list_command_that_is_killed_leaves_the_queue_in_order(
    rig: Rig, call: Call, server: Server
) -> None:
    names = [f"j{n}" for n in range(20_000)]
    for first in range(0, len(names), 500):
        rig.schedule({name: 9_000 for name in names[first : first + 500]})
    queue = rig.keys.queue
    for _ in range(3):
        left = rig.client.llen(queue.delay_queue)
        child = forked.Popen(
            [
                *(sys.executable, "-m", "django", "delayq_frames", queue.name),
                *("--list", "off"),
            ],
            env=os.environ
            | {
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "DELAYQ_TEST_URL": server.socket_url,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        has_begun = lambda left=left, child=child: (  # noqa: E731
            rig.client.llen(queue.delay_queue) < left or child.poll() is not None
        )
        wait_until(has_begun, description="it takes frames out")
        child.kill()
        output, _ = child.communicate(timeout=60)
        # On a quick machine it may have come to its end.
        assert child.returncode in (0, -signal.SIGKILL), output
        rig.check()
        # Nobody waits half a minute for the dead one here.
        rig.client.hdel(rig.keys.control, "listing")

    assert call("--list", "off")[0] == 0

    assert rig.frames() == []
    assert len(rig.state()["timeout_set"]) == len(names)
    rig.check()


# Errors, interruptions, progress.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dry-run"], "--dry-run needs --to"),
        (["--follow"], "--follow needs --to"),
        (["--drop-delivered"], "--drop-delivered needs --to"),
        (["--to", "3.21"], "give the third number as well"),
        (["--to", "dlc0"], "give a format: dLc0 or Bc0Lc0"),
        (["--to", "4.0", "--follow", "--dry-run"], "give one"),
        (["--to", "4.0", "--list", "on"], "--to and --list cannot be combined"),
        (["--list", "on", "--follow"], "--follow needs --to"),
        (["--list", "off", "--drop-delivered"], "--drop-delivered needs --to"),
        (["--list", "yes"], "invalid choice: 'yes'"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    call: Call, options: list[str], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        call(*options)


def test_key_of_another_application_is_an_error(rig: Rig, call: Call) -> None:
    rig.client.set(rig.keys.queue.timeout_set, "x")

    with pytest.raises(
        CommandError,
        match=r"(?s)Something else uses a key of this queue.*WRONGTYPE.*Nothing was changed",
    ):
        call("--to", "3.27.2")


def test_server_that_cannot_be_reached_is_an_error(call: Call, settings: Any) -> None:
    settings.DELAYQ = {"CONNECTION": "unix:///dev/null/nobody"}

    with pytest.raises(CommandError, match="run the command again"):
        call()


@pytest.mark.parametrize("options", [[], ["--to", "3.27.2"]])
def test_interrupt_says_that_nothing_is_half_done(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    jam(rig)
    output = StringIO()

    def interrupt(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    if options:
        monkeypatch.setattr(Reframing, "run", interrupt)
    else:
        monkeypatch.setattr(delayq_frames, "take_survey", interrupt)

    with pytest.raises(CommandError, match="No step is half done; run the command"):
        call_command("delayq_frames", rig.keys.queue.name, *options, stdout=output)

    assert bool(options) == ("0  rewritten" in output.getvalue())


class Terminal(StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str, ending: str = "\n") -> int:
        return super().write(text + ending)

    write_styled = write


def test_progress_is_one_line_on_a_terminal_and_a_few_in_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms = 0.0
    monkeypatch.setattr(progress_line, "monotonic_ms", lambda: now_ms)
    terminal, log = Terminal(True), Terminal(False)
    lines = [ProgressLine(stream, is_on=True) for stream in (terminal, log)]

    for second in range(12):
        now_ms = second * 1000.0
        for line in lines:
            line("reading the delay queue", second * 1000, 20_000)
    for line in lines:
        line.end()

    assert log.getvalue().splitlines() == [
        "reading the delay queue: 5,000 of 20,000",
        "reading the delay queue: 10,000 of 20,000",
    ]
    assert terminal.getvalue().count("\r\x1b[K") == 12
    assert terminal.getvalue().endswith(
        "reading the delay queue: 11,000 of 20,000\r\x1b[K"
    )

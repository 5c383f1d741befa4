"""Every page of the admin in a language in which texts of ours have no ASCII letter: what has one cannot be translated.

And in those that we speak.

`tests/test_catalog.py` reads the branches of templates and modules that are not walked here.
"""

import contextlib
import copy
import pickle
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command, load_command_class
from django.core.management.base import BaseCommand
from django.test import Client
from django.utils import timezone, translation
from django.utils.translation import to_language
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from django_delayq import (
    Batch,
    Limit,
    cron,
    delayed_task,
    ended_jobs,
    limits,
    pause,
    periodic,
    schedule_many,
    set_limit,
    translations,
)
from django_delayq.conf import forget_connections, get_keyring
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.display.texts import size_text
from django_delayq.display.time_texts import Moment, relative_text
from django_delayq.exceptions import EmbeddedServerError, InvalidSettings
from django_delayq.faults import describe_fault
from django_delayq.features.ended import calls as ended_calls
from django_delayq.features.ended.calls import EndRecord
from django_delayq.features.pauses import calls as pause_calls
from django_delayq.features.statistics import charts
from django_delayq.jobs.actions import ACTIONS
from django_delayq.management import commands
from django_delayq.translations import say, state_label
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat, pack
from django_delayq.wording import gettext, ngettext, sentence
from tests.admin import living
from tests.admin.conftest import url
from tests.admin.filling import TASK, Queue, error
from tests.admin.visiting import SIZES, Visitor
from tests.catalog import LANGUAGES, english_beside, translated
from tests.pseudo import LANGUAGE, write_pseudo_locale

#: What people read of an element without text.
_SHOWN = {
    "input": ("value", "placeholder", "aria-label", "title"),
    "button": ("aria-label", "title"),
    "img": ("alt",),
    "p": ("aria-label",),
}
#: Tokens and ids of jobs, which may contain any other name.
_IDS = re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])")
#: Names of zones, ids of workers, and what a page of an error quotes.
_NAMES = re.compile(
    r"\bUTC\b|\bp(?:50|99)\b|\bEurope/Berlin\b|\bbuiltins\.ValueError\b|\b[0-9a-f]{16}\b"
)
NOW_MS = 1_790_000_000_000


class Reader(HTMLParser):
    """Collects what people read below ``#content``, in the trail and in the messages."""

    #: Elements without an end.
    EMPTY = ("input", "br", "img", "meta", "link", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._open: list[tuple[str, bool]] = []

    def handle_starttag(
        self, tag: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        values = {name: value or "" for name, value in attributes}
        is_ours = values.get("id") == "content" or bool(
            {"breadcrumbs", "messagelist"} & set(values.get("class", "").split())
        )
        is_read = is_ours or bool(self._open and self._open[-1][1])
        # Payloads, errors and tracebacks as they are.
        is_read = is_read and tag != "pre"
        if is_read and values.get("type") != "hidden":
            # Nobody sees the value of a box to tick.
            is_box = values.get("type") == "checkbox"
            for name in _SHOWN.get(tag, ()):
                if is_box and name == "value":
                    continue
                self.texts.append(values.get(name, ""))
        if tag not in self.EMPTY:
            self._open.append((tag, is_read))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][1] and data.strip():
            self.texts.append(" ".join(data.split()))


def untranslated(response: Any, *data: str) -> list[str]:
    """Return what a page shows that is neither wrapped nor data."""
    reader = Reader()
    reader.feed(response.content.decode())
    assert any("⟦" in text for text in reader.texts), "no text of ours at all"
    found = []
    for text in reader.texts:
        left = _IDS.sub("", text)
        for name in sorted(data, key=len, reverse=True):
            left = left.replace(name, "")
        left = _NAMES.sub("", left)
        if re.search("[A-Za-z]", left):
            found.append(text)
    return found


@pytest.fixture
def pseudo(settings: Any, tmp_path: Path) -> Iterator[None]:
    """The language whose texts are wrapped."""
    settings.LOCALE_PATHS = [write_pseudo_locale(tmp_path / "locale")]
    settings.LANGUAGE_CODE = LANGUAGE
    # Abbreviations of other zones are letters that nobody translates.
    settings.TIME_ZONE = "UTC"
    yield
    translation.deactivate()


@pytest.fixture
def full(queue: Queue, settings: Any) -> Queue:
    """A queue with a job in every state, and with everything that is warned of."""
    settings.DELAYQ["QUEUES"][queue.name] = {
        "MAX_JOBS": 8,
        "MAX_DEAD": 1,
        "REDISSON": "3.16.6",
        "CODEC": "StringCodec",
    }
    forget_connections(setting="DELAYQ")
    return queue


def fill(queue: Queue) -> dict[str, str]:
    """Put a job into every state; returns their tokens."""
    return {
        "running": queue.running(1).token,
        "retrying": queue.retrying(3),
        "held": queue.held(4),
        "unread": queue.held_for_key(reason=Reason(Kind.FORMAT, "9")),
        "dead": queue.dead(5, error_text=error("7", traceback="8", at_ms=NOW_MS)),
        "quarantined": queue.quarantined(b"19"),
        # The last: whoever claims next takes it.
        "expired": queue.running(2, lease_ms=1).token,
        "scheduled": queue.schedule(
            90_000_000, 6, unique="9", options={"max_attempts": 3}
        ),
    }


def every_page(full: Queue, tokens: dict[str, str]) -> list[str]:
    """Return the addresses of the pages that show a queue, which get something to show."""
    full.push(b"17")
    full.add_member(b"18", NOW_MS * 2)
    record = EndRecord("x" * 22, "20", State.SUCCEEDED, NOW_MS, 1.5, 2.5, 1)
    run(full.client, ended_calls.note_ended(full.keys, [record], keep=100))
    run(full.client, pause_calls.pause(full.keys, task="21", by="22", reason="23"))
    pause(full.name, until=3600, reason="24", by="25")
    living.serve(full, tokens["running"], host="26", version="0.0.1")
    living.measure(full, shop__tasks__send_reminder=living.figures_of(20, failed=3))
    return [
        url("changelist"),
        url("workers"),
        url("tasks"),
        url("pause", full.name),
        url("schedules", full.name),
        url("queue", full.name) + "?state=ended",
        url("queue", "default"),
        url("queue", "default") + "?state=ended",
        url("job", full.name, "x" * 22),
        *(
            url("queue", full.name) + f"?state={state}"
            for state in ("scheduled", "due", "running", "retrying", "held", "dead")
        ),
        url("queue", full.name) + "?state=quarantined",
        *(url("job", full.name, token) for token in tokens.values()),
        url("cancel", full.name, tokens["scheduled"]),
        url("discard", full.name, tokens["dead"]),
        url("limits", full.name),
        url("search"),
        url("search") + f"?queue={full.name}&q=27",
        url("search") + f"?queue={full.name}&state=dead",
        url("search") + "?due_from=2026-01-02T00:00&due_to=2026-01-01T00:00",
        url("queue", full.name) + "?state=ended&q=27",
    ]


def test_no_page_shows_a_text_that_cannot_be_translated(
    browser: Client, full: Queue, pseudo: None
) -> None:
    tokens = fill(full)
    pages = every_page(full, tokens)
    # What this project names itself, and what the queue's settings are.
    data = (
        full.name, TASK, "default", "user0", "3.16.6", "StringCodec", "dLc0",
        "OWNER-01", "it broke", "task", " --task 21", "NotSigned: it is signed with the format 9.",
        # What other tests have run.
        *(each.task for each in ended_jobs("default")),
    )  # fmt: skip
    # A unit of Django's own.
    data = (*data, "2026-01-02T00:00", "2026-01-01T00:00", "MB")

    found = {page: untranslated(browser.get(page), *data) for page in pages}
    for action in ACTIONS:
        ticked = {"action": f"{action}:ticked", "job": f"{full.name}:{tokens['dead']}"}
        every = {"action": f"{action}:all", "filter": f"queue={full.name}&q=27"}
        for asked in (ticked, every):
            page = browser.post(url("bulk"), asked)
            found[str(asked)] = untranslated(page, *data)

    assert {page: texts for page, texts in found.items() if texts} == {}
    index = browser.get("/admin/").content.decode()
    assert "⟦Ｄｅｌａｙｅｄ ｊｏｂｓ⟧" in index
    assert "⟦Ｑｕｅｕｅｓ ａｎｄ ｊｏｂｓ⟧" in index.replace("⟦ｑ", "⟦Ｑ")


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_page_shows_an_english_text(
    browser: Client, full: Queue, settings: Any, language: str
) -> None:
    settings.LANGUAGE_CODE = to_language(language)
    english = english_beside(language)
    sentences = {text for text in english if text.count(" ") > 1}
    found = set()

    for page in every_page(full, fill(full)):
        reader = Reader()
        reader.feed(browser.get(page).content.decode())
        whole = " ".join(reader.texts)
        found |= english & set(reader.texts)
        found |= {text for text in sentences if text in whole}

    assert found == set()
    queues = translated(language).get("Queues").string
    assert queues in browser.get("/admin/").content.decode()


@pytest.mark.browser
@pytest.mark.parametrize("language", LANGUAGES)
def test_no_page_is_wider_than_a_phone(
    visitor: Visitor, full: Queue, settings: Any, language: str
) -> None:
    settings.LANGUAGE_CODE = to_language(language)
    pages = every_page(full, fill(full))
    visitor.driver.set_window_size(*SIZES["phone"])

    for number, page in enumerate(pages):
        visitor.open(page)
        visitor.picture(f"{language}-{number}")
        visitor.driver.set_window_size(*SIZES["phone"])


def test_what_belongs_to_a_job_is_translated(
    browser: Client, queue: Queue, pseudo: None
) -> None:
    @delayed_task(name="1", queue=queue.name, limit=Limit("2", concurrency=3))
    def limited() -> None: ...

    @delayed_task(name="4", queue=queue.name)
    def plain() -> None: ...

    batch = Batch(plain.prepare(0))
    (member,) = batch.schedule([plain.prepare(3600)])
    first = limited.prepare(3600).then(plain.prepare(0)).on_dead(plain.prepare(0))
    schedule_many([first])
    set_limit(queue.name, concurrency=1_234, rate="20/2s")
    addresses = [
        url("queue", queue.name),
        *(url("job", queue.name, job.token) for job in (batch.callback, member, first)),
    ]

    for address in addresses:
        page = browser.get(address)

        assert untranslated(page, queue.name, by_of(queue.name), "20/2s", "task") == []
    assert "1.234" in browser.get(addresses[0]).content.decode()


def by_of(name: str) -> str:
    return limits(name)[0].by


def test_page_of_schedules_has_its_buttons_translated(
    browser: Client, queue: Queue, pseudo: None
) -> None:
    @periodic(cron("0 9 * * 1-5", tz="Europe/Berlin"), queue=queue.name, name="1")
    @delayed_task(name="2")
    def report() -> None: ...

    address = url("schedules", queue.name)
    data = (queue.name, "user0", "cron('0 9 * * 1-5', tz='", "cron('1 9 * * *', tz='")

    for action, more in (
        ("fire", {}),
        ("change", {"cron": "1 9 * * *", "tz": "UTC"}),
        ("pause", {"reason": "3"}),
        ("resume", {}),
        ("take-back", {}),
    ):
        posted = {"name": "1", "action": action, **more}
        page = browser.post(address, posted, follow=True)

        assert untranslated(page, *data) == [], action
    entry = LogEntry.objects.order_by("pk")[0]
    assert entry.change_message.startswith(
        "⟦Ｆｉｒｅ ｓｃｈｅｄｕｌｅ 1.⟧ → ⟦Ｓｃｈｅｄｕｌｅ"
    )


@pytest.mark.parametrize("action", ["run_now", "retry", "cancel", "discard", "resume"])
def test_what_an_action_says_is_translated(
    browser: Client, queue: Queue, pseudo: None, action: str
) -> None:
    token = queue.dead() if action in ("retry", "discard") else queue.schedule()
    parts = (queue.name,) if action == "resume" else (queue.name, token)
    pause(queue.name)

    for _ in range(2):
        page = browser.post(url(action, *parts), follow=True)

        (message,) = page.context["messages"]
        assert str(message).startswith("⟦")
        told = _IDS.sub("", str(message)).replace(queue.name, "")
        assert not re.search("[A-Za-z]", told)


def test_server_that_does_not_answer_is_told_in_the_readers_language(
    browser: Client, queue: Queue, pseudo: None, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONNECTION": "unix:///dev/null/nobody"}

    page = browser.get(url("changelist"))

    # The error's own words stand as they are, and are not read here.
    assert untranslated(page) == []
    assert "/dev/null/nobody" in page.content.decode()


def test_dates_and_numbers_are_those_of_the_language(
    pseudo: None,
) -> None:
    with translation.override("en"):
        english = Moment.of(NOW_MS + 7_200_007, NOW_MS)
        assert english is not None
        assert english.local == "2026-09-21 16:13:20.007"
        assert size_text(1_234_567) == "1,234,567 bytes"
    with translation.override(LANGUAGE):
        german = Moment.of(NOW_MS + 7_200_007, NOW_MS)
        assert german is not None
        assert german.local == "21.09.2026 16:13:20.007"
        assert size_text(1_234_567) == "⟦1.234.567 ｂｙｔｅｓ⟧"
        assert size_text(1) == "⟦1 ｂｙｔｅ⟧"
        assert relative_text(65_000) == "⟦ｉｎ ⟦1 ｍｉｎ⟧ ⟦5 ｓ⟧⟧"


def test_text_writes_its_numbers_and_moments_as_the_language_does() -> None:
    moment = datetime(2026, 9, 21, 16, tzinfo=UTC)
    with translation.override("de"), timezone.override(UTC):
        assert translations.gettext("{a}, {b}", a=1_234, b=moment) == (
            "1.234, 21.09.2026 16:00:00 UTC"
        )
        assert translations.gettext("{a}, {b}", a=2.0, b="1234") == "2, 1234"
        assert (
            translations.gettext("{a}; {b}", a=1.5, b=1_234_567.0) == "1,5; 1.234.567"
        )
        assert translations.gettext("{a}", a=0.1 + 0.2) == "0,3"
        assert translations.gettext("{a}") == "{a}"
        assert translations.ngettext("{number} {a}", "{number} {a}s", 5_000, a="x") == (
            "5.000 xs"
        )


@pytest.mark.parametrize(
    ("clause", "said"),
    [("it is late", "It is late."), ("late: why?", "Late: why?"), ("so.", "So.")],
)
def test_sentence_ends_in_one_stop_whatever_its_clause_ends_in(
    clause: str, said: str
) -> None:
    assert sentence(gettext("{words}", words=clause)) == said
    with translation.override("zh-hans"):
        assert say(sentence(clause))[-2:] not in ("。。", ".。", "?。")


@pytest.mark.parametrize(
    "clause", ["cron('x') is no moment", "max_attempts is 0", "args[0] is a set"]
)
def test_sentence_that_begins_with_code_leaves_it_as_it_is(clause: str) -> None:
    assert sentence(clause) == f"{clause}."


def test_large_numbers_at_an_axis_are_written_as_the_language_does() -> None:
    with translation.override("de"):
        assert charts._short_number(1_500_000) == "1,5 Mio."


def test_wording_is_english_to_logs_and_translated_on_pages(pseudo: None) -> None:
    held = ngettext(
        "{number:,} job is held: it has format {format}, but this version of django-delayq reads format {ours}.",
        "{number:,} jobs are held: they have format {format}, but this version of django-delayq reads format {ours}.",
        1_234,
        format="9",
        ours=2,
    )
    one = sentence(gettext("queue {queue}", queue="{mail}"))

    assert held == (
        "1,234 jobs are held: they have format 9, but this version of django-delayq reads format 2."
    )
    assert one == "Queue {mail}."
    assert type(pickle.loads(pickle.dumps(one))) is str
    assert copy.deepcopy(held) == held
    with translation.override(LANGUAGE):
        assert say(held).startswith("⟦1.234 ｊｏｂｓ ａｒｅ ｈｅｌｄ")
        assert say(one) == "⟦⟦ｑｕｅｕｅ {mail}⟧.⟧"
        assert say("plain") == "plain"
        assert say(describe_fault(ConnectionError("x")).what).startswith("⟦")
        assert state_label("dead") == "⟦ｄｅａｄ⟧"
    assert say(held) != held
    with translation.override("en"):
        assert say(held) == held


@pytest.mark.parametrize(
    "error",
    [
        InvalidSettings("1"),
        EmbeddedServerError("1"),
        AuthenticationError("1"),
        ResponseError("DB index is out of range"),
        InvalidResponse("1"),
        BusyLoadingError("1"),
        RedisConnectionError("Connection closed by server"),
        RedisConnectionError("was forked"),
        RedisConnectionError("1"),
        NoPermissionError("1"),
        ReadOnlyError("1"),
        OutOfMemoryError("1"),
        ResponseError("WRONGTYPE"),
        ResponseError("1"),
    ],
)
def test_what_an_error_means_is_translated_and_its_own_text_is_not(
    pseudo: None, error: Exception
) -> None:
    fault = describe_fault(error)

    assert fault.message == str(error)
    for text in (fault.what, fault.hint):
        assert not re.search("[A-Za-z]", say(text))
        assert re.match("[A-Z]", text)


def test_what_is_found_among_frames_is_told_in_the_readers_language(
    queue: Queue, pseudo: None, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.schedule()
    for format in FrameFormat:
        due_ms = NOW_MS if format is FrameFormat.DLC0 else 2 * NOW_MS
        queue.add_member(pack(b"8 bytes!", b"1", format), due_ms)
    queue.add_member(b"2", 1.5)
    queue.push(b"3")
    name = queue.name

    for arguments in (
        [],
        ["--to", "3.27.2", "--dry-run"],
        ["--list", "off", "--dry-run"],
    ):
        with contextlib.suppress(SystemExit):
            call_command("delayq_frames", name, *arguments)

    told = capsys.readouterr().out
    told = re.sub(r"manage\.py delayq_frames .*?--dry-run", "", told)
    for data in (name, "dLc0", "Bc0Lc0", "UTC", "StringCodec", "ByteArrayCodec"):
        told = told.replace(data, "")
    told = re.sub(r"\b\w+Codec\b", "", told)
    assert told.count("⟦") > 20
    assert re.findall("[A-Za-z]{2,}", told) == []


@pytest.mark.parametrize(
    "command",
    [path.stem for path in Path(commands.__path__[0]).glob("delayq_*.py")],
)
def test_help_of_a_command_is_translated(pseudo: None, command: str) -> None:
    parser = load_command_class("django_delayq", command).create_parser("", command)
    django = BaseCommand().create_parser("", command)
    theirs = {action.dest for action in django._actions}

    for action in parser._actions:
        if action.dest not in theirs:
            assert not re.search("[A-Za-z]", str(action.help)), action.dest
    for text in (parser.description, parser.epilog):
        assert text is not None
        assert not re.search("[A-Za-z]", text)
    assert "⟦" in parser.format_help()


def test_commands_speak_the_readers_language_too(
    queue: Queue, pseudo: None, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("delayq_resume", queue.name)
    call_command("delayq_pause")
    call_command("delayq_frames", queue.name)
    call_command("delayq_resign", queue.name)
    call_command("delayq_schedules", "--queue", queue.name)

    told = capsys.readouterr().out.replace(queue.name, "")
    for name in ("default", *get_keyring().ids):
        told = told.replace(name, "")

    assert told.count("⟦") >= 5
    assert re.findall("[A-Za-z]{2,}", told) == []

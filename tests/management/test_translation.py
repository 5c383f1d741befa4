"""What the commands say in another language: no text of ours is left in English."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import load_command_class
from django.core.management.base import BaseCommand
from django.utils import translation
from django.utils.translation import to_language

from django_delayq import State, pause, schedule
from django_delayq.core.worker_registry import RunningJob
from django_delayq.management import commands
from django_delayq.management.jobs_list import ENDED
from tests.catalog import LANGUAGES, english_beside
from tests.jobs import samples
from tests.jobs.conftest import LATER
from tests.jobs.hand import Hand
from tests.management.conftest import Call, serve
from tests.pseudo import LANGUAGE, write_pseudo_locale

#: Data and names: states as --state takes them, units of bytes, names of servers and of errors.
_DATA = re.compile(
    r"manage\.py \S+( --queue \S+| \S+)|tests\.jobs\.samples\.\w+|[\w-]{22}|q-\w+|web1|ValueError: no|failed"
    r"|\w+://\S+|Valkey|Redis|primary|working|\d\.\d\.\w+|\bP(50|99)\b|MB|KB|Bytes|[0-9a-f]{16}|UTC|\S+@\S+|DELAYQ\S*|\ba=\d"
)


@pytest.fixture
def pseudo(settings: Any, tmp_path: Path) -> Iterator[None]:
    """The language whose texts are wrapped."""
    settings.LOCALE_PATHS = [write_pseudo_locale(tmp_path / "locale")]
    settings.LANGUAGE_CODE = LANGUAGE
    # Abbreviations of other zones are letters that nobody translates.
    settings.TIME_ZONE = "UTC"
    with translation.override(LANGUAGE):
        yield


def untranslated(text: str) -> list[str]:
    return re.findall("[A-Za-z]{2,}", _DATA.sub("", text))


def test_help_of_each_verb_is_translated(pseudo: None) -> None:
    parser = load_command_class("django_delayq", "delayq_jobs").create_parser("", "")
    (verbs,) = (a for a in parser._actions if a.dest == "verb")
    django = BaseCommand().create_parser("", "")._option_string_actions
    # `list` takes one word more.
    states = "|".join([*State, ENDED])

    for name, verb in verbs.choices.items():
        helps = [
            re.sub(rf"\b({states})\b", "", str(action.help))
            for action in verb._actions
            if not set(action.option_strings) & set(django)
        ]
        assert [each for each in helps if re.search("[A-Za-z]", each)] == [], name


@pytest.mark.parametrize(
    "arguments",
    [
        ("delayq_jobs", "list"),
        ("delayq_jobs", "show", "DEAD"),
        ("delayq_jobs", "show", "RUNNING"),
        ("delayq_jobs", "cancel", "RUNNING"),
        ("delayq_jobs", "cancel", "--queue", "QUEUE", "--dry-run"),
        ("delayq_jobs", "cancel", "--queue", "QUEUE", "--yes"),
        ("delayq_health",),
        ("delayq_health", "--worker"),
    ],
)
def test_commands_speak_the_readers_language(
    queue: str, hand: Hand, call: Call, pseudo: None, arguments: tuple[str, ...]
) -> None:
    task = samples.add.using(queue=queue)
    dead = schedule(task, 0, 1)
    hand.bury(hand.take())
    running = schedule(task, 0, 2)
    hand.take()
    schedule(task, LATER, 3)
    pause(f"{queue}-2")
    names = {"DEAD": dead.id, "RUNNING": running.id, "QUEUE": queue}

    said = call(*(names.get(each, each) for each in arguments))

    text = said.out + said.err
    assert "⟦" in text
    assert untranslated(text) == []


def test_status_speaks_the_readers_language(
    queue: str, hand: Hand, call: Call, pseudo: None
) -> None:
    schedule(samples.add.using(queue=queue), LATER, 3)
    job = RunningJob(queue, "T", samples.add.name, 5)
    serve(hand, f"{queue}-2", jobs=[job] * 5, version="0.0.1")
    pause(queue)

    said = call("delayq_status")

    # Of the checks of the server, some are English in every language.
    ours = [part for part in re.split(r"\n\n", said.out) if "appendonly" not in part]
    assert untranslated("\n\n".join(ours)) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_command_says_an_english_text(
    queue: str, hand: Hand, call: Call, settings: Any, language: str
) -> None:
    settings.LANGUAGE_CODE = to_language(language)
    task = samples.add.using(queue=queue)
    schedule(task, 0, 1)
    hand.bury(hand.take())
    job = schedule(task, LATER, 3)
    serve(hand, f"{queue}-2", version="0.0.1")
    pause(f"{queue}-2")
    english = english_beside(language)
    sentences = {text for text in english if text.count(" ") > 1}

    with translation.override(to_language(language)):
        said = [
            call("delayq_status"),
            call("delayq_health"),
            call("delayq_jobs", "list"),
            call("delayq_jobs", "show", job.id),
            call("delayq_jobs", "cancel", "--queue", queue, "--yes"),
            call("delayq_frames", queue),
            call("delayq_pause"),
        ]
        told = [each.out + each.err for each in said]
        for path in Path(commands.__path__[0]).glob("delayq_*.py"):
            command = load_command_class("django_delayq", path.stem)
            told.append(command.create_parser("", path.stem).format_help())

    assert len(told) > len(said) + 5
    whole = " ".join(" ".join(told).split())
    assert {text for text in sentences if text in whole} == set()

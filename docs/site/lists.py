"""Writes the pages on commands and log lines: from the parsers of the commands, and from the calls of the loggers."""

import ast
import re
from argparse import SUPPRESS, ArgumentParser, HelpFormatter, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

from django.core.management import load_command_class
from django.core.management.base import BaseCommand

import django_delayq

PACKAGE = Path(django_delayq.__file__).parent
LEVELS = ("info", "warning", "error", "critical")


def title_of(text: str, line: str = "=") -> list[str]:
    """Return a heading."""
    return [text, line * len(text), ""]


def plain(text: object) -> str:
    """Return text in which no character is markup, and options are code."""
    text = re.sub(r"([\\*`|_<>:\[\]])", r"\\\1", " ".join(str(text).split()))
    return re.sub(r"(?<!\S)(--[a-z][a-z-]*)", r"``\1``", text)


def block_of(text: str) -> list[str]:
    """Return text that is shown as it is."""
    lines = [f"   {line}".rstrip() for line in text.strip("\n").splitlines()]
    return [".. code-block:: text", "", *lines, ""]


def commands() -> dict[str, str]:
    """Return the commands, by name, with the app of each."""
    found = {}
    for path in PACKAGE.rglob("management/commands/delayq_*.py"):
        app = ".".join(path.relative_to(PACKAGE.parent).parts[:-3])
        found[path.stem] = app
    return dict(sorted(found.items()))


def options_of(name: str, parser: ArgumentParser, text: str) -> Iterator[str]:
    """Yield the description of a command, or of one of its verbs."""
    # Without those of every command.
    of_django = BaseCommand().create_parser("", "")._option_string_actions
    formatter = HelpFormatter("")
    verbs = []
    yield from [plain(text), "", f".. program:: {name}", ""]
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            verbs.append(action)
        elif action.help != SUPPRESS and of_django.keys().isdisjoint(
            action.option_strings
        ):
            yield f".. option:: {formatter._format_action_invocation(action)}"
            yield from ["", f"   {plain(action.help)}", ""]
    for action in verbs:
        texts = {each.dest: each.help for each in action._choices_actions}
        for verb, own in action.choices.items():
            yield from title_of(f"{name} {verb}", "~")
            yield from options_of(f"{name} {verb}", own, texts.get(verb) or "")


def commands_page() -> Iterator[str]:
    """Yield the lines of the page on the commands."""
    yield from title_of("Commands and options")
    yield (
        "What ``manage.py NAME --help`` prints. Each command also has `the options of every command of Django"
        " <https://docs.djangoproject.com/en/stable/ref/django-admin/#default-options>`_. ``delayq_outbox`` needs the app"
        " ``django_delayq.outbox``."
    )
    yield ""
    for name, app in commands().items():
        command = load_command_class(app, name)
        parser = command.create_parser("manage.py", name)
        yield from title_of(name, "-")
        yield from options_of(name, parser, str(command.summary))
        yield from block_of(parser.epilog or "")


def log_lines() -> Iterator[tuple[str, str, str]]:
    """Yield the logger, the level and the text of each line, where the text is in the call; … is for what varies."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        named = re.search(r"^logger = (?:logs\.)?get_log\((.+)\)$", text, re.MULTILINE)
        if named is None:
            continue
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        logger = module if named[1] == "__name__" else named[1].strip('"')
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(
                    ast.Attribute(ast.Name("logger"), level),
                    [ast.Constant(str(message)), *_],
                ) if level in LEVELS and re.search(r"[a-z]{2}", message):
                    message = re.sub(r"%[\d.,]*[a-z]", "…", message)
                    yield logger, level, message.replace("%%", "%")


def log_page() -> Iterator[str]:
    """Yield the lines of the page on the log."""
    yield from title_of("Log lines")
    yield (
        "The lines that the package logs, by logger. … stands for what varies. :doc:`Errors, checks and log lines"
        " <../errors>` says what to do about them, and :doc:`Logging and Sentry <../howto/logging>` describes the line of"
        " each attempt."
    )
    yield ""
    found: dict[str, list[str]] = {}
    for logger, level, text in log_lines():
        found.setdefault(logger, []).append(f"* {level.upper()}: {plain(text)}")
    for logger, lines in sorted(found.items()):
        yield from [*title_of(logger, "-"), *dict.fromkeys(lines), ""]

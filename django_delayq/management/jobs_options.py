"""Options that the verbs of ``delayq_jobs`` share."""

from argparse import SUPPRESS
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser

from django_delayq.core.states import State
from django_delayq.jobs.search import LISTED
from django_delayq.management.times import window
from django_delayq.translations import gettext

#: The exit status of a command that was called in a wrong way, as argparse has it.
WRONG_CALL = 2
#: Options that select jobs.
FILTERS = ("queue", "state", "task", "text", "due")


def add_filters(parser: CommandParser, more: Sequence[str] = ()) -> None:
    parser.add_argument(
        "--queue",
        action="append",
        metavar="NAME",
        help=gettext("jobs of this queue; repeat it for more. Default: all."),
    )
    parser.add_argument(
        "--state",
        action="append",
        metavar="STATE",
        help=gettext(
            "jobs in this state; repeat it for more: {states}.",
            states=", ".join([*(state for state in State if state in LISTED), *more]),
        ),
    )
    parser.add_argument(
        "--task", metavar="NAME", help=gettext("jobs of the task with this name.")
    )
    parser.add_argument(
        "--text",
        metavar="TEXT",
        help=gettext("jobs with this text in an argument or in the error."),
    )
    parser.add_argument(
        "--due",
        type=window,
        metavar="FROM..TO",
        help=gettext(
            "jobs due in this range: ..now, now..2h, '1d ago..5m ago', '2026-12-24 18:00..'."
        ),
    )


def add_limit(parser: CommandParser, default: str) -> None:
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=gettext("at most this many jobs. Default: {default}.", default=default),
    )


def add_json(parser: CommandParser, help: str) -> None:
    parser.add_argument("--json", action="store_true", help=help)


def add_decrypt(parser: CommandParser) -> None:
    parser.add_argument(
        "--decrypt",
        action="store_true",
        help=gettext("also show encrypted values."),
    )


def add_django_options(parser: CommandParser) -> None:
    """Take Django's own options behind the verb as well, where people type them."""
    for names, given in (
        (("-v", "--verbosity"), {"type": int, "choices": range(4)}),
        (("--settings",), {}),
        (("--pythonpath",), {}),
        (("--traceback",), {"action": "store_true"}),
        (("--no-color",), {"action": "store_true"}),
        (("--force-color",), {"action": "store_true"}),
        (("--skip-checks",), {"action": "store_true"}),
    ):
        arguments: dict[str, Any] = {"default": SUPPRESS, "help": SUPPRESS, **given}
        parser.add_argument(*names, **arguments)

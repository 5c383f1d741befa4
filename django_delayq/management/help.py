"""The form of ``--help`` that all commands share."""

from argparse import RawDescriptionHelpFormatter
from typing import Any, ClassVar

from django.core.management.base import (
    BaseCommand,
    CommandParser,
    DjangoHelpFormatter,
)
from django.utils.functional import Promise

from django_delayq.management.terminal import wrapped


class _HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's formatter, which puts its own options last; examples keep their lines."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(text, width)


class CommandWithExamples(BaseCommand):
    """A command whose ``--help`` ends with its examples, line by line; all of it in the reader's language."""

    summary: ClassVar[str | Promise]
    examples: ClassVar[str | Promise]

    def create_parser(
        self, prog_name: str, subcommand: str, **kwargs: Any
    ) -> CommandParser:
        self.help = str(self.summary)
        return super().create_parser(
            prog_name,
            subcommand,
            epilog=str(self.examples),
            formatter_class=_HelpFormatter,
            **kwargs,
        )

"""The form of ``--help`` that all commands share."""

from argparse import RawDescriptionHelpFormatter
from typing import Any, ClassVar

from django.core.management.base import (
    BaseCommand,
    CommandParser,
    DjangoHelpFormatter,
)


class _HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's formatter, which puts its own options last; examples keep their lines."""


class CommandWithExamples(BaseCommand):
    """A command whose ``--help`` ends with its examples, line by line."""

    examples: ClassVar[str]

    def create_parser(
        self, prog_name: str, subcommand: str, **kwargs: Any
    ) -> CommandParser:
        return super().create_parser(
            prog_name,
            subcommand,
            epilog=self.examples,
            formatter_class=_HelpFormatter,
            **kwargs,
        )

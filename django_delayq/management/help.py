"""What the help of both commands looks like."""

from argparse import RawDescriptionHelpFormatter
from typing import Any, ClassVar

from django.core.management.base import (
    BaseCommand,
    CommandParser,
    DjangoHelpFormatter,
)


class _HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's, which puts its own options last, with the examples left as they are."""


class CommandWithExamples(BaseCommand):
    """A command whose ``--help`` ends with examples, line by line as they are written."""

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

"""What all commands share: the form of ``--help``, and what becomes of streams that cannot be written to."""

import sys
from argparse import RawDescriptionHelpFormatter
from contextlib import suppress
from typing import Any, ClassVar

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
    OutputWrapper,
)
from django.utils.functional import Promise

from django_delayq.management.terminal import wrapped
from django_delayq.wording import printable
from django_delayq.worker.operating_system import (
    UNWRITABLE,
    replace_closed_streams,
    settle_streams,
)


class _HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's formatter, which puts its own options last; examples keep their lines."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(text, width)


class _Printable(OutputWrapper):
    """A stream of a command, on which nothing steers the terminal but what is styled here."""

    def write(  # type: ignore[override]
        self, msg: object = "", style_func: Any = None, ending: str | None = None
    ) -> None:
        super().write(printable(msg), style_func, ending)

    def write_styled(self, text: str, ending: str | None = None) -> None:
        """Write text with our own escape sequences; texts of others in it have to be escaped."""
        super().write(text, str, ending)


class _Willing(_Printable):
    """The standard error of a command, which continues if that is closed."""

    def write(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        with suppress(*UNWRITABLE):
            super().write(*args, **kwargs)

    def write_styled(self, *args: Any, **kwargs: Any) -> None:
        with suppress(*UNWRITABLE):
            super().write_styled(*args, **kwargs)

    def flush(self) -> None:
        with suppress(*UNWRITABLE):
            super().flush()


class CommandWithExamples(BaseCommand):
    """A command whose ``--help`` ends with its examples, line by line; all of it in the reader's language."""

    stdout: _Printable
    stderr: _Printable
    summary: ClassVar[str | Promise]
    examples: ClassVar[str | Promise]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        replace_closed_streams()
        super().__init__(*args, **kwargs)
        self.stdout = _Printable(kwargs.get("stdout") or sys.stdout)
        stderr = _Willing(kwargs.get("stderr") or sys.stderr)
        stderr.style_func = self.stderr.style_func
        self.stderr = stderr

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command, on the streams of `call_command` if it names some."""
        # Django would wrap them in its own way.
        if (stdout := options.pop("stdout", None)) is not None:
            self.stdout = _Printable(stdout)
        if (stderr := options.pop("stderr", None)) is not None:
            self.stderr = _Printable(stderr)
        return super().execute(*args, **options)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command as a program. If nobody reads its output any more, that is its end and no error."""
        try:
            super().run_from_argv(argv)
            # Here an error can still be told; at the end of the process it could not.
            sys.stdout.flush()
        except BrokenPipeError:
            return
        except OSError as error:
            if "--traceback" in argv:
                raise
            told = f"{CommandError.__name__}: {error}"
            self.stderr.write(told)
            sys.exit(1)
        finally:
            settle_streams()

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

"""Shows how far a long command has come."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError

from django_delayq.clock import monotonic_ms
from django_delayq.translations import gettext, say

#: Seconds between two lines of progress in a log, and on a terminal.
LOG_EVERY_S, SHOW_EVERY_S = 5.0, 0.2


class ProgressLine:
    """One line that changes on a terminal, or a new line every few seconds in a log."""

    def __init__(self, stream: Any, *, is_on: bool) -> None:
        self._stream = stream
        self._is_on = is_on
        self._is_terminal = bool(getattr(stream, "isatty", lambda: False)())
        self._shown_ms = monotonic_ms()
        self._is_open = False

    def __call__(self, what: str, done: int, total: int) -> None:
        every_s = SHOW_EVERY_S if self._is_terminal else LOG_EVERY_S
        if not self._is_on or monotonic_ms() < self._shown_ms + every_s * 1000:
            return
        self._shown_ms = monotonic_ms()
        text = say(what)
        if total:
            text = gettext(
                "{what}: {done} of {total}", what=text, done=done, total=total
            )
        if self._is_terminal:
            self._stream.write_styled(f"\r\x1b[K{text}", ending="")
            self._is_open = True
        else:
            self._stream.write(text)
        self._stream.flush()

    def end(self) -> None:
        """End the line, so that something else can be printed."""
        if self._is_open:
            self._stream.write_styled("\r\x1b[K", ending="")
            self._stream.flush()
            self._is_open = False

    @contextmanager
    def of_steps(self, interrupted: str = "") -> Iterator[None]:
        """Follow a command whose steps are atomic: end the line with it, and say after Ctrl-C how to continue."""
        try:
            yield
        except KeyboardInterrupt:
            raise CommandError(
                interrupted
                or gettext(
                    "Interrupted. No step is half done; run the command again to continue."
                )
            ) from None
        finally:
            self.end()

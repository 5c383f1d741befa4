"""A trouble is told when it begins and when it changes."""

import logging
from collections.abc import Callable

import pytest
import redis

from django_delayq.waiting.trouble import Trouble

logger = logging.getLogger("tests.trouble")
GONE = redis.ConnectionError("Error 111 connecting to h:1. Connection refused.")
SLOW = redis.TimeoutError("Timeout reading from socket")
ACCOUNT = redis.AuthenticationError("invalid username-password pair")
MEMORY = redis.exceptions.OutOfMemoryError("command not allowed")

Levels = Callable[[], list[str]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Levels:
    """Return the levels of what was logged so far."""
    caplog.set_level(logging.DEBUG, logger="tests.trouble")
    return lambda: [record.levelname for record in caplog.records]


def test_an_outage_is_told_once_whatever_its_errors(told: Levels) -> None:
    trouble = Trouble(logger, is_outage_told=True)

    for error in (GONE, SLOW, OSError("reset"), GONE):
        trouble.note(error, "cannot", again_ms=50)
    assert told() == ["WARNING", "DEBUG", "DEBUG", "DEBUG"]

    trouble.is_over()
    trouble.note(GONE, "cannot", again_ms=50)
    assert told()[4:] == ["WARNING"]


def test_another_trouble_is_told_as_well(told: Levels) -> None:
    trouble = Trouble(logger, is_outage_told=True)

    for error in (GONE, MEMORY, MEMORY, GONE):
        trouble.note(error, "cannot", again_ms=50)

    assert told() == ["WARNING", "WARNING", "DEBUG", "WARNING"]


def test_an_outage_that_others_tell_is_mentioned_only(told: Levels) -> None:
    trouble = Trouble(logger, is_outage_told=False)

    for error in (GONE, ACCOUNT, MEMORY, GONE):
        trouble.note(error, "cannot", again_ms=50)

    assert told() == ["DEBUG", "DEBUG", "WARNING", "DEBUG"]


def test_message_says_what_why_and_when_and_no_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trouble = Trouble(logger, is_outage_told=True)

    trouble.note(ValueError("redis://:hunter2@h/0"), "cannot do 'it'", again_ms=50)

    assert caplog.messages == ["cannot do 'it', again in 50 ms: redis://:***@h/0"]

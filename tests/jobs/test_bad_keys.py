"""Secrets that nothing can be signed with: each way into the package says so, and what waits stays where it is."""

from io import StringIO
from typing import Any

import pytest
from django.core import checks
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_delayq import DelayedQueue, schedule, schedule_many
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidSettings
from tests.jobs import samples
from tests.jobs.hand import Hand

LATER = 3_600
#: Two secrets whose keys have one id.
ALIKE = ["secret number 06917", "secret number 09631"]
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no secret": ({"SECRET_KEY": ""}, "SECRET_KEY is empty, and jobs are signed"),
    "an empty fallback": (
        {"SECRET_KEY_FALLBACKS": [""]},
        "secret 2 of 2 is empty",
    ),
    "fallbacks as text": ({"SECRET_KEY_FALLBACKS": "old"}, "FALLBACKS is not a list"),
    "two keys of one id": ({"KEYS": ALIKE}, "have keys with the id '2hDA'"),
    "a fallback of the same id": (
        {"SECRET_KEY": ALIKE[0], "SECRET_KEY_FALLBACKS": ALIKE[1:]},
        "have keys with the id '2hDA'",
    ),
    "keys as text": (
        {"KEYS": "a text that is long enough"},
        "a single secret (not shown)",
    ),
    "a short key": ({"KEYS": ["short"]}, "a list whose secret 1 has 5 characters"),
    "no key": ({"KEYS": []}, "['KEYS'] is an empty list"),
}


@pytest.mark.parametrize("bad", BAD)
def test_secrets_that_cannot_be_used_are_told_everywhere_and_nothing_is_lost(
    queue: str, hand: Hand, settings: Any, bad: str
) -> None:
    task = samples.add.using(queue=queue)
    job = schedule(task, LATER, 1, 1)
    changes, what = BAD[bad]
    if "KEYS" in changes:
        changes = {"DELAYQ": {**settings.DELAYQ, **changes}}

    with DelayedQueue(queue) as delayed, override_settings(**changes):
        found = checks.run_checks(tags=["delayq"])
        assert [what in problem.msg for problem in found] == [True]
        for do in (
            lambda: schedule(task, 0, 1, 1),
            lambda: schedule_many([task.prepare(0, 1, 1)]),
            lambda: task.using(on_commit=True).schedule(0, 1, 1),
            lambda: delayed.poll_last_and_offer_first_to(f"{queue}-2"),
        ):
            with pytest.raises(InvalidSettings) as told:
                do()
            assert what in str(told.value)
        for command in ("delayq_worker", "delayq_resign"):
            with pytest.raises(CommandError) as failed:
                call_command(command, stdout=StringIO(), stderr=StringIO())
            assert what in str(failed.value)

    assert hand.tokens() == [job.token]
    assert job.refresh() is State.SCHEDULED

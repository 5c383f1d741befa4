"""What a task marks as sensitive stays out of errors and logs."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_delayq import (
    Cancel,
    InvalidTask,
    Retry,
    Snooze,
    delayed_task,
    find_jobs,
    get_job,
    masks,
)
from django_delayq.core.states import State
from django_delayq.jobs import contexts
from django_delayq.jobs.arguments import sensitive_texts, shown_arguments
from django_delayq.masks import WHOLE
from django_delayq.redaction import HIDDEN
from django_delayq.signals import job_dead
from django_delayq.testing import frozen_queue
from django_delayq.worker import leased_job

SECRET = "s3cret \\ 'x' \n ü"


class Refused(Exception):
    """Says more than it should."""


@delayed_task(sensitive=("token", "card"), max_attempts=1)
def refuse(order: int, token: str, card: dict | None = None) -> None:
    raise Refused(f"order {order}: token {token!r} of {card}")


@delayed_task(sensitive=("token",), max_attempts=1)
def quote(token: str, message: str) -> None:
    raise Refused(message.format(token=token, filling="-" * 1_990))


@delayed_task(sensitive=("token",))
def cancel(token: str) -> None:
    raise Cancel(f"{token} is no good")


@delayed_task(sensitive=("token",), max_attempts=1)
def give_up(token: str) -> None:
    try:
        raise Refused(token)
    except Refused as error:
        raise Retry(0, f"not with {token}") from error


KEY = "  -----BEGIN KEY-----\nMII+abc\r\n'def'\x0cg+h\u2028ü\n-----END KEY-----\n"


def _note(token: str) -> Exception:
    error = Refused("it has a note")
    error.add_note(f"a note of two lines:\n{token}")
    return error


def _caused(token: str) -> Exception:
    error = Refused("it has a cause")
    error.__cause__ = ExceptionGroup(token, [ValueError(token)])
    return error


def _in_context(token: str) -> Exception:
    error = Refused("it came up in an except")
    error.__context__ = ExceptionGroup("inner", [_note(token)])
    return error


#: Every way in which the traceback of an exception repeats a text.
REPEATING = {
    "text": lambda token: Refused(token),
    "note": _note,
    "cause": _caused,
    "context": _in_context,
    "group": lambda token: ExceptionGroup("some", [Refused(token), _note(token)]),
    "name of a group": lambda token: ExceptionGroup(token, [Refused("no")]),
    "group in a group": lambda token: ExceptionGroup(
        "outer", [_caused(token), ExceptionGroup("inner", [_in_context(token)])]
    ),
    "key": lambda token: KeyError(f'"{token}" is missing'),
    "line of code": lambda token: SyntaxError("no", ("file", 1, 1, token, 1, 2)),
    "bytes": lambda token: ValueError({"body": token.encode()}),
    "ASCII": lambda token: ValueError(ascii(token)),
    "JSON": lambda token: ValueError(json.dumps({"body": token}, ensure_ascii=False)),
}


@delayed_task(sensitive=("token",), max_attempts=1)
def repeat(token: str, how: str) -> None:
    raise REPEATING[how](token)


@pytest.mark.parametrize("how", REPEATING)
def test_text_of_many_lines_is_masked_wherever_a_traceback_repeats_it(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_delayq")
    with frozen_queue() as q:
        job = repeat.schedule(0, KEY, how)
        q.run_due()
        job.refresh()

    assert job.error is not None
    assert "***" in job.error["traceback"]
    whole = f"{job.error['traceback']}{job.error}{job.history}{caplog.text}"
    for part in ("BEGIN", "MII+", "def'", "g+h", "END KEY"):
        assert part not in whole, whole
    # What surrounds it stays.
    assert "Traceback (most recent call last)" in job.error["traceback"]


@delayed_task(sensitive=("card",), max_attempts=1)
def empty(card: dict) -> None:
    number = card.pop("number")
    raise Refused(f"card {number}")


def test_value_that_a_task_takes_out_of_its_arguments_is_masked() -> None:
    with frozen_queue() as q:
        job = empty.schedule(0, {"number": "49927398716"})
        q.run_due()
        job.refresh()

    assert job.error is not None
    assert job.error["error"] == "Refused: card ***"
    assert "49927398716" not in job.error["traceback"]


@pytest.fixture
def failing_context(settings: Any) -> Iterator[None]:
    settings.DELAYQ = {"CONTEXT": ["tests.worker.test_sensitive.failing"]}
    contexts.load.cache_clear()
    contexts._logged.clear()
    yield
    contexts.load.cache_clear()


class Failing:
    name = "failing"

    def capture(self) -> dict[str, str]:
        return {}

    @contextmanager
    def restore(self, headers: object) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("the end fails")


failing = Failing()


def test_log_of_a_context_whose_end_fails_is_masked(
    failing_context: None, caplog: pytest.LogCaptureFixture
) -> None:
    with frozen_queue() as q:
        repeat.schedule(0, KEY, "text")
        q.run_due()

    assert "the end fails" in caplog.text
    assert "MII+" not in caplog.text


def test_log_of_a_receiver_that_raises_what_it_got_is_masked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def receive(exception: Exception, **named: object) -> None:
        raise exception

    job_dead.connect(receive)
    try:
        with frozen_queue() as q:
            repeat.schedule(0, KEY, "text")
            q.run_due()
    finally:
        job_dead.disconnect(receive)

    assert "raised Refused; this changes nothing" in caplog.text
    assert "in receive\n" in caplog.text
    assert "MII+" not in caplog.text


@delayed_task(sensitive=("rest", "more"))
def takes_all(first: int, *rest: str, **more: str) -> None: ...


def test_error_traceback_and_log_do_not_have_the_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_delayq")
    with frozen_queue() as q:
        job = refuse.schedule(0, 4711, SECRET, card={"number": [49_927_398_716]})
        q.run_due()
        job.refresh()

    assert job.state is State.DEAD
    assert job.error is not None
    assert "order 4711: token " in job.error["error"]
    whole = f"{job.error}{job.history}{caplog.text}{job!r}"
    assert "s3cret" not in whole
    assert "49927398716" not in whole
    assert "raise Refused" in caplog.text


@pytest.mark.parametrize("message", ["{token}", "{filling}{token}", "{token}{filling}"])
def test_value_is_masked_before_a_long_error_is_cut(
    message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_delayq")
    token = "s3+ret" * 2_000
    with frozen_queue() as q:
        refused = quote.schedule(0, token, message)
        cancelled = cancel.using(keep_result=60).schedule(0, "-" * 1_990 + token)
        given_up = give_up.schedule(0, "-" * 1_980 + token)
        q.run_due()
        kept = get_job(cancelled.id).kept
        refused.refresh()
        given_up.refresh()

    assert refused.error is not None
    assert given_up.error is not None
    assert "***" in refused.error["error"] + refused.error["traceback"]
    assert "s3+" not in f"{refused.error}{given_up.error}{kept}{caplog.text}"


def test_decision_that_quotes_the_value_is_masked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_delayq")
    with frozen_queue() as q:
        cancelled = cancel.using(keep_result=60).schedule(0, "s3cret")
        dead = give_up.schedule(0, "s3cret")
        q.run_due()
        kept = get_job(cancelled.id).kept
        dead.refresh()

    assert kept is not None
    assert kept["error"] == "*** is no good"
    assert dead.state is State.DEAD
    assert "s3cret" not in f"{dead.error}{caplog.text}"


@pytest.mark.parametrize("sensitive", [(), ("token",)])
def test_log_has_no_traceback_of_a_retry_and_that_of_what_is_behind_the_last_one(
    caplog: pytest.LogCaptureFixture, sensitive: tuple[str, ...]
) -> None:
    def insist(token: str) -> None:
        try:
            raise Refused("behind it")
        except Refused as error:
            raise Retry(0) from error

    caplog.set_level(logging.WARNING, "django_delayq.worker")
    task = delayed_task(
        name=f"insist on {sensitive}", sensitive=sensitive, max_attempts=2
    )(insist)
    with frozen_queue() as q:
        task.schedule(0, "s3cret")
        q.run_due()
        q.run_due()

    retried, dead = map(logging.Formatter().format, caplog.records)
    assert "Traceback" not in retried
    assert dead.endswith("Refused: behind it")
    assert "insist" in dead
    assert "direct cause" not in dead


def test_search_by_text_passes_over_the_value() -> None:
    with frozen_queue():
        job = refuse.schedule(3600, 4711, "s3cret")

        assert list(find_jobs(text="s3cret")) == []
        assert list(find_jobs(text="4711")) == [job]


def test_arguments_are_shown_by_name_and_masked() -> None:
    shown = shown_arguments(takes_all, [1, "a"], {"x": "b"})

    assert shown == [("first", 1), ("", HIDDEN), ("", HIDDEN)]
    assert repr(HIDDEN) == "***"
    assert shown_arguments("unknown.task", [1], {"x": 2}) == [("", 1), ("x", 2)]
    # A call of an earlier version may have more than the function takes by now.
    assert shown_arguments(cancel, ["a", "b"], {"y": 1}) == [
        ("token", HIDDEN),
        ("", "b"),
        ("y", 1),
    ]


def test_values_are_looked_for_as_texts_and_errors_write_them() -> None:
    texts = sensitive_texts(refuse, [1, 'a"bc', {"k": [True, None, 12345, "no"]}], {})

    assert {"12345", 'a\\"bc', 'a"bc', "a%22bc"} <= set(texts)
    # A text that is written in JSON, and then in a repr.
    assert 'a\\\\"bc' in texts
    # The keys of a dict, and what is short; but not what a word of Python may be as well.
    assert {"k", "no"} <= set(texts)
    assert not {"", "True", "None"} & set(texts)
    assert texts == sorted(texts, key=lambda text: (-len(text), text))


@delayed_task(sensitive=("token",))
def accept(token: str, waits: bool) -> None:
    if waits:
        raise Snooze(60)


@delayed_task(sensitive=("token",))
async def accept_async(token: str, waits: bool) -> None:
    if waits:
        raise Snooze(60)


@pytest.mark.parametrize("task", [accept, accept_async], ids=["sync", "async"])
def test_attempt_looks_for_no_value_before_it_has_something_to_mask(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make(*call: Any) -> list[str]:
        made.append(call)
        return sensitive_texts(*call)

    monkeypatch.setattr(leased_job, "sensitive_texts", make)
    with frozen_queue() as q:
        job = task.schedule(0, SECRET, False)
        task.schedule(0, SECRET, True)
        q.run_due()
        assert job.refresh() is State.SUCCEEDED
        assert made == []
        refuse.schedule(0, 1, SECRET)
        q.run_due()
        assert len(made) == 1


def test_all_is_masked_if_the_values_can_no_longer_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*call: Any) -> list[str]:
        raise ValueError("too many digits")

    monkeypatch.setattr(leased_job, "sensitive_texts", fail)
    with frozen_queue() as q:
        job = refuse.schedule(0, 1, SECRET)
        q.run_due()
        job.refresh()

    assert job.error is not None
    assert job.error["error"] == job.error["traceback"] == "***"


def test_work_for_the_forms_of_values_grows_with_their_size_and_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []
    write = masks._written

    def count(text: str) -> Iterator[str]:
        written.append(len(text))
        return write(text)

    monkeypatch.setattr(masks, "_written", count)

    def work(*values: Any) -> int:
        written.clear()
        sensitive_texts(refuse, [1, list(values)], {})
        return sum(written)

    text = "ü\n'\"" * 10_000
    assert work(text) == len(text)
    assert work(text * 10) == 10 * len(text)
    # Beyond the most that are looked for, the rest is not read.
    assert work(*map(str, range(100_000, 200_000))) < 6 * 1_100
    assert sensitive_texts(refuse, [1, [*range(100_000)]], {}) == [*WHOLE]


@pytest.mark.parametrize(
    ("sensitive", "told"),
    [
        ("token", r"sensitive='token': give a tuple of parameter names"),
        (("tokn",), r"sensitive of .*'tokn'.* Did you mean 'token'\?"),
        ((), None),
        ((1,), "give a tuple of parameter names"),
    ],
)
def test_names_have_to_be_those_of_parameters(
    sensitive: object, told: str | None
) -> None:
    def task(token: str) -> None: ...

    if told is None:
        delayed_task(name="tests.sensitive.none", sensitive=sensitive)(task)  # type: ignore[arg-type]
        return
    with pytest.raises(InvalidTask, match=told):
        delayed_task(name="tests.sensitive", sensitive=sensitive)(task)  # type: ignore[arg-type]


def test_option_belongs_to_the_decorator() -> None:
    with pytest.raises(InvalidTask, match="sensitive cannot be changed for one call"):
        cancel.using(sensitive=())  # type: ignore[call-arg]

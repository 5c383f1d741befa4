"""The walks of docs/internals.md are those that a worker takes, and no call of them goes back up a layer."""

import pytest

from tests.test_layers import ROOT
from tests.walk import walks
from tests.walk.page import (
    HANDED_IN,
    PAGE,
    is_handed_in,
    is_upward,
    parts_of,
    rows_of,
    with_walks,
)
from tests.walk.recorder import PROJECT, Function, Step
from tests.walk.walks import Walk

#: By kind of server: recorded once for all tests.
_recorded: dict[str, tuple[Walk, Walk]] = {}


@pytest.fixture
def recorded(server, server_kind, queue_name) -> tuple[Walk, Walk]:
    if server_kind not in _recorded:
        _recorded[server_kind] = walks.walks_apart(server.socket_url, queue_name)
    return _recorded[server_kind]


@pytest.fixture
def job(recorded) -> Walk:
    return recorded[0]


@pytest.fixture
def element(recorded) -> Walk:
    return recorded[1]


def scripts_of(walk: Walk) -> list[str]:
    return [
        script
        for steps in parts_of(walk).values()
        for row in rows_of(steps)
        for script in row.scripts
    ]


def test_page_has_both_walks_as_they_were_recorded(job, element):
    text = PAGE.read_text("utf-8")

    assert with_walks(text, job, element) == text, "run `python -m tests.walk.page`"


def test_walks_lead_from_the_call_to_the_end_through_the_projects_function(
    job, element
):
    assert scripts_of(job) == ["store", "claim", "acknowledge", "note_ended"]
    assert scripts_of(element) == ["claim", "acknowledge", "note_ended"]
    for walk in (job, element):
        assert PROJECT in [step.function for step in walk.in_hand()]


def test_no_call_goes_up_a_layer_but_through_what_was_handed_in(job, element):
    up = {step[1:4] for step in job.steps + element.steps if is_upward(step)}
    handed_in = {step[1:4] for step in job.steps + element.steps if is_handed_in(step)}

    assert up - handed_in == set()


@pytest.mark.parametrize(("layer", "expression"), HANDED_IN)
def test_what_is_declared_as_handed_in_is_called_in_its_layer(layer, expression):
    # By the sources: a message that calls back may come after the walk has ended.
    sources = [path.read_text("utf-8") for path in (ROOT / layer).rglob("*.py")]

    assert any(f"{expression}(" in source for source in sources)


def test_a_call_up_a_layer_would_be_found():
    def step(function: Function, caller: Function, expression: str) -> Step:
        return Step("MainThread", function, caller, expression, (), frozenset(), ())

    script, task = (
        Function("transport/call.py", "run"),
        Function("jobs/job.py", "Job.wait"),
    )

    assert is_upward(step(task, script, "job.wait"))
    assert not is_handed_in(step(task, script, "job.wait"))
    assert is_upward(step(task, script, "call.read"))
    assert is_handed_in(step(task, script, "call.read"))
    assert not is_upward(step(script, task, "run"))
    assert not is_upward(step(script, script, "_run"))

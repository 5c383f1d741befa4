"""While a node of a cluster is dead, whatever asks several queues answers for the others, and names the rest."""

import asyncio
import html
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import redis
from django.test import Client

from django_delayq import (
    FoundJobs,
    MaybeChanged,
    PartialAnswer,
    ScheduleNotFound,
    aended_jobs,
    aget_schedule,
    aget_schedules,
    alimits,
    apaused,
    ended_jobs,
    find_jobs,
    get_schedule,
    get_schedules,
    limits,
    pause,
    paused,
    resume,
    schedule,
)
from django_delayq.core.states import State
from django_delayq.features.statistics.api import (
    aqueue_statistics,
    astatistics_totals,
    atasks_statistics,
    queue_statistics,
    statistics_totals,
    tasks_statistics,
)
from django_delayq.server_checks import check_server
from django_delayq.transport import connections
from django_delayq.transport.exchange import Address
from tests.admin import conftest as of_admin
from tests.admin.conftest import url
from tests.faults import lame as of_lame
from tests.faults.lame import Lame
from tests.jobs.samples import add
from tests.management import conftest as of_management
from tests.management.conftest import Call
from tests.metrics import conftest as of_metrics
from tests.metrics.reading import Scrape

whole, filled, lame = of_lame.whole, of_lame.filled, of_lame.lame
asked = of_lame.asked
call, login, browser = of_management.call, of_admin.login, of_admin.browser
get, scrape = of_metrics.get, of_metrics.scrape

LATER = 3600
#: How often a call is sent to a node that refuses connections.
TRIES = 5
#: The same, where the clock is asked first, of any node.
TRIES_OF_SEARCH = (TRIES, TRIES + 1)


def queues_of(found: Iterable[Any]) -> set[str]:
    """Return the queues of what was found, or those that it counts."""
    return {each if isinstance(each, str) else each.queue for each in found}


def names_what_is_missing(said: str, lame: Lame) -> bool:
    return (
        f"No answer from queues {', '.join(lame.away)}: A node of the cluster does not answer."
        in said
        and f"127.0.0.1:{lame.node.port}" in said
    )


def check_error(error: PartialAnswer | MaybeChanged, lame: Lame) -> None:
    """Check that an error names the queues on the dead node, and the node."""
    assert list(error.missing) == lame.away
    assert names_what_is_missing(str(error), lame)
    assert isinstance(error.__cause__, redis.ConnectionError)


# Functions


@pytest.mark.parametrize(
    ("ask", "ask_on_loop"),
    [
        (paused, apaused),
        (limits, alimits),
        (get_schedules, aget_schedules),
        (ended_jobs, aended_jobs),
        (queue_statistics, aqueue_statistics),
        (tasks_statistics, atasks_statistics),
        (statistics_totals, astatistics_totals),
    ],
)
def test_error_has_what_the_other_queues_say_and_names_the_rest(
    lame: Lame, asked: list[Address], ask: Any, ask_on_loop: Any
) -> None:
    for act in (ask, lambda: asyncio.run(ask_on_loop())):
        with pytest.raises(PartialAnswer) as caught:
            act()

        assert queues_of(caught.value.found) == set(lame.there)
        check_error(caught.value, lame)
    assert len(asked) == TRIES


@pytest.mark.parametrize("ask", [paused, limits, get_schedules, ended_jobs])
def test_one_queue_answers_or_fails_with_the_error_of_its_node(
    lame: Lame, ask: Any
) -> None:
    assert queues_of(ask(lame.there[0])) == {lame.there[0]}
    with pytest.raises(redis.ConnectionError):
        ask(lame.away[0])


def test_schedule_is_found_on_a_queue_that_answers(lame: Lame) -> None:
    name = f"of {lame.there[0]}"

    assert get_schedule(name).queue == lame.there[0]
    assert asyncio.run(aget_schedule(name)).queue == lame.there[0]
    with pytest.raises(ScheduleNotFound):
        get_schedule("no such", lame.there[0])
    # It may be on a queue that does not answer.
    with pytest.raises(PartialAnswer) as caught:
        get_schedule("no such")
    check_error(caught.value, lame)


def iterate(found: FoundJobs[Any], jobs: list[Any]) -> None:
    for job in found:
        jobs.append(job)


def iterate_on_loop(found: FoundJobs[Any], jobs: list[Any]) -> None:
    async def do() -> None:
        async for job in found:
            jobs.append(job)

    asyncio.run(do())


@pytest.mark.parametrize("read", [iterate, iterate_on_loop])
def test_search_yields_all_jobs_that_can_be_found_before_it_names_the_rest(
    lame: Lame, asked: list[Address], read: Callable[..., None]
) -> None:
    jobs: list[Any] = []

    with pytest.raises(PartialAnswer) as caught:
        read(find_jobs(), jobs)

    # Each queue has a job, and that of its schedule.
    assert sorted(job.queue for job in jobs) == sorted(2 * lame.there)
    assert caught.value.found is None
    check_error(caught.value, lame)
    if read is iterate:
        assert len(asked) in TRIES_OF_SEARCH


@pytest.mark.parametrize(("change", "is_paused"), [(pause, True), (resume, False)])
def test_change_of_every_queue_is_made_where_they_answer_and_the_rest_is_named(
    lame: Lame, asked: list[Address], change: Callable[..., Any], is_paused: bool
) -> None:
    with pytest.raises(redis.ConnectionError) as caught:
        change(task=add)

    (note,) = caught.value.__notes__
    assert note.startswith(f"django-delayq: {', '.join(lame.away)} may be unchanged")
    for name in lame.there:
        assert any(each.task for each in paused(name)) == is_paused
    assert len(asked) == TRIES


def test_search_that_has_found_enough_before_is_whole(lame: Lame) -> None:
    names = [*lame.there, *lame.away]

    assert len(list(find_jobs(queue=names, limit=4))) == 4


@pytest.mark.parametrize("sought", [{}, {"task": add}])
def test_count_says_how_many_the_other_queues_hold(
    lame: Lame, sought: dict[str, Any]
) -> None:
    found = find_jobs(**sought)

    for count in (found.count, lambda: asyncio.run(found.acount())):
        with pytest.raises(PartialAnswer) as caught:
            count()
        assert caught.value.found == 2 * len(lame.there)
        check_error(caught.value, lame)


def test_search_of_queues_that_are_all_away_fails_with_the_error_of_their_node(
    lame: Lame,
) -> None:
    with pytest.raises(redis.ConnectionError):
        list(find_jobs(queue=lame.away))
    with pytest.raises(redis.ConnectionError):
        find_jobs(queue=lame.away).count()


@pytest.mark.parametrize(
    "cancel", [FoundJobs.cancel, lambda found: asyncio.run(found.acancel())]
)
def test_change_of_all_is_made_where_a_queue_answers_and_the_rest_is_named(
    lame: Lame, cancel: Callable[..., Any]
) -> None:
    jobs = [schedule(add.using(queue=name), LATER, 7, note="go") for name in lame.there]

    with pytest.raises(MaybeChanged) as caught:
        cancel(find_jobs(task=add, text="go"))

    assert caught.value.won == len(jobs)
    assert caught.value.unknown == []
    assert f"{len(jobs)} jobs are cancelled" in str(caught.value)
    check_error(caught.value, lame)
    assert {job.refresh() for job in jobs} == {State.CANCELLED}


def test_shards_that_answer_are_read_side_by_side(lame: Lame, settings: Any) -> None:
    name = next(
        name
        for name in map("s{}".format, range(1_000))
        if [lame.answers(f"{name}:{n}") for n in range(3)] == [True, False, True]
        and lame.answers(name)
    )
    settings.DELAYQ = {**lame.settings, "QUEUES": {name: {"SHARDS": 3}}}
    for part in (f"{name}:0", f"{name}:2"):
        schedule(add.using(queue=part), LATER, 1)
    jobs: list[Any] = []

    with pytest.raises(PartialAnswer) as caught:
        iterate(find_jobs(), jobs)

    assert queues_of(jobs) == {f"{name}:0", f"{name}:2"}
    assert list(caught.value.missing) == [f"{name}:1"]
    with pytest.raises(PartialAnswer) as caught:
        limits(name)
    assert list(caught.value.missing) == [f"{name}:1"]


# Commands


@pytest.mark.parametrize(
    ("arguments", "rows_a_queue"),
    [
        (["delayq_pause"], 1),
        (["delayq_schedules"], 1),
        (["delayq_schedules", "--json"], 1),
        (["delayq_jobs", "list"], 2),
        (["delayq_jobs", "list", "--json"], 2),
        (["delayq_jobs", "list", "--state", "ended", "--json"], 1),
        (["delayq_jobs", "cancel", "--text", "7", "--dry-run", "--json"], 0),
    ],
)
def test_command_prints_what_is_known_names_the_rest_and_fails(
    lame: Lame,
    call: Call,
    asked: list[Address],
    arguments: list[str],
    rows_a_queue: int,
) -> None:
    said = call(*arguments)

    for name in lame.there:
        assert (
            rows_a_queue == 0
            or f"{name}:" in said.out
            or f"queue {name}" in said.out
            or f'"{name}"' in said.out
        )
    assert "The answer is not complete. " in said.err
    assert names_what_is_missing(said.err, lame)
    assert said.status == 1
    assert len(asked) in TRIES_OF_SEARCH
    if "--json" in arguments:
        read = json.loads(said.out) if said.out.startswith("[") else said.lines
        assert len(read) >= rows_a_queue * len(lame.there)


def test_command_that_changes_what_it_finds_names_what_it_has_not_reached(
    lame: Lame, call: Call
) -> None:
    job = schedule(add.using(queue=lame.there[0]), LATER, 1, note="by command")

    said = call("delayq_jobs", "cancel", "--text", "by command", "--yes")

    assert "1 jobs are cancelled" in said.err
    assert names_what_is_missing(said.err, lame)
    assert said.status == 1
    assert job.refresh() is State.CANCELLED


def test_jobs_of_queues_that_answer_are_signed_anew(lame: Lame, call: Call) -> None:
    said = call("delayq_resign")

    for name in lame.there:
        assert f"queue {name}: 0 signed again" in said.out
    assert names_what_is_missing(said.err, lame)
    assert "Nothing here needs any key" not in said.out
    assert said.status == 1


def test_command_goes_on_with_other_jobs_that_were_named(
    lame: Lame, call: Call
) -> None:
    job = schedule(add.using(queue=lame.there[0]), LATER, 1)
    away = f"{lame.away[0]}:{job.token}"

    said = call("delayq_jobs", "cancel", away, job.id)

    assert said.out == f"{job.id} is cancelled and will not run\n"
    assert "A node of the cluster does not answer." in said.err
    assert said.status == 1
    assert call("delayq_jobs", "show", away, "x" * 22).status == 1


def test_job_is_found_by_its_token_on_the_queues_that_answer(
    lame: Lame, call: Call, asked: list[Address]
) -> None:
    job = schedule(add.using(queue=lame.there[-1]), LATER, 1)

    said = call("delayq_jobs", "show", "--json", job.token)

    assert said.status == 0
    assert json.loads(said.out)["id"] == job.id
    assert len(asked) == TRIES
    # It may be on a queue that does not answer.
    unknown = call("delayq_jobs", "show", "x" * 22)
    assert names_what_is_missing(unknown.err, lame)
    assert unknown.status == 1
    job.cancel()


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_pause_of_several_queues_is_made_where_they_answer(
    lame: Lame, call: Call, verb: str
) -> None:
    names = [lame.away[0], *lame.there]
    if verb == "pause":
        call("delayq_resume", *lame.there)

    said = call(f"delayq_{verb}", *names)

    assert f"Not everything that you named is {verb}d. No answer from queue" in said.err
    assert said.status == 1
    for name in lame.there:
        told = "has been paused since" if verb == "pause" else "is resumed"
        assert f"queue {name} {told}" in said.out
        assert bool(paused(name)) == (verb == "pause")
    call("delayq_pause", *lame.there)


def test_status_shows_what_answers_names_the_rest_and_fails(
    lame: Lame, call: Call, asked: list[Address]
) -> None:
    said = call("delayq_status")

    for name in lame.there:
        # A job, and that of its schedule.
        assert re.search(rf"^{name} \(paused\) +2 ", said.out, re.MULTILINE)
    for name in lame.away:
        assert re.search(rf"^{name} +\? ", said.out, re.MULTILINE)
    assert names_what_is_missing(unwrapped(said.out), lame)
    assert "The list of workers is unknown: its node does not answer." in said.out
    assert "may not read" not in said.out
    # What else is wrong with the nodes that answer is not forgotten.
    assert "append-only file" in said.out.partition("ERROR")[2]
    assert said.status == 1
    names = [f"--queue={name}" for name in lame.away]
    assert call("delayq_status", *names).status == 1


def unwrapped(said: str) -> str:
    """Return what a command printed as one line."""
    return " ".join(said.replace("Queues", "queues").split())


def test_status_subscribes_on_a_node_that_answers(
    lame: Lame, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def node_of(client: Any, key: str | None) -> Any:
        """Return the dead node for what any node can do."""
        return connections.node_of(client, key or lame.away[0])

    monkeypatch.setattr("django_delayq.waiting.connection.node_of", node_of)

    said = call("delayq_status")

    assert names_what_is_missing(unwrapped(said.out), lame)
    assert said.status == 1


def test_status_needs_no_node_of_a_bare_name_or_of_an_earlier_prefix(
    lame: Lame, call: Call, settings: Any
) -> None:
    (away, _), (there, *_) = lame.away, lame.there
    # A queue with shards, some of which lie on other nodes.
    queues = {away: {"SHARDS": 6}, there: {}}
    settings.DELAYQ = {**lame.settings, "QUEUES": queues}

    said = call("delayq_status")

    assert re.search(rf"^{there} \(paused\) +2 ", said.out, re.MULTILINE)
    assert said.status == 1

    name = next(
        name
        for name in (f"n{number}" for number in range(1_000))
        if lame.answers(f"p:{name}") and not lame.answers(name)
    )
    settings.DELAYQ = {**lame.settings, "PREFIX": "p:", "QUEUES": {name: {}}}

    assert call("delayq_status").status == 0


def test_status_for_programs_names_what_is_missing(lame: Lame, call: Call) -> None:
    said = call("delayq_status", "--json")

    told = json.loads(said.out)
    faults = {each["name"]: each.get("fault") for each in told["queues"]}
    assert [name for name, fault in faults.items() if fault] == lame.away
    assert str(lame.node.port) in told["workers_fault"]
    assert said.status == 1


def test_probe_of_a_queue_that_answers_is_healthy(lame: Lame, call: Call) -> None:
    resume(lame.there[0])

    assert call("delayq_health", "--queue", lame.there[0]).status == 0
    # Nobody knows which workers are there.
    unknown = call("delayq_health", "--queue", lame.there[0], "--worker")
    assert unknown.out.startswith("unknown: The list of workers cannot be read: ")
    assert unknown.status == 2
    said = call("delayq_health")
    assert said.out.startswith("unhealthy: ")
    assert names_what_is_missing(said.out, lame)
    assert said.status == 1


def test_check_names_what_does_not_answer_and_looks_at_the_rest(lame: Lame) -> None:
    found = {each.id: str(each.msg) for each in check_server()}

    assert names_what_is_missing(found["django_delayq.E010"], lame) or (
        "list of workers" in found["django_delayq.E010"]
    )
    assert "django_delayq.E009" not in found
    assert any("append-only file" in str(each.msg) for each in check_server())


# Pages and metrics


def text_of(response: Any) -> str:
    """Return what a page says, as one line."""
    return unwrapped(html.unescape(response.content.decode()))


@pytest.mark.parametrize(
    "page", ["changelist", "tasks", "search", "workers", "search?task=x"]
)
def test_page_shows_what_answers_and_names_the_rest(
    lame: Lame, browser: Client, page: str
) -> None:
    name, _, query = page.partition("?")

    response = browser.get(f"{url(name)}?{query}")

    assert response.status_code == 200
    said = text_of(response)
    if page == "search":
        return
    assert "A node of the cluster does not answer." in said
    if name == "workers":
        assert "The list of workers cannot be read:" in said
    else:
        assert names_what_is_missing(said, lame)
    if page == "tasks":
        assert all(each in said for each in lame.there)


def test_pages_of_a_queue_that_answers_are_whole(lame: Lame, browser: Client) -> None:
    for name in ("queue", "limits", "schedules"):
        response = browser.get(url(name, lame.there[0]))

        assert response.status_code == 200
        assert "does not answer" not in response.content.decode()


def test_jobs_that_a_search_finds_are_changed_in_the_admin_where_a_queue_answers(
    lame: Lame, browser: Client
) -> None:
    jobs = [schedule(add.using(queue=name), LATER, 4711) for name in lame.there]
    form = {"action": "cancel:all", "filter": "q=4711"}

    question = browser.post(url("bulk"), form)

    assert names_what_is_missing(text_of(question), lame)
    shown = dict(question.context["fields"])
    sent = {**form, **shown, "action": "cancel", "sure": "1"}
    said = text_of(browser.post(url("bulk"), sent, follow=True))
    assert f"{len(jobs)} jobs are cancelled." in said
    assert names_what_is_missing(said, lame)
    assert {job.refresh() for job in jobs} == {State.CANCELLED}


def test_question_about_ticked_jobs_has_each_in_the_order_of_the_ticks(
    lame: Lame, browser: Client
) -> None:
    first, last = (
        schedule(add.using(queue=name), LATER, 1).id for name in lame.there[:2]
    )
    away = [f"{name}:{'A' * 22}" for name in lame.away]
    ids = [last, away[1], first, away[0]]

    question = browser.post(url("bulk"), {"action": "cancel:ticked", "job": ids})

    assert [row.id for row in question.context["rows"]] == ids
    said = text_of(question)
    assert names_what_is_missing(said, lame)
    assert "4 jobs" in said
    assert "more" not in said
    labels = [row.state_label for row in question.context["rows"]]
    assert labels == ["scheduled", "unknown"] * 2


def test_metrics_say_which_node_and_which_queues_are_away(
    lame: Lame, scrape: Callable[[], Scrape]
) -> None:
    found = scrape()

    nodes = {f"127.0.0.1:{each.port}": 1.0 for each in lame.cluster.nodes}
    nodes[f"127.0.0.1:{lame.node.port}"] = 0.0
    assert by_label(found, "delayq_node_up", "node") == nodes
    queues = dict.fromkeys(lame.there, 1.0) | dict.fromkeys(lame.away, 0.0)
    assert by_label(found, "delayq_queue_up", "queue") == queues


def by_label(found: Scrape, name: str, label: str) -> dict[str, float]:
    return {dict(each)[label]: value for each, value in found.of_name(name).items()}

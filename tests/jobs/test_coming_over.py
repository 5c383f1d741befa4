"""Each row of the pages docs/howto/from-*.md: what stands on the right runs on a real server and does what is meant.

A row's first code span on the right is run; ``nothing`` in its place says that there is no equal. The first code span on
the left names the row here, and its names are looked up in the newest version of the library, where that is installed.
"""

import ast
import asyncio
import importlib.util
import re
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from django.core.exceptions import ValidationError
from django.core.management import load_command_class
from django.db.models import UUIDField
from django.utils import timezone

import django_delayq
from django_delayq import BlockingQueue, DelayedQueue, Job, State, conf
from django_delayq.jobs.registry import get_handler
from django_delayq.testing import captured
from tests.jobs.hand import Hand
from tests.polling import wait_until
from tests.worker.workers import InlineWorker

PAGES = sorted((Path(__file__).parents[2] / "docs" / "howto").glob("from-*.md"))
INSIDE = "Inside a task"
_SPAN = re.compile(r"`([^`]+)`")


def rows_of(page):
    """Yield heading, left cell and right cell of each row of a page's tables."""
    heading = ""
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:]
        if line.startswith("| ") and not line.endswith(("| here |", "| instead |")):
            left, right = line.strip("| ").split(" | ")
            yield heading, left, right


ROWS = [
    pytest.param(page, *row, id=f"{page.stem}: {row[1][:60]}")
    for page in PAGES
    for row in rows_of(page)
]


def test_every_page_has_tables():
    assert [page.stem for page in PAGES] == [
        "from-celery",
        "from-dramatiq",
        "from-huey",
        "from-redisson",
        "from-rq",
    ]
    assert len(ROWS) > 200


def due_in(job, seconds):
    """Return whether a job is on the server and due so many seconds after it was scheduled, a minute more or less."""
    assert job.refresh() in (State.SCHEDULED, State.DUE)
    left = (job.start_time - timezone.now()).total_seconds()
    return -60 < left - seconds < 60


#: What a row of the right side leaves behind, by its code: what is returned, and what holds afterwards. ``each`` has the
#: names of the rows, and those that the rows made.
MEANT = {
    "task(1)": lambda told, each: told == 1,
    "job.id": lambda told, each: told == each["job"].id,
    "get_job(id)": lambda told, each: told.id == each["job"].id,
    "job.wait(timeout=0)": lambda told, each: told == 1,
    'job.refresh() == "succeeded"': lambda told, each: told is False,
    'job.refresh() == "dead"': lambda told, each: told is False,
    "job.read_progress()": lambda told, each: told is None,
    'list(find_jobs(state="running"))': lambda told, each: told == [each["job"]],
    "get_job(id).cancel()": lambda told, each: told is True,
    "job.state": lambda told, each: told == "scheduled",
    "get_job(id).state": lambda told, each: told == "scheduled",
    "job.refresh()": lambda told, each: told == "scheduled",
    "job.refresh().state": None,
    "job.wait(timeout=5)": lambda told, each: told == 1,
    "job.cancel()": lambda told, each: told and each["job"].refresh() == "cancelled",
    "job.retry()": lambda told, each: told and each["job"].attempts == 0,
    "job.reschedule(60)": lambda told, each: told and due_in(each["job"], 60),
    "job.reschedule(timedelta(minutes=30))": lambda told, each: (
        told and due_in(each["job"], 1_800)
    ),
    "get_job(id).error": lambda told, each: told["error"] == "ValueError: it broke",
    'find_jobs(task="shop.mail").cancel()': lambda told, each: told.won == 1,
    'find_jobs(queue="mail").cancel()': lambda told, each: told.won == 1,
    "find_jobs().cancel()": lambda told, each: told.won == 1,
    'list(find_jobs(state="scheduled"))': lambda told, each: len(told) == 1,
    'list(find_jobs(state="due"))': lambda told, each: len(told) == 1,
    'find_jobs(state="due").count()': lambda told, each: told == 1,
    'list(find_jobs(state="dead"))': lambda told, each: len(told) == 1,
    'find_jobs(state="dead").retry()': lambda told, each: told.won == 1,
    '[each.id for each in find_jobs(state="dead")]': lambda told, each: (
        told == [each["job"].id]
    ),
    '[each.id for each in find_jobs(state="scheduled")]': lambda told, each: (
        told == [each["job"].id]
    ),
    '[each.id for each in find_jobs(state="running")]': lambda told, each: (
        told == [each["job"].id]
    ),
    'ended_jobs("mail")': lambda told, each: (
        [end.id for end in told] == [each["job"].id]
    ),
    'set_limit(limit="stripe", rate="10/m")': lambda told, each: (
        "10/m" in [str(limit.rate) for limit in django_delayq.limits(each["name"])]
    ),
    'pause("mail")': lambda told, each: len(django_delayq.paused(each["name"])) == 1,
    "pause(task=task)": lambda told, each: (
        django_delayq.paused(each["name"])[0].task == "shop.mail"
    ),
    'store_schedule("report", task, every(timedelta(minutes=5)), args=(1,))': (
        lambda told, each: (
            django_delayq.get_schedule("report", each["name"]).next_occurrence
            is not None
        )
    ),
    "resume(task=task)": lambda told, each: told is True,
    'store_schedule("report", task, cron("0 9 * * *"), args=(1,))': lambda told, each: (
        django_delayq.get_schedule("report", each["name"]).next_occurrence is not None
    ),
}
#: The same for Redisson's objects: the queues hold "order 42", due in an hour here and now there.
OBJECTS = {
    'DelayedQueue("payments")': lambda told, each: told.contains("order 42"),
    'DelayedQueue("payments", codec="StringCodec")': lambda told, each: len(told) == 1,
    'delayed.offer("order 42", timedelta(minutes=15))': lambda told, each: (
        len(each["delayed"]) == 2
    ),
    'await delayed.aoffer("order 42", 900)': lambda told, each: (
        len(each["delayed"]) == 2
    ),
    'delayed.remove("order 42")': lambda told, each: told and not len(each["delayed"]),
    'delayed.remove_all(["order 42"])': lambda told, each: told,
    'delayed.retain_all(["order 42"])': lambda told, each: told is False,
    'delayed.contains("order 42")': lambda told, each: told,
    'delayed.contains_all(["order 42"])': lambda told, each: told,
    "len(delayed)": lambda told, each: told == 1,
    "len(delayed) == 0": lambda told, each: told is False,
    "delayed.read_all()": lambda told, each: told == ["order 42"],
    "delayed.peek()": lambda told, each: told == "order 42",
    "delayed.poll()": lambda told, each: (
        told == "order 42" and not len(each["delayed"])
    ),
    "delayed.poll(10)": lambda told, each: told == ["order 42"],
    'delayed.poll_last_and_offer_first_to("other")': lambda told, each: (
        told == "order 42"
    ),
    "delayed.clear()": lambda told, each: not len(each["delayed"]),
    "delayed.destroy()": lambda told, each: len(each["delayed"]) == 1,
    'BlockingQueue("payments")': lambda told, each: told.peek() == "order 42",
    "queue.take()": lambda told, each: told == "order 42",
    "queue.poll()": lambda told, each: told == "order 42",
    "queue.poll(5)": lambda told, each: told == "order 42",
    'queue.poll_from_any(5, "other")': lambda told, each: told == "order 42",
    "queue.drain_to(10)": lambda told, each: told == ["order 42"],
    'queue.offer("order 42")': lambda told, each: told and len(each["queue"]) == 2,
    'queue.put("order 42")': lambda told, each: len(each["queue"]) == 2,
    "queue.peek()": lambda told, each: told == "order 42" and len(each["queue"]) == 1,
    "queue.read_all()": lambda told, each: told == ["order 42"],
    'queue.contains("order 42")': lambda told, each: told,
    'queue.remove("order 42")': lambda told, each: told and not len(each["queue"]),
    "len(queue)": lambda told, each: told == 1,
    "queue.clear()": lambda told, each: not len(each["queue"]),
}
#: By the code in a task: what becomes of its job.
ENDS = {
    "raise Retry(60)": lambda job: (
        job.refresh() == "retrying" and job.attempts == 1 and later(job)
    ),
    "raise Retry(time)": lambda job: (
        job.refresh() == "retrying" and job.attempts == 1 and later(job)
    ),
    "raise Snooze(60)": lambda job: (
        job.refresh() == "scheduled" and job.attempts == 0 and later(job)
    ),
    "raise Snooze(10)": lambda job: (
        job.refresh() == "scheduled" and job.attempts == 0 and later(job)
    ),
    "raise Snooze(0)": lambda job: (
        job.refresh() and len(RUNS) > 1 and job.attempts == 0
    ),
    'raise Cancel("nothing to do")': lambda job: job.refresh() == "cancelled",
    "current_job().id": lambda job: [job.id] == RUNS,
    "current_job().attempts": lambda job: RUNS == [0],
    "current_job().stopping": lambda job: RUNS == [False],
    "current_job() is None": lambda job: RUNS == [False],
    "current_job().progress(40, 200)": lambda job: RUNS == [None],
}
#: What the task of such a row has seen, at each of its runs.
RUNS: list[object] = []


def later(job):
    return job.start_time > timezone.now()


@pytest.fixture
def names(settings, server, queue_name, client):
    """The names that rows use, on a queue of this test alone, which stands for every queue of the pages."""
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": {queue_name: {}}}

    def delayed_task(function=None, **options):
        options.setdefault("queue", queue_name)
        made = django_delayq.delayed_task(**options)
        return made if function is None else made(function)

    public = {name: getattr(django_delayq, name) for name in django_delayq.__all__}
    return public | {
        "delayed_task": delayed_task,
        "timedelta": timedelta,
        "time": timezone.now() + timedelta(hours=1),
        "name": queue_name,
        "hand": Hand(client, queue_name),
    }


def here(code, queue_name):
    """Name the queue of the test where a page names one."""
    code = re.sub(r'"(mail|default|payments)"', f'"{queue_name}"', code)
    return code.replace('"other"', f'"{queue_name}-other"')


def run_now(queue_name, **options):
    """Run what is due in a worker, until nothing is."""
    worker = InlineWorker([queue_name], is_burst=True, **options).start()
    try:
        worker.join()
    finally:
        worker.stop()


def define(names, name="shop.mail", **options):
    @names["delayed_task"](name=name, keep_result=60, **options)
    def task(a, b=2):
        return a

    return task


def try_decorator(code, names, capture):
    scope = {**names, "__name__": "coming.over"}
    below = "@delayed_task\n" if code.startswith("@periodic") else ""
    names_of = "" if below else "a, b=2"
    exec(f"{code}\n{below}def run({names_of}): return 1", scope, scope)
    task = scope["run"]
    call = ast.parse(f"{code}\ndef run(): ...").body[0].decorator_list[0]
    if code.startswith("@periodic"):
        assert len(task.schedules) == 1
        assert task.schedules[0].when.next(1)
    elif code.startswith("@queue_handler"):
        assert get_handler(names["name"]).function is task.function
        return
    elif isinstance(call, ast.Call):
        for keyword in call.keywords:
            given = eval(ast.unparse(keyword.value), scope)
            if keyword.arg == "name":
                assert task.name == given
            elif keyword.arg == "limit":
                assert task.options.limit == given
            else:
                found = getattr(task.options, keyword.arg)
                assert found in (given, (given,)) or str(found) == str(given)
    if not code.startswith("@periodic"):
        with capture(execute=True):
            job = task.schedule(3600, 1)
        assert job.refresh() == "scheduled"


def try_command(code):
    _, command, *arguments = code.split()
    parser = load_command_class("django_delayq", command).create_parser(
        "manage.py", command
    )
    found = vars(parser.parse_args(arguments))
    assert any(
        found[each.lstrip("-").replace("-", "_")]
        for each in arguments
        if each.startswith("--")
    )


def try_settings(code, settings, server):
    names = {"DELAYQ": {"QUEUES": {"default": {}}}}
    exec(code, names)
    told = names["DELAYQ"]
    settings.DELAYQ = {"CONNECTION": server.socket_url, **told}
    found = conf.get_settings()
    assert set(told["QUEUES"]) <= set(found.queues)
    if "WORKER" in told:
        assert found.worker.lease_s == told["WORKER"]["LEASE"]


def try_inside(code, names, queue_name):
    RUNS.clear()

    def body():
        if code.startswith("raise "):
            RUNS.append(None)
            exec(code, dict(names))
        RUNS.append(eval(code, dict(names)))

    task = names["delayed_task"](body, name="coming.inside", max_attempts=2)
    job = task.schedule(0)
    worker = InlineWorker([queue_name]).start()
    try:
        wait_until(lambda: RUNS and ENDS[code](job), description=code)
    finally:
        worker.stop()


def try_call(code, names, queue_name, capture):
    """Run an expression, with what it needs on the server, and look at what it left there."""
    names["task"] = define(names)
    names["id"] = "?"
    dead = 'state="dead"' in code or code.endswith((".error", ".retry()"))
    if "stripe" in code:
        limit = django_delayq.Limit("stripe", rate="5/m")

        @names["delayed_task"](name="coming.limited", limit=limit)
        def limited():
            """Do nothing."""

    if code.startswith("resume"):
        django_delayq.pause(queue_name, task=names["task"])
    makes_jobs = re.search(r"\.(schedule|prepare)\(|^schedule", code)
    if dead:

        @names["delayed_task"](name="coming.broken", max_attempts=1)
        def broken():
            raise ValueError("it broke")

        names["job"] = broken.schedule(0)
        run_now(queue_name)
    elif not makes_jobs:
        is_now = re.search("due|running|wait|ended", code)
        names["job"] = names["task"].schedule(0 if is_now else 3600, 1)
        if "due" in code:
            wait_until(lambda: names["job"].refresh() == "due", description="it is due")
        if "running" in code:
            names["hand"].take()
        if re.search("wait|ended", code):
            wait_until(lambda: names["job"].refresh() == "due", description="it is due")
            run_now(queue_name)
    if not makes_jobs:
        names["id"] = names["job"].id
    with capture(execute=True):
        told = eval(here(code, queue_name), names)
    if not makes_jobs:
        assert MEANT[code](told, names)
        return
    jobs = list(told) if isinstance(told, list) else [told]
    if code.startswith("Batch"):
        held = list(django_delayq.find_jobs(state="held"))
        assert len(held) == 1
        return
    assert jobs
    for job in jobs:
        assert isinstance(job, Job)
        if ".prepare(" in code and not code.startswith("schedule_many"):
            assert job.refresh() == "uncommitted"
        else:
            assert due_in(job, delay_in(code, names))


def delay_in(code, names):
    """Return the seconds that a call says."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "schedule":
                delay = node.args[1]
            elif called.endswith((".schedule", ".prepare")):
                delay = node.args[0]
            else:
                continue
            delay = eval(ast.unparse(delay), names)
            if isinstance(delay, datetime):
                return (delay - timezone.now()).total_seconds()
            return delay.total_seconds() if isinstance(delay, timedelta) else delay
    raise AssertionError(f"{code} schedules nothing")


def try_object(code, names, queue_name):
    with BlockingQueue(queue_name) as queue:
        delayed = DelayedQueue(queue_name)
        try:
            scope = {**names, "delayed": delayed, "queue": queue}
            delayed.offer("order 42", 3600)
            if "queue." in code or "(queue)" in code or "BlockingQueue" in code:
                queue.offer("order 42")
            source = here(code, queue_name)
            if source.startswith("await "):

                async def call():
                    return await eval(source.removeprefix("await "), scope)

                told = asyncio.run(call())
            else:
                told = eval(source, scope)
            assert OBJECTS[code](told, scope)
            if isinstance(told, DelayedQueue):
                told.destroy()
        finally:
            delayed.destroy()


@pytest.mark.parametrize(("page", "heading", "left", "right"), ROWS)
@pytest.mark.django_db
def test_row_does_what_it_says(
    page,
    heading,
    left,
    right,
    names,
    settings,
    server,
    queue_name,
    django_capture_on_commit_callbacks,
):
    if not right.startswith("`"):
        # A sentence with what to do, and no call that would look like an equal.
        assert right.startswith(("nothing", "the "))
        return
    code, capture = _SPAN.match(right)[1], django_capture_on_commit_callbacks
    if heading == INSIDE or code.startswith("raise "):
        try_inside(code, names, queue_name)
    elif code.startswith("@"):
        try_decorator(here(code, queue_name), names, capture)
    elif code.startswith("manage.py"):
        try_command(code)
    elif code.startswith("DELAYQ"):
        try_settings(code, settings, server)
    elif code in OBJECTS:
        try_object(code, names, queue_name)
    else:
        try_call(code, names, queue_name, capture)


#: The library of a page.
LIBRARIES = {
    "from-celery": "celery",
    "from-rq": "rq",
    "from-huey": "huey",
    "from-dramatiq": "dramatiq",
}
#: What a page names besides: its own examples, Python, and other packages, each of which the page names.
NOT_THEIRS = {
    "task", "other", "time", "id", "ids", "result", "n", "for", "in", "range", "actor", "job", "queue", "raise", "except",
    "class", "timedelta", "minutes", "shop", "mail", "OSError", "KeyError", "True", "False", "None", "app", "self", "ann",
    "order", "who", "redis", "is_worth_it", "Mail", "message", "broker", "backend", "scheduler", "manage", "py", "tasks",
    "transaction", "on_commit", "LoggedTask", "report", "CELERY_IMPORTS", "current", "total", "testing",
}  # fmt: skip
OTHERS = {
    "from-celery": set(),
    # django-rq and rq-scheduler.
    "from-rq": {
        "django",
        "django_rq",
        "get_queue",
        "rqworker",
        "rqscheduler",
        "RQ_QUEUES",
        "cron",
    },
    "from-huey": set(),
    # dramatiq-abort and django-dramatiq.
    "from-dramatiq": {"abort", "rundramatiq"},
}


@pytest.mark.parametrize("page", LIBRARIES)
def test_names_on_the_left_are_those_of_the_newest_version(page):
    """What its sources never write cannot be called."""
    found = importlib.util.find_spec(LIBRARIES[page])
    if found is None:
        pytest.skip(f"{LIBRARIES[page]} is not installed: make .venv/.all-python3")
    folder = Path(found.origin).parent
    known = set()
    for file in folder.rglob("*.py"):
        known |= set(re.findall(r"[A-Za-z_]\w*", file.read_text("utf-8")))

    named = set()
    for _heading, left, _ in rows_of(PAGES[0].parent / f"{page}.md"):
        for code in _SPAN.findall(left):
            bare = re.sub(r'"[^"]*"', "", code)
            # Of a command its options are looked up.
            if re.match(r"[a-z_.]+ (-|[a-z])", bare) and not bare.startswith(
                ("raise", "class", "except", "return")
            ):
                bare = " ".join(re.findall(r"--[a-z-]+", bare)).replace("--", "")
                bare = bare.replace("-", "_")
            named |= set(re.findall(r"\b[A-Za-z_]\w*", bare))

    # Settings are written in either case.
    lower = {name.lower() for name in known}
    missing = {
        name for name in named - NOT_THEIRS - OTHERS[page] if name.lower() not in lower
    }
    assert len(named) > 30
    assert missing == set()


def test_methods_of_redissons_objects_have_the_names_that_a_reader_expects():
    known = {"getDelayedQueue", "getBlockingQueue", "size", "isEmpty", "iterator", "delete", "add"}  # fmt: skip
    for heading, left, right in rows_of(PAGES[3]):
        kind = {"RDelayedQueue": DelayedQueue, "RBlockingQueue": BlockingQueue}
        if heading in kind:
            for name in re.findall(r"(?:delayed|queue|redisson)\.(\w+)\(", left):
                snake = re.sub("([A-Z])", r"_\1", name.removesuffix("Async")).lower()
                assert name in known or hasattr(kind[heading], snake), name
                assert name in known or f".{snake}(" in right.replace(".a", "."), name


def test_patches_do_what_the_page_says(names, queue_name):
    task = define(names)
    with pytest.raises(AttributeError, match=r"does not have the attribute 'delay'"):
        patch.object(task, "delay").start()
    with patch.object(task, "schedule") as schedule, captured() as jobs:
        task.schedule(0, 1)
        task.using(priority=1).schedule(0, 2)

    schedule.assert_called_once_with(0, 1)
    jobs.assert_scheduled(task, args=(2,), count=1)


def test_ids_have_the_length_that_the_page_says(names, settings, server):
    plain, sharded = "q" * 13, "q" * 10
    queues = {plain: {}, sharded: {"SHARDS": 64}}
    settings.DELAYQ = {"CONNECTION": server.socket_url, "QUEUES": queues}
    task = define(names, queue=plain)

    assert len(task.prepare(0, 1).id) == len(plain) + 23 == 36
    ids = [task.using(queue=sharded).prepare(0, 1).id for _ in range(200)]
    assert {len(each) - len(sharded) - 23 for each in ids} == {2, 3}
    with pytest.raises(ValidationError):
        UUIDField().to_python(ids[0])

"""What can be a task of the backend, with which options, and what `enqueue` refuses."""

import copy
import pickle
import re
import sys
import threading
import types
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import django
import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.db import transaction
from redis.exceptions import ConnectionError

from django_delayq import InvalidTask as NoTask
from django_delayq import delayed_task, every, get_job, schedule, store_schedule
from django_delayq.backend import DelayqBackend, DelayqTask
from django_delayq.backend.upstream import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_enqueued,
)
from django_delayq.backoff import Backoff
from django_delayq.conf import get_settings
from django_delayq.core.states import State
from django_delayq.exceptions import InvalidSettings
from django_delayq.jobs import commit, registry
from django_delayq.jobs.lookup import handle_of
from django_delayq.testing import captured
from tests.backend import samples

task = samples.task
READY = TaskResultStatus.READY


class OtherBackend(BaseTaskBackend):
    """Somebody else's, which keeps nothing."""

    supports_defer = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        return task


@pytest.fixture
def tasks(settings):
    """Set the backends of this test: ``tasks(OPTIONS, other=…)``."""

    def set_tasks(options: Any = None, /, **others: Any) -> None:
        ours = {"BACKEND": "django_delayq.backend.DelayqBackend", "QUEUES": []}
        settings.TASKS = {"default": {**ours, "OPTIONS": options or {}}, **others}

    return set_tasks


def job_of(result: Any) -> Any:
    return get_job(result.id)


def test_backend_supports_all_that_a_backend_can() -> None:
    backend = task_backends["default"]

    assert type(backend) is DelayqBackend
    assert (backend.supports_defer, backend.supports_async_task) == (True, True)
    assert (backend.supports_get_result, backend.supports_priority) == (True, True)


def test_backend_is_made_without_a_server_or_good_settings(settings) -> None:
    settings.DELAYQ = {"NONSENSE": 1}

    backend = DelayqBackend("a", {"OPTIONS": {"RESULT_TTL": "never"}})

    assert (backend.alias, backend.queues) == ("a", {"default"})


def test_task_stands_in_the_registry_under_its_path() -> None:
    names = [each.name for each in registry.all_tasks()]

    assert "tests.backend.samples.add" in names
    assert "tests.backend.samples.plain" in names


@pytest.mark.parametrize("task", [samples.add, "tests.backend.samples.add"])
def test_task_that_schedule_is_given_is_told_to_be_enqueued(task: Any) -> None:
    with pytest.raises(NoTask) as told:
        schedule(task, 0, 1)

    assert str(told.value) == (
        "'tests.backend.samples.add' is a Django task: schedule it with .using(run_after=…).enqueue(…)"
    )


def test_task_gets_no_stored_schedule(configure, queue_name) -> None:
    with pytest.raises(NoTask, match="a Django task, which has no schedules"):
        store_schedule("daily", "tests.backend.samples.add", every(60), args=[1])


def test_options_of_a_call_travel_with_it(configure, queue_name) -> None:
    result = samples.add.using(
        queue_name=queue_name,
        max_attempts=3,
        backoff=Backoff(base=1),
        time_limit=timedelta(seconds=5),
        expires=60,
        on_expiry="dead",
    ).enqueue(1)

    options = job_of(result).options

    assert options["max_attempts"] == 3
    assert (options["time_limit"], options["expires"]) == (5.0, 60.0)
    assert options["on_expiry"] == "dead"
    assert options["backoff"][0] == 1
    assert "keep_result" not in options


def test_call_without_options_carries_none(configure, queue_name) -> None:
    assert job_of(samples.add.using(queue_name=queue_name).enqueue(1)).options is None


def test_options_of_the_backend_are_those_of_its_tasks(
    configure, queue_name, tasks
) -> None:
    tasks({"MAX_ATTEMPTS": 2, "RESULT_TTL": 60})

    options = job_of(samples.add.using(queue_name=queue_name).enqueue(1)).options

    assert options == {"max_attempts": 2, "keep_result": 60.0}


def test_option_of_a_task_comes_before_that_of_the_backend(
    configure, queue_name, tasks
) -> None:
    tasks({"MAX_ATTEMPTS": 2})

    job = job_of(samples.add.using(queue_name=queue_name, max_attempts=5).enqueue(1))

    assert job.options["max_attempts"] == 5


def test_unique_task_returns_the_result_of_the_first_call(
    configure, queue_name
) -> None:
    unique = samples.add.using(
        queue_name=queue_name, unique=("a",), run_after=timedelta(60)
    )

    first, second, other = unique.enqueue(1), unique.enqueue(1, b=2), unique.enqueue(2)

    assert second.id == first.id != other.id
    assert (second.status, second.kwargs) == (READY, {})


def test_duplicate_sends_no_signal(configure, queue_name) -> None:
    heard = []
    unique = samples.add.using(
        queue_name=queue_name, unique=True, run_after=timedelta(60)
    )

    def hear(task_result: Any, **named: Any) -> None:
        heard.append(task_result.id)

    task_enqueued.connect(hear)
    try:
        first = unique.enqueue(1)
        unique.enqueue(1)
    finally:
        task_enqueued.disconnect(hear)

    assert heard == [first.id]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts=0: give a whole number"),
        ({"expires": -1}, "expires=-1: give seconds above 0"),
        ({"unique": ("nobody",)}, "which is not one of its parameters"),
        ({"unique": ["a"]}, r"unique=\['a'\]: give True, a tuple"),
        ({"max_wait": 5}, "max_wait=5: it bounds"),
        ({"keep_results": 5}, "has no option 'keep_results'"),
        ({"run_after": timedelta(-1)}, "a delay cannot be negative"),
        ({"run_after": datetime(2030, 1, 1)}, "must be an aware datetime"),
        ({"priority": 101}, "priority must be a whole number"),
    ],
)
def test_wrong_options_are_refused_by_using(options, message) -> None:
    with pytest.raises(InvalidTask, match=message):
        samples.add.using(**options)


def test_naive_moment_is_one_of_time_zone_without_use_tz(
    configure, queue_name, settings
) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Shanghai"

    result = samples.add.using(
        queue_name=queue_name, run_after=datetime(2040, 1, 1)
    ).enqueue(1)

    assert job_of(result).start_time.isoformat() == "2039-12-31T16:00:00+00:00"


def test_priority_on_a_queue_of_redisson_is_refused(configure) -> None:
    configure(shared={"REDISSON": "3.16.6"})
    name = next(name for name in get_settings().queues if name.endswith("-shared"))

    with pytest.raises(InvalidTask, match="shared with Redisson"):
        samples.add.using(queue_name=name, priority=1)


def test_queue_that_delayq_does_not_have_is_refused(configure) -> None:
    with pytest.raises(InvalidTask, match="queue 'nowhere' is not configured"):
        samples.add.using(queue_name="nowhere").enqueue(1)


def test_task_of_another_backend_is_refused(tasks) -> None:
    tasks(other={"BACKEND": f"{__name__}.OtherBackend"})
    other = task(backend="other")(samples.not_decorated)

    with pytest.raises(InvalidTask, match=r"decorate its function with @task\(backend"):
        other.using(backend="default")


def test_wait_becomes_a_moment_for_another_backend(tasks) -> None:
    tasks(other={"BACKEND": f"{__name__}.OtherBackend"})

    other = samples.add.using(backend="other", run_after=timedelta(hours=1))

    assert isinstance(other.run_after, datetime)


def test_path_that_leads_elsewhere_is_refused(configure) -> None:
    with pytest.raises(InvalidTask, match=r"not_decorated' should lead to a Task"):
        samples.elsewhere.enqueue()


def test_worker_refuses_what_its_own_path_does_not_lead_to(
    configure, queue_name, burst, monkeypatch
) -> None:
    result = samples.add.using(queue_name=queue_name, max_attempts=1).enqueue(1)
    monkeypatch.setattr(samples, "add", samples.echo)
    burst()

    found = task_backends["default"].get_result(result.id)

    assert found.status == TaskResultStatus.FAILED
    assert found.errors[0].exception_class is InvalidTask


def test_two_functions_of_one_path_are_refused() -> None:
    module = types.ModuleType("tests.backend.invented")
    source = "def f(): pass\n"
    exec(compile(source, "one.py", "exec"), module.__dict__)
    one = task(module.f)
    exec(compile("\n" + source, "two.py", "exec"), module.__dict__)

    with pytest.raises(InvalidTask, match=r"two functions have this path: one\.py:1"):
        task(module.f)

    assert isinstance(one, DelayqTask)


def test_reloaded_module_registers_anew() -> None:
    module = types.ModuleType("tests.backend.invented")
    source = compile("def f(): pass\n", "one.py", "exec")
    exec(source, module.__dict__)
    task(module.f)
    exec(source, module.__dict__)
    second = task(module.f)

    assert registry.get_task("tests.backend.invented.f").task is second


def test_name_that_a_delayed_task_has_is_refused() -> None:
    @delayed_task(name="tests.backend.invented.g")
    def other() -> None: ...

    module = types.ModuleType("tests.backend.invented")
    exec("def g(): pass\n", module.__dict__)

    with pytest.raises(InvalidTask, match="two tasks are named"):
        task(module.g)


def test_what_is_no_function_of_a_module_is_refused() -> None:
    def local() -> None: ...

    for wrong in (any, local, samples.plain):
        with pytest.raises(InvalidTask, match="must be defined at a module level"):
            task()(wrong)
    assert "tests.backend.test_backend.local" not in registry._tasks


def test_argument_that_does_not_fit_is_refused(configure) -> None:
    with pytest.raises(TypeError, match="missing argument 'a'") as refused:
        samples.add.enqueue()

    # Only `schedule()` begins with a delay.
    assert "delay" not in str(refused.value)


def test_context_is_no_argument_of_a_call(configure, queue_name) -> None:
    with pytest.raises(TypeError, match="unexpected 'context'"):
        samples.tell_context.enqueue(word="w", context=1)
    with pytest.raises(TypeError, match="unexpected 'context'"):
        samples.tell_any.enqueue(word="w", context=1)

    result = samples.tell_context.using(queue_name=queue_name).enqueue("w")
    assert result.args == ["w"]


@pytest.mark.parametrize("wrong", [datetime(2030, 1, 1), {1}, object()])
def test_argument_that_is_no_json_is_refused(configure, wrong) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        samples.echo.enqueue(wrong)
    with pytest.raises(TypeError, match="Unsupported type"):
        samples.echo.enqueue(a=[wrong])


@pytest.mark.parametrize(
    "args", [(), (1, "a", None, True), (1.5,), ([1, (2, 3)],), ({"a": b"x"},)]
)
def test_arguments_are_kept_as_django_keeps_them(configure, queue_name, args) -> None:
    result = samples.echo.using(queue_name=queue_name).enqueue(*args, k=args)

    assert result.args == normalize_json(args)
    assert result.kwargs == {"k": normalize_json(args)}
    found = samples.echo.get_result(result.id)
    assert (found.args, found.kwargs) == (result.args, result.kwargs)


def test_copies_of_a_task_are_tasks_that_can_be_enqueued(configure, queue_name) -> None:
    """From 6.1 on, Django copies a Task by the path of its function."""
    chosen = samples.add.using(queue_name=queue_name, max_attempts=4)
    copies = [copy.deepcopy(chosen), copy.copy(chosen)]
    if django.VERSION >= (6, 1):
        copies.append(pickle.loads(pickle.dumps(chosen)))
        result = chosen.enqueue(1)
        assert pickle.loads(pickle.dumps(result)) == result

    for each in copies:
        assert each == chosen
        assert job_of(each.enqueue(1)).options == {"max_attempts": 4}


def test_task_is_enqueued_from_any_thread(configure, queue_name) -> None:
    chosen = samples.add.using(queue_name=queue_name)
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(chosen.enqueue(1)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({result.id for result in results}) == 3
    assert all(job_of(result).args == [1] for result in results)


@pytest.mark.django_db(transaction=True)
def test_on_commit_sends_the_job_and_the_signal_with_the_commit(
    configure, queue_name, tasks
) -> None:
    tasks({"ON_COMMIT": True})
    heard = []

    def hear(task_result: Any, **named: Any) -> None:
        heard.append(handle_of(task_result.id).refresh())

    task_enqueued.connect(hear)
    try:
        with transaction.atomic():
            result = samples.add.using(queue_name=queue_name).enqueue(1)
            assert (heard, handle_of(result.id).refresh()) == ([], State.MISSING)
    finally:
        task_enqueued.disconnect(hear)

    assert heard in ([State.SCHEDULED], [State.DUE])


@pytest.mark.django_db(transaction=True)
def test_on_commit_sends_nothing_after_a_rollback(configure, queue_name, tasks) -> None:
    tasks({"ON_COMMIT": True})

    with transaction.atomic():
        result = samples.add.using(queue_name=queue_name).enqueue(1)
        transaction.set_rollback(True)

    assert handle_of(result.id).refresh() is State.MISSING


@pytest.mark.django_db(transaction=True)
def test_commit_that_gives_up_names_each_job_once(
    configure, queue_name, tasks, settings, monkeypatch
) -> None:
    tasks({"ON_COMMIT": True})
    monkeypatch.setattr(commit, "PATIENCE_MS", -1)
    settings.DELAYQ = settings.DELAYQ | {"CONNECTION": "unix:///dev/null/nobody"}
    chosen = samples.add.using(queue_name=queue_name)
    results = []

    def enqueue_all() -> None:
        with transaction.atomic():
            results.extend(chosen.enqueue(n) for n in range(2))

    with pytest.raises(ConnectionError) as failure:
        enqueue_all()

    notes = failure.value.__notes__
    assert [sum(result.id in note for note in notes) for result in results] == [2, 1]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("setting", [None, True])
def test_backend_sends_at_once_unless_its_options_say_otherwise(
    configure, queue_name, tasks, settings, setting
) -> None:
    tasks({})
    if setting is not None:
        settings.DELAYQ = settings.DELAYQ | {"ON_COMMIT": setting}

    with transaction.atomic():
        result = samples.add.using(queue_name=queue_name).enqueue(1)
        assert handle_of(result.id).refresh() is not State.MISSING


def test_on_commit_outside_a_transaction_asks_no_database(
    configure, queue_name, tasks
) -> None:
    tasks({"ON_COMMIT": True})
    heard = []

    def hear(task_result: Any, **named: Any) -> None:
        heard.append(task_result.id)

    task_enqueued.connect(hear)
    try:
        result = samples.add.using(queue_name=queue_name).enqueue(1)
    finally:
        task_enqueued.disconnect(hear)

    assert heard == [result.id]


@pytest.mark.django_db(transaction=True)
async def test_on_commit_on_the_event_loop(configure, queue_name, tasks) -> None:
    tasks({"ON_COMMIT": True})

    result = await samples.add.using(queue_name=queue_name).aenqueue(1)

    assert await handle_of(result.id).arefresh() in (State.SCHEDULED, State.DUE)


def problems(alias: str = "default") -> list[tuple[str, str]]:
    return [(each.id, each.msg) for each in task_backends[alias].check()]


def test_check_finds_nothing_wrong(configure, tasks) -> None:
    tasks({"ON_COMMIT": "other", "RESULT_TTL": 60, "MAX_ATTEMPTS": 1})

    assert problems() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"RESULT_TTL": 0}, "['RESULT_TTL'] is 0."),
        ({"MAX_ATTEMPTS": True}, "['MAX_ATTEMPTS'] is True."),
        ({"MODULES": ["shop.jobs"]}, "has an unknown key 'MODULES'."),
        ({"ON_COMMIT": 5}, "['ON_COMMIT'] is 5."),
        ({"ON_COMMIT": "nowhere"}, "'nowhere', which is not in DATABASES."),
        ({"RESULT_TLL": 5}, "has an unknown key 'RESULT_TLL'."),
    ],
)
def test_check_finds_wrong_options(configure, tasks, options, message) -> None:
    tasks(options)

    ((id, found),) = problems()

    assert id == "django_delayq.E022"
    assert found.endswith(message)


def test_check_finds_unknown_and_long_names_of_queues(configure, settings) -> None:
    long = "q" * 41
    configure()
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}, long: {}}}
    settings.TASKS = {
        "default": {**settings.TASKS["default"], "QUEUES": ["default", "nowhere", long]}
    }

    assert [id for id, _ in problems()] == ["django_delayq.E021", "django_delayq.E023"]


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("QUEUES", "default", "is 'default': give a list of names"),
        ("QUEUES", None, "is None: give a list of names"),
        ("QUEUES", [5, "default"], "is [5, 'default']: give a list of names"),
        ("OPTIONS", None, "is None: give a dict"),
        ("OPTIONS", ["RESULT_TTL"], "is ['RESULT_TTL']: give a dict"),
    ],
)
def test_backend_says_which_setting_it_cannot_be_made_with(
    configure, settings, key, value, shown
) -> None:
    settings.TASKS = {"default": {**settings.TASKS["default"], key: value}}

    with pytest.raises(
        InvalidSettings, match=re.escape(f"TASKS['default'][{key!r}] {shown}")
    ):
        samples.add.enqueue(1)


def test_check_misses_the_app(configure, settings) -> None:
    settings.INSTALLED_APPS = [
        app for app in settings.INSTALLED_APPS if app != "django_delayq"
    ]

    assert [id for id, _ in problems()] == ["django_delayq.E020"]


def test_without_the_app_nothing_is_decorated_or_enqueued(
    configure, settings, monkeypatch
) -> None:
    before = samples.add
    monkeypatch.delitem(sys.modules, "django_delayq.apps")
    # A backend is made for TASKS as they are.
    settings.TASKS = {"default": dict(settings.TASKS["default"])}

    with pytest.raises(
        InvalidSettings, match="not in INSTALLED_APPS: add 'django_delayq'"
    ):
        samples.add.using(priority=1)
    with pytest.raises(
        InvalidSettings, match="not in INSTALLED_APPS: add 'django_delayq'"
    ):
        before.enqueue(1)


def test_call_is_found_by_its_task_among_captured_jobs(configure, queue_name) -> None:
    with captured() as jobs:
        samples.add.using(queue_name=queue_name).enqueue(1)

    jobs.assert_scheduled(samples.add, args=(1,), due_in=0, queue=queue_name)
    jobs.assert_not_scheduled(samples.fail)


def test_test_with_fewer_apps_may_enqueue(configure, settings, queue_name) -> None:
    settings.TASKS = {"default": dict(settings.TASKS["default"])}
    apps.set_available_apps([])
    try:
        assert samples.add.using(queue_name=queue_name).enqueue(1).id
    finally:
        apps.unset_available_apps()


def test_patched_enqueue_of_the_backend_is_called(configure, queue_name) -> None:
    task = samples.add.using(queue_name=queue_name)
    task.enqueue(1)

    with patch.object(DelayqBackend, "enqueue", return_value="class") as of_class:
        assert task.enqueue(1) == samples.add.enqueue(2) == "class"
    with patch.object(task.get_backend(), "enqueue", return_value="one") as of_one:
        assert task.enqueue(3, b=4) == "one"

    assert of_class.call_count == 2
    of_one.assert_called_once_with(task, (3,), {"b": 4})


@pytest.mark.skipif(django.VERSION < (6,), reason="an app of its own brings the check")
def test_manage_py_check_asks_the_backend(configure, tasks) -> None:
    tasks({"MAX_ATTEMPTS": 0})

    assert "django_delayq.E022" in [each.id for each in run_checks()]


def test_function_is_called_through_call() -> None:
    assert samples.add.call(1, b=2) == 3


def test_number_is_no_run_after() -> None:
    with pytest.raises(InvalidTask, match=r"run_after=5 of task .* give an aware"):
        samples.add.using(run_after=5)


def test_result_is_read_although_tasks_names_its_queue_no_more(
    settings: Any, configure: Any, queue_name: str
) -> None:
    configure({})
    result = samples.add.using(queue_name=queue_name).enqueue(1, 2)
    ours = {**settings.TASKS["default"], "QUEUES": ["default"]}
    settings.TASKS = {"default": ours}

    found = task_backends["default"].get_result(result.id)

    assert found.task.queue_name == queue_name
    assert found.task.func is samples.add.func
    assert found.args == [1, 2]

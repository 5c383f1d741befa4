from types import FunctionType

import pytest

from django_delayq import InvalidTask, TaskNotFound, delayed_task, schedule
from django_delayq.jobs.registry import all_tasks, get_task
from django_delayq.suggestions import MAX_CANDIDATES, closest, suggestion
from tests.jobs import samples


def test_task_is_found_by_its_name() -> None:
    assert get_task("tests.jobs.samples.add") is samples.add


def test_unknown_name_is_told_with_the_nearest_and_where_tasks_are_found() -> None:
    with pytest.raises(TaskNotFound) as missing:
        get_task("tests.jobs.samples.ad")

    assert "no task is registered as 'tests.jobs.samples.ad'" in str(missing.value)
    assert "Did you mean 'tests.jobs.samples.add'?" in str(missing.value)
    assert "tasks.py of an app in INSTALLED_APPS" in str(missing.value)


def test_name_that_is_like_no_other_comes_without_a_guess() -> None:
    with pytest.raises(TaskNotFound) as missing:
        schedule("qqqqqqqqqqqqq", 0)

    assert "Did you mean" not in str(missing.value)


def test_a_suggestion_is_made_once_and_from_a_bounded_number_of_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(2 * MAX_CANDIDATES):
        delayed_task(name=f"a.task.of.about.this.length.{number:04}")(lambda: None)
    compared: list[str] = []

    def likeness(name: str, known: str) -> float:
        compared.append(known)
        return 0.0

    monkeypatch.setattr("django_delayq.suggestions._likeness", likeness)

    for name in [*["a.task.of.about.this.length.xxxx"] * 5, "x" * 10_000]:
        with pytest.raises(TaskNotFound):
            get_task(name)

    assert len(compared) == MAX_CANDIDATES


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("shop.tasks.gone", None),
        ("shop.tasks.cancel_unpayd", "shop.tasks.cancel_unpaid"),
        ("shop.task.cancel_unpaid", "shop.tasks.cancel_unpaid"),
        ("Shop.tasks.all_done", "shop.tasks.all_done"),
        # Without its module.
        ("all_done", "shop.tasks.all_done"),
        ("cancel_unpayd", "shop.tasks.cancel_unpaid"),
        ("charge_card", None),
        # One part is right, and the other is another word.
        ("blog.tasks.all_done", None),
        ("shop.tasks.charge_card", None),
        ("", None),
    ],
)
def test_only_a_name_that_is_close_in_every_part_is_suggested(
    name: str, meant: str | None
) -> None:
    known = ["shop.tasks.all_done", "shop.tasks.cancel_unpaid", "mail.tasks.send"]

    assert closest(name, known) == meant
    assert suggestion(name, known) == (f" Did you mean {meant!r}?" if meant else "")


def test_name_never_imports_anything() -> None:
    """A payload names what was registered, or nothing."""
    for name in ("os.system", "builtins.print", "django_delayq.jobs.envelope.encode"):
        with pytest.raises(TaskNotFound):
            get_task(name)


def test_two_functions_of_one_name_are_refused_with_both_places() -> None:
    @delayed_task(name="same")
    def one() -> None: ...

    with pytest.raises(InvalidTask) as refused:

        @delayed_task(name="same")
        def other() -> None: ...

    assert "two tasks are named 'same'" in str(refused.value)
    assert str(refused.value).count(__file__) == 2
    assert get_task("same") is one


def test_module_that_is_imported_again_replaces_its_tasks() -> None:
    @delayed_task(name="again")
    def again() -> None: ...

    code = again.function.__code__
    reloaded = FunctionType(code, {}, again.function.__name__)
    reloaded.__qualname__, reloaded.__module__ = again.__qualname__, again.__module__

    task = delayed_task(name="again")(reloaded)

    assert get_task("again") is task


def test_all_tasks_are_listed_by_name() -> None:
    names = [task.name for task in all_tasks()]

    assert names == sorted(names)
    assert "tests.jobs.samples.add" in names

import asyncio
import copy
import functools
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import combinations, product
from typing import Any

import pytest

from django_delayq import (
    Backoff,
    DelayedTask,
    InvalidArguments,
    InvalidDelay,
    InvalidTask,
    Snooze,
    TaskNotFound,
    delayed_task,
    every,
    periodic,
    queue_handler,
    schedule,
)
from django_delayq.jobs.definition import TaskDefinition, positional_range
from django_delayq.jobs.options import TaskOptions
from django_delayq.jobs.registry import all_tasks, get_handler, get_task
from tests.jobs import samples

# The function stays one.


@pytest.mark.parametrize("name", [5, True, ["mail"], "\ud800"])
def test_name_that_is_not_text_is_refused(name: Any) -> None:
    with pytest.raises(InvalidTask, match=r"name=.*: give text"):
        delayed_task(name=name)(lambda: 5)


def test_name_that_is_too_long_is_refused() -> None:
    assert delayed_task(name="ä" * 256)(lambda: 5)() == 5

    with pytest.raises(InvalidTask, match=r"has 513 bytes, .* one of at most 512$"):
        delayed_task(name="ä" * 256 + "a")(lambda: 5)


def test_decorated_function_is_called_as_before() -> None:
    assert samples.add(1, b=2, note="x") == 3
    assert asyncio.run(samples.fetch("u")) == "u"


def test_decorated_function_keeps_name_docstring_and_signature() -> None:
    @delayed_task
    def documented(a: int, *, b: str = "x") -> bool:
        """Say what it does."""
        return bool(a and b)

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "Say what it does."
    assert str(inspect.signature(documented)) == "(a: int, *, b: str = 'x') -> bool"
    assert documented.__wrapped__ is documented.function


def test_bare_and_with_options_register_under_module_and_name() -> None:
    @delayed_task
    def bare() -> None: ...

    @delayed_task(max_attempts=2)
    def with_options() -> None: ...

    @delayed_task()
    def with_none() -> None: ...

    place = f"{__name__}.test_bare_and_with_options_register_under_module_and_name"
    for task in (bare, with_options, with_none):
        assert isinstance(task, DelayedTask)
        assert task.name == f"{place}.<locals>.{task.__name__}"
        assert get_task(task.name) is task
    assert with_options.options.max_attempts == 2


def test_given_name_is_the_one_on_the_wire() -> None:
    @delayed_task(name="mail.send")
    def renamed() -> None: ...

    assert renamed.name == "mail.send"
    assert get_task("mail.send") is renamed
    assert repr(renamed) == "<delayed_task mail.send>"


def test_async_is_told_from_sync() -> None:
    assert samples.fetch.is_async
    assert not samples.add.is_async


def test_task_can_be_pickled_and_copied_by_reference() -> None:
    assert pickle.loads(pickle.dumps(samples.add)) is samples.add
    assert copy.copy(samples.add) is samples.add
    assert copy.deepcopy(samples.add) is samples.add


def test_decorators_below_are_kept() -> None:
    def shout(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args).upper()

        return wrapper

    @delayed_task
    @shout
    def say(text: str) -> str:
        return text

    assert say("x") == "X"


def test_wrapper_that_names_its_parameters_takes_no_others() -> None:
    def connected(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(x: int) -> Any:
            return function("conn", x)

        return wrapper

    task = delayed_task(name="connected", unique=("x",))(
        connected(lambda conn, x: (conn, x))
    )

    assert task(5) == ("conn", 5)
    assert task.fits((5,), {})
    assert task.misfit((5, 6), {}) == "1 positional argument too many"
    assert task.misfit((), {"conn": 5, "x": 6}) == "unexpected 'conn'"


def test_wrapper_of_any_arguments_says_by_its_signature_what_it_takes() -> None:
    def connected(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function("conn", *args, **kwargs)

        _, *rest = inspect.signature(function).parameters.values()
        wrapper.__signature__ = inspect.Signature(rest)  # type: ignore[attr-defined]
        return wrapper

    def passed_on(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    def conn_and_x(conn: str, x: int) -> None: ...

    for wrapped in (connected(conn_and_x), passed_on(connected(conn_and_x))):
        task = TaskDefinition(wrapped, "f", TaskOptions(sensitive=("x",)))
        assert task.fits((5,), {})
        assert not task.fits((5, 6), {})
    # Without one, it passes on what it gets.
    assert not TaskDefinition(passed_on(conn_and_x), "f", TaskOptions()).fits((5,), {})


# What cannot be a task.


class WithMethods:
    def method(self) -> None: ...

    def __call__(self) -> None: ...


def generator() -> Any:
    yield 1


async def async_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "needs a function, got 5"),
        ("text", "needs a function"),
        (WithMethods, "needs a function"),
        (WithMethods(), "needs a function"),
        (WithMethods().method, "needs a function"),
        (functools.partial(print), "needs a function"),
        (len, "needs a function"),
        (property(lambda self: 1), "order of the decorators"),
        (staticmethod(generator), "order of the decorators"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (lambda: 1, "a lambda has no name"),
        (samples.add, "is already a delayed_task"),
    ],
)
def test_what_cannot_be_a_task_is_refused_with_the_reason(
    value: Any, said: str
) -> None:
    before = all_tasks()

    with pytest.raises(InvalidTask, match=said):
        delayed_task(value)

    assert all_tasks() == before


def test_lambda_with_a_name_is_a_task() -> None:
    assert delayed_task(name="named")(lambda: 5)() == 5


def test_function_of_main_is_warned_about_and_still_registered() -> None:
    def lost() -> None: ...

    lost.__module__ = "__main__"

    with pytest.warns(UserWarning, match=r"lost is defined in __main__.*tasks\.py"):
        task = delayed_task(lost)

    assert get_task(task.name) is task


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_atempts": 3}, "unknown task option 'max_atempts'; known are queue,"),
        ({"max_atempts": 3}, "Did you mean 'max_attempts'?"),
        ({"max_attempts": 0}, r"max_attempts=0: give a whole number, 1 or more"),
        ({"max_attempts": True}, "max_attempts=True"),
        ({"max_attempts": 1.5}, "max_attempts=1.5"),
        ({"queue": ""}, "queue=''"),
        ({"queue": None}, "queue=None"),
        ({"backoff": 5}, "backoff=5: give a Backoff"),
        ({"retry_on": "ValueError"}, "retry_on='ValueError'"),
        ({"retry_on": (ValueError, 5)}, "retry_on="),
        ({"no_retry_on": [ValueError]}, "no_retry_on="),
        ({"time_limit": 0}, "time_limit=0: give seconds above 0"),
        ({"time_limit": -1}, "time_limit=-1"),
        ({"time_limit": "5"}, "time_limit='5'"),
        ({"time_limit": float("nan")}, "time_limit=nan"),
        ({"time_limit": float("inf")}, "time_limit=inf"),
        ({"expires": timedelta(0)}, "expires="),
        ({"keep_result": True}, "keep_result=True"),
        ({"unique": "user"}, "unique='user'"),
        ({"unique": ()}, r"unique=\(\)"),
        ({"unique": ("user", 5)}, "unique="),
        ({"unique_until": "middle"}, "unique_until='middle'"),
        ({"on_expiry": "keep"}, "on_expiry='keep'"),
        ({"on_commit": 1}, "on_commit=1"),
    ],
)
def test_bad_option_is_named_with_what_it_may_be(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidTask, match=said):
        delayed_task(**options)
    if not options.keys() & {"retry_on", "no_retry_on"}:
        with pytest.raises(InvalidTask, match=said):
            samples.add.using(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 1},
        {"backoff": Backoff(base=1)},
        {"time_limit": 0.5},
        {"time_limit": timedelta(seconds=5)},
        {"expires": timedelta(hours=1), "on_expiry": "dead"},
        {"keep_result": 60},
        {"unique": True},
        {"unique": ("a", "b")},
        {"unique": lambda a: str(a)},
        {"unique_until": "start"},
        {"on_commit": True},
        {"on_commit": "other"},
        {"queue": "bulk"},
    ],
)
def test_good_option_is_taken(options: dict[str, Any]) -> None:
    @delayed_task(name="good", **options)
    def good(a: int = 0, b: int = 0) -> None: ...

    assert {name: getattr(good.options, name) for name in options} == options


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ("user", "adress"),
            r"unique of 'mail' names 'adress', which is not one of its"
            r" parameters: user, address\. Did you mean 'address'\?$",
        ),
        (("colour",), r"names 'colour'.*: user, address\.$"),
    ],
)
def test_unique_names_a_parameter_that_is_not_there(
    names: tuple[str, ...], said: str
) -> None:
    def mail(user: int, address: str = "") -> None: ...

    with pytest.raises(InvalidTask, match=said):
        delayed_task(name="mail", unique=names)(mail)
    with pytest.raises(TaskNotFound):
        get_task("mail")
    task = delayed_task(name="mail", unique=("user", "address"))(mail)
    with pytest.raises(InvalidTask, match=said):
        task.using(unique=names)


def test_unique_names_a_parameter_of_a_function_without_any() -> None:
    with pytest.raises(InvalidTask, match="its parameters: it has none"):
        delayed_task(name="bare", unique=("user",))(lambda: None)


@pytest.mark.parametrize("name", ["retry_on", "no_retry_on"])
def test_one_exception_class_needs_no_tuple(name: str) -> None:
    @delayed_task(name="one", **{name: ValueError})
    def one() -> None: ...

    assert getattr(one.options, name) == (ValueError,)


# using().


def test_using_changes_a_copy_and_only_that() -> None:
    changed = samples.add.using(max_attempts=1, time_limit=5)

    assert (changed.options.max_attempts, changed.options.time_limit) == (1, 5)
    assert samples.add.options.max_attempts is None
    assert changed.name == samples.add.name
    assert get_task(samples.add.name) is samples.add
    assert changed(1, 2) == 3


def test_using_adds_up() -> None:
    changed = (
        samples.add.using(max_attempts=1).using(time_limit=5).using(max_attempts=2)
    )

    assert (changed.options.max_attempts, changed.options.time_limit) == (2, 5)
    assert changed.base is samples.add.options


@pytest.mark.parametrize("name", ["retry_on", "no_retry_on"])
def test_exceptions_cannot_be_changed_for_one_call(name: str) -> None:
    with pytest.raises(InvalidTask, match="exceptions do not travel"):
        samples.add.using(**{name: ValueError})


# Signatures.


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing argument 'a'"),
        ((1, 2, 3), {}, "1 positional argument too many"),
        ((1,), {"a": 2}, "given twice: 'a'"),
        ((1,), {"colour": 5}, "unexpected 'colour'"),
    ],
)
@pytest.mark.usefixtures("delayq_offline")
def test_call_that_does_not_fit_is_refused_with_task_call_and_reason(
    args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArguments, match=said) as refused:
        samples.add.prepare(0, *args, **kwargs)

    assert "samples.add(a: int, b: int = 0" in str(refused.value)


def every_signature() -> Iterator[Callable[..., Any]]:
    kinds = ["a", "a=0", "a, /", "a=0, /", "*a", "**a", "*, a", "*, a=0"]
    for first, second in product(kinds, kinds):
        source = f"def f({first}, {second.replace('a', 'b')}): ..."
        scope: dict[str, Any] = {}
        with suppress(SyntaxError):
            exec(source, scope)
            yield scope["f"]


def test_task_takes_what_python_would_pass_to_its_function() -> None:
    calls = [
        (args, dict.fromkeys(names, 0))
        for args in ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4))
        for count in range(4)
        for names in combinations("abc", count)
    ]
    tried = 0
    for function in every_signature():
        task = TaskDefinition(function, "f", TaskOptions())
        for args, kwargs in calls:
            try:
                function(*args, **kwargs)
                takes = True
            except TypeError:
                takes = False
            assert task.fits(args, kwargs) is takes, (task.call_signature, args, kwargs)
            assert (task.misfit(args, kwargs) == "") is takes
            tried += 1
    assert tried > 1_000


class Shop:
    """Owns functions that no worker could call on it."""

    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...

    @classmethod
    def of_class(cls) -> None: ...


@pytest.mark.parametrize("decorate", [delayed_task, delayed_task(name="x", queue="q")])
@pytest.mark.parametrize("function", [Shop.method, Shop.static, Shop().method])
def test_function_of_a_class_is_refused(decorate: Any, function: Any) -> None:
    with pytest.raises(InvalidTask, match=r"in a class|needs a function"):
        decorate(function)


@pytest.mark.parametrize("wrapper", [staticmethod, classmethod])
def test_function_within_a_class_body_is_refused(wrapper: Any) -> None:
    with pytest.raises(
        InvalidTask, match=r"in a class, but a task has to be a function of a module"
    ):

        class Local:
            @wrapper
            @delayed_task
            def clean(self) -> None: ...


@pytest.fixture
def delayq_offline(settings: Any) -> None:
    """Settings for what reaches no server."""
    settings.DELAYQ = {"CONNECTION": "unix:///dev/null/nobody", "QUEUES": {}}


@pytest.mark.usefixtures("delayq_offline")
def test_long_call_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidArguments) as refused:
        samples.add.prepare(0, "x" * 10_000, "y", "z")

    assert len(str(refused.value)) < 500


def no_parameters() -> None: ...
def positional(a: int, b: int = 0) -> None: ...
def positional_only(a: int, b: int, /) -> None: ...
def keyword_only(a: int, *, b: int) -> None: ...
def keyword_default(a: int, *, b: int = 0) -> None: ...
def variadic(a: int, *rest: int, **more: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "fitting"),
    [
        (no_parameters, {0}),
        (positional, {1, 2}),
        (positional_only, {2}),
        (keyword_only, set()),
        (keyword_default, {1}),
        (variadic, {1, 2, 3, 4}),
    ],
)
def test_calls_with_positions_alone_are_told_without_binding(
    function: Any, fitting: set[int]
) -> None:
    """The short cut and Python's own binding agree."""
    least, most = positional_range(inspect.signature(function))
    for count in range(5):
        try:
            inspect.signature(function).bind(*range(count))
        except TypeError:
            assert count not in fitting
        else:
            assert count in fitting
        assert (least <= count <= most) == (count in fitting)


# Handlers of foreign payloads.


def test_handler_is_a_task_of_its_queue() -> None:
    @queue_handler("dest_queue1", max_attempts=2)
    def handle(value: Any) -> str:
        return str(value)

    assert get_handler("dest_queue1") is handle
    assert get_task(handle.name) is handle
    assert (handle.options.queue, handle.options.max_attempts) == ("dest_queue1", 2)
    assert handle(5) == "5"
    assert get_handler("another") is None


@pytest.mark.parametrize(
    "function", [no_parameters, positional_only, keyword_only], ids=lambda f: f.__name__
)
def test_handler_takes_one_argument(function: Any) -> None:
    with pytest.raises(InvalidTask, match="takes one argument, the value"):
        queue_handler("dest_queue1")(function)

    assert get_handler("dest_queue1") is None


@pytest.mark.parametrize(
    "function", [positional, keyword_default, variadic], ids=lambda f: f.__name__
)
def test_handler_may_have_more_parameters_with_defaults(function: Any) -> None:
    assert queue_handler("dest_queue1")(function) is get_handler("dest_queue1")


def test_bad_option_of_a_handler_is_named() -> None:
    with pytest.raises(InvalidTask, match="max_attempts=0"):
        queue_handler("q", max_attempts=0)


def test_queue_has_one_handler() -> None:
    queue_handler("dest_queue1")(positional)

    with pytest.raises(
        InvalidTask, match=r"has two handlers: .*positional .* and .*variadic"
    ):
        queue_handler("dest_queue1")(variadic)

    assert get_handler("dest_queue1").function is positional  # type: ignore[union-attr]


# What a new user writes by habit, or forgets.


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("delay", r"'delay': \.schedule\(0, …\) runs it in a worker at once"),
        ("apply_async", r"'apply_async': \.schedule\(delay, …\)"),
        ("enqueue", r"'enqueue': \.schedule\(0, …\)"),
        ("delay_on_commit", r"\.schedule\(0, …\) sends it after the commit"),
        ("s", r"'s': \.prepare\(delay, …\)"),
        ("skedule", r"has no attribute 'skedule'"),
    ],
)
def test_call_of_another_library_is_no_attribute_and_says_what_to_write(
    name: str, said: str
) -> None:
    with pytest.raises(AttributeError, match=said):
        getattr(samples.add, name)
    assert not hasattr(samples.add, name)


def test_a_task_can_still_be_copied_and_pickled() -> None:
    assert copy.copy(samples.add) is samples.add
    assert pickle.loads(pickle.dumps(samples.add)) is samples.add


@pytest.fixture
def close(queue: str) -> Any:
    """A task that may be called without arguments."""

    @delayed_task(queue=queue)
    def close(order_id: int = 0, note: str = "") -> None: ...

    return close


@pytest.mark.parametrize("delay", [4711, 7, 1_790_000_000.5])
def test_number_that_stands_alone_and_seems_to_be_the_argument_is_warned_of(
    close: Any, delay: float
) -> None:
    with pytest.warns(UserWarning, match="the delay is missing before it") as caught:
        job = close.prepare(delay)
    assert [item.filename for item in caught] == [__file__]
    assert job.args == []
    for call in (close.schedule, functools.partial(schedule, close)):
        with pytest.warns(UserWarning, match="meant as 'order_id'") as caught:
            call(delay).cancel()
        assert [item.filename for item in caught] == [__file__]


def test_key_without_a_delay_is_warned_of_whatever_it_is_called(queue: str) -> None:
    @delayed_task(queue=queue)
    def clean(days: int = 30) -> None: ...

    clean.prepare(3_600)
    with pytest.warns(UserWarning, match="meant as 'days'"):
        clean.prepare(7_000_000_000)


def test_delay_that_is_meant_is_not_warned_of(close: Any) -> None:
    close.prepare(timedelta(seconds=4711))
    close.prepare(4711, 5)
    close.prepare(4711, note="x")
    close.prepare(4711, order_id=5)


async def test_delay_that_is_missing_or_named_is_told_with_its_place(
    queue: str,
) -> None:
    @delayed_task(queue=queue)
    def pay(order_id: int) -> None: ...

    with pytest.raises(InvalidDelay, match="takes it first, without a name"):
        pay.prepare(delay=60, order_id=1)  # type: ignore[call-overload]
    with pytest.raises(InvalidDelay, match="takes it first, without a name"):
        pay.schedule(delay=60, order_id=1)  # type: ignore[call-overload]
    with pytest.raises(InvalidDelay, match="takes it first, without a name"):
        schedule(pay)  # type: ignore[call-overload]
    with pytest.raises(InvalidDelay, match="takes it first, without a name"):
        await pay.aschedule(delay=60, order_id=1)  # type: ignore[call-overload]


def test_argument_that_is_no_json_is_told_with_its_task_and_parameter(
    queue: str,
) -> None:
    @delayed_task(name="shop.pay", queue=queue)
    def pay(order_id: int, *more: int, **others: int) -> None: ...

    for args, kwargs, said in (
        (({1},), {}, "order_id"),
        ((1, 2, {3}), {}, "more[1]"),
        ((1,), {"x": {2}}, "x"),
    ):
        words = f"task 'shop.pay': {said} is of type set, which is not JSON"
        with pytest.raises(InvalidArguments, match=re.escape(words)):
            pay.prepare(0, *args, **kwargs)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match=r"task 'shop\.pay': order_id is of"):
        periodic(every(60), args=({1},))(pay)


def test_missing_argument_is_told_with_the_delay_that_took_its_place(
    queue: str,
) -> None:
    @delayed_task(queue=queue)
    def pay(order_id: int, amount: int) -> None: ...

    with pytest.raises(
        InvalidArguments, match="the delay, 4711 here: was the delay forgotten"
    ):
        pay.prepare(4711, 20)
    with pytest.raises(InvalidArguments, match="was the delay forgotten"):
        pay.prepare(4711, amount=20)
    with pytest.raises(InvalidArguments) as caught:
        pay.prepare(0, amount=20, order=1)
    assert str(caught.value).endswith(
        "(amount=<int>, order=<int>): missing argument 'order_id', unexpected 'order';"
        " did you mean 'order_id'?"
    )

    @delayed_task(queue=queue)
    def remind(order_id: int, how: str = "mail") -> None: ...

    with pytest.raises(InvalidArguments, match=r"'hwo'; did you mean 'how'\?"):
        remind.prepare(0, 1, hwo="sms")
    with pytest.raises(InvalidDelay, match=r"without a name: leave out 'delay='$"):
        pay.schedule(delay=5, order_id=1)  # type: ignore[call-arg]
    with pytest.raises(
        InvalidDelay, match="takes it first, without a name, before the arguments of"
    ):
        pay.prepare("4711", 5)
    with pytest.raises(InvalidDelay, match=r"of type str$"):
        Snooze("soon")  # type: ignore[arg-type]

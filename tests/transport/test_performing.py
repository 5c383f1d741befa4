import asyncio
import inspect
import pickle
import pydoc
import traceback
from typing import Any, Generic, TypeVar, get_type_hints

import pytest

import django_delayq
from django_delayq import BlockingQueue, DelayedQueue, FoundJobs, Job, Schedule
from django_delayq.transport.performed import aperformed, performed
from django_delayq.transport.steps import Steps

R = TypeVar("R")


@performed
def double(number: int, /, *more: int, times: "int | None" = 2) -> Steps[list[int]]:
    """Return each number twice."""
    if not number:
        raise ValueError("nothing to double")
    return [each * (times or 0) for each in (number, *more)]
    yield


adouble = aperformed(double)


class Counter(Generic[R]):
    def __init__(self) -> None:
        self.count = 0

    @performed
    def put(self, number: int = 1) -> Steps[None]:
        """Add a number."""
        return self._adding(number)

    aput = aperformed(put)

    @performed
    def copy(self) -> Steps["Counter[R]"]:
        """Return another."""
        return Counter()
        yield

    acopy = aperformed(copy)

    def _adding(self, number: int) -> Steps[None]:
        self.count += number
        return
        yield


def written(number: int, /, *more: int, times: "int | None" = 2) -> list[int]:
    """Return each number twice."""
    raise NotImplementedError


async def awritten(number: int, /, *more: int, times: "int | None" = 2) -> list[int]:
    """`double` on the event loop."""
    raise NotImplementedError


class Written:
    def put(self, number: int = 1) -> None: ...

    async def aput(self, number: int = 1) -> None: ...


def test_both_versions_perform_the_steps():
    assert double(1, 2) == [2, 4]
    assert asyncio.run(adouble(1, 2, times=3)) == [3, 6]


def test_both_versions_are_bound_as_methods():
    counter: Counter[int] = Counter()

    counter.put(2)
    asyncio.run(counter.aput(number=3))

    assert counter.count == 5


@pytest.mark.parametrize(
    ("made", "by_hand"),
    [
        (double, written),
        (adouble, awritten),
        (Counter.put, Written.put),
        (Counter.aput, Written.aput),
    ],
)
def test_a_made_function_looks_as_if_written(made: Any, by_hand: Any):
    assert inspect.signature(made) == inspect.signature(by_hand)
    assert inspect.signature(made, eval_str=True) == inspect.signature(
        by_hand, eval_str=True
    )
    assert get_type_hints(made) == get_type_hints(by_hand)
    assert inspect.iscoroutinefunction(made) == inspect.iscoroutinefunction(by_hand)
    assert not inspect.isgeneratorfunction(made)
    assert made.__module__ == __name__


def test_names_and_docstrings():
    assert (adouble.__name__, adouble.__qualname__) == ("adouble", "adouble")
    assert Counter.aput.__name__ == "aput"
    assert Counter.aput.__qualname__ == "Counter.aput"
    assert double.__doc__ == written.__doc__
    assert adouble.__doc__ == awritten.__doc__


def test_help_shows_a_made_function_like_a_written_one():
    shown = pydoc.plain(pydoc.render_doc(adouble))

    assert shown == pydoc.plain(pydoc.render_doc(awritten)).replace(
        "awritten", "adouble"
    )


def test_help_shows_a_forward_reference():
    assert "-> 'Counter[R]'" in str(inspect.signature(Counter.acopy))
    assert get_type_hints(Counter.acopy)["return"] == Counter[R]


@pytest.mark.parametrize("made", [double, adouble, Counter.put, Counter.aput])
def test_a_made_function_is_pickled_by_its_name(made: Any):
    assert pickle.loads(pickle.dumps(made)) is made


@pytest.mark.parametrize("call", [lambda: double(0), lambda: asyncio.run(adouble(0))])
def test_a_traceback_ends_in_the_function(call: Any):
    with pytest.raises(ValueError, match="nothing to double") as caught:
        call()

    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.name) == (__file__, "double")


@pytest.mark.parametrize("call", [lambda: double(), lambda: asyncio.run(adouble())])
def test_a_wrong_call_names_the_function(call: Any):
    with pytest.raises(TypeError, match=r"^double\(\) missing 1 required"):
        call()


PUBLIC = [
    *(getattr(django_delayq, name) for name in django_delayq.__all__),
    *(
        member
        for each in (BlockingQueue, DelayedQueue, FoundJobs, Job, Schedule)
        for member in vars(each).values()
    ),
]


@pytest.mark.parametrize(
    "made",
    [each for each in PUBLIC if inspect.iscoroutinefunction(each)],
    ids=lambda each: each.__qualname__,
)
def test_a_public_async_function_stands_under_its_name(made: Any):
    """It is made as ``aname = aperformed(name)``, where each name could be another one."""
    assert pydoc.locate(f"{made.__module__}.{made.__qualname__}") is made

"""How exchanges go on, as a table: no server is there."""

from collections.abc import Sequence
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from django_delayq.transport.call import Call, InFull
from django_delayq.transport.errors import Demoted, mark_unsent, may_have_run
from django_delayq.transport.exchange import Address, Exchange, Where
from django_delayq.transport.plain_command import Command
from django_delayq.transport.recovery import (
    FREE_REDIRECTIONS,
    Again,
    Done,
    Outcome,
    Raise,
    Tries,
    recover,
)
from tests.transport.samples import script

#: The first of these follows a silence.
PAUSES_S = (0.001, 0.001, 0.001)
SCRIPT = script("return 1")
CALL: Call[Any] = Call(SCRIPT, ("q",), ("first",), repeat={0: "again"})
NEVER_TWICE = replace(CALL, repeat=None)
NIL_IS_ANOTHER = replace(CALL, full=lambda: replace(CALL, args=("full",)))
READ: Call[Any] = replace(CALL, read=lambda reply: ("read", reply))
PING: Command[Any] = Command(("PING",))
FENCE: Command[Any] = Command(("SET", "fence", "x"))
WAIT: Command[Any] = Command(("WAIT", 1, 5))

HERE, THERE = Address("here", 1), Address("there", 2)
MOVED, ASK = MovedError("7 there:2"), AskError("7 there:2")
FRESH, PATIENT = Tries(0.0), Tries(0.0, patience_s=5.0)


def unsent(error: Exception) -> Exception:
    mark_unsent(error)
    return error


def lost() -> Exception:
    return redis.ConnectionError("lost")


def silent() -> Exception:
    return redis.TimeoutError("silent")


def refused() -> Exception:
    return unsent(redis.ConnectionError("refused"))


def readonly() -> Exception:
    return ReadOnlyError("You can't write against a read only replica.")


def step(
    exchange: Exchange,
    *replies: Any,
    tries: Tries = FRESH,
    asked: Address | None = None,
    now_ms: float = 0.0,
    nodes: int = 1,
) -> Again | Done | Raise:
    return recover(
        exchange, Outcome(list(replies), now_ms, [asked] * len(replies), nodes), tries
    )


def args_of(told: Again | Done | Raise) -> list[Any]:
    assert isinstance(told, Again)
    return [call.args[0] for call in told.exchange.calls]


def once(call: Any) -> Exchange:
    return Exchange((call,), repeats=False)


class TestOneCall:
    def test_a_reply_is_read(self) -> None:
        assert step(Exchange((READ,)), 3) == Done([("read", 3)])
        assert step(Exchange((READ,)), None) == Done([("read", None)])

    @pytest.mark.parametrize(
        ("exchange", "error", "args"),
        [
            (Exchange((CALL,)), lost, "again"),
            (Exchange((CALL,)), silent, "again"),
            (Exchange((CALL,)), refused, "first"),
            (Exchange((CALL,)), lambda: BusyLoadingError("LOADING"), "first"),
            # A replica has run nothing, so also what must not run twice is sent again.
            (Exchange((CALL,)), readonly, "first"),
            (Exchange((NEVER_TWICE,)), readonly, "first"),
            (once(CALL), readonly, "first"),
            (once(CALL), lambda: unsent(Demoted("a replica now")), "first"),
            (Exchange((PING,)), lost, "PING"),
        ],
    )
    def test_it_is_made_again_after_a_pause(
        self, exchange: Exchange, error: Any, args: str
    ) -> None:
        told = step(exchange, error())

        assert args_of(told) == [args]
        assert isinstance(told, Again)
        assert (told.after_s, told.where) == (PAUSES_S[0], [None])

    @pytest.mark.parametrize(
        ("exchange", "error"),
        [
            (Exchange((NEVER_TWICE,)), lost()),
            (Exchange((NEVER_TWICE,)), refused()),
            (once(CALL), lost()),
            (once(CALL), refused()),
            (Exchange((CALL,)), AuthenticationError("WRONGPASS")),
            (Exchange((CALL,)), OutOfMemoryError("OOM")),
            (Exchange((CALL,)), ResponseError("MINE")),
            # This server is no node of a cluster.
            (Exchange((CALL,)), MOVED),
            (Exchange((CALL,)), TryAgainError("TRYAGAIN")),
        ],
    )
    def test_it_ends_with_the_error(self, exchange: Exchange, error: Exception) -> None:
        assert step(exchange, error) == Raise(error)

    def test_a_script_that_the_server_does_not_know_is_brought_once(self) -> None:
        error = NoScriptError("No matching script.")
        told = step(once(NEVER_TWICE), error)

        assert isinstance(told, Again)
        assert told.exchange.calls[0].command()[:2] == ("EVAL", SCRIPT.source)
        assert (told.after_s, told.where) == (0.0, [None])
        assert step(told.exchange, error, tries=told.tries) == Raise(error)

    def test_nil_is_the_answer_of_another_script(self) -> None:
        told = step(Exchange((NIL_IS_ANOTHER,)), None)

        assert args_of(told) == ["full"]
        assert isinstance(told, Again)
        assert step(told.exchange, None, tries=told.tries) == Done([None])

    def test_a_lost_call_whose_script_was_brought_is_brought_again(self) -> None:
        told = step(Exchange((InFull.of(CALL),)), lost())

        assert args_of(told) == ["again"]
        assert isinstance(told, Again)
        assert told.exchange.calls[0].command()[0] == "EVAL"

    @pytest.mark.parametrize(
        ("errors", "pauses"),
        [
            ([lost] * 9, 3),
            ([readonly] * 9, 3),
            ([silent] * 9, 1),
            # What the first error was counts.
            ([lost, *[silent] * 9], 3),
            ([silent, *[lost] * 9], 1),
        ],
    )
    def test_it_is_given_up_in_the_end(self, errors: Any, pauses: int) -> None:
        exchange, tries, again = Exchange((CALL,)), FRESH, 0
        for make in errors:
            error = make()
            told = step(exchange, error, tries=tries)
            if isinstance(told, Raise):
                break
            assert isinstance(told, Again)
            exchange, tries, again = told.exchange, told.tries, again + 1

        assert again == pauses
        assert told == Raise(error)

    def test_an_earlier_try_may_have_run_whatever_the_last_error_says(self) -> None:
        first = step(Exchange((CALL,)), lost())
        assert isinstance(first, Again)
        for error, has in (
            (ResponseError("NOREPLICAS"), True),
            (AuthenticationError("WRONGPASS"), True),
            # A full server refuses to store, so it did not find the job stored.
            (OutOfMemoryError("OOM"), False),
        ):
            told = step(first.exchange, error, tries=first.tries)
            assert told == Raise(error)
            assert may_have_run(error) is has

    def test_it_stays_a_repeat_after_errors_by_which_nothing_ran(self) -> None:
        told = step(Exchange((NIL_IS_ANOTHER,)), lost())
        for reply in (refused(), NoScriptError("No matching script."), readonly()):
            assert isinstance(told, Again)
            told = step(told.exchange, reply, tries=told.tries)

            assert args_of(told) == ["again"]

    def test_it_is_not_repeated_when_the_server_may_have_forgotten_it(self) -> None:
        exchange = Exchange((replace(CALL, window_ms=1_000.0),))
        error = lost()

        assert isinstance(step(exchange, lost(), now_ms=900.0), Again)
        assert isinstance(step(exchange, refused(), now_ms=9_000.0), Again)
        assert step(exchange, error, now_ms=1_000.0) == Raise(error)
        assert "a repeat for 1 s only" in error.__notes__[0]


class TestNodes:
    """What the nodes of a cluster say."""

    @pytest.mark.parametrize(
        ("error", "where"),
        [
            (MOVED, Where(THERE)),
            (ASK, Where(THERE, is_asking=True)),
            # Without a host it is the node that was asked.
            (MovedError("7 :3"), Where(Address("here", 3))),
        ],
    )
    def test_the_one_that_is_named_is_asked_at_once(
        self, error: Exception, where: Where
    ) -> None:
        told = step(once(NEVER_TWICE), error, tries=PATIENT, asked=HERE)

        assert args_of(told) == ["first"]
        assert isinstance(told, Again)
        assert (told.where, told.after_s) == ([where], 0.0)

    def test_a_slot_that_nobody_serves_is_waited_for(self) -> None:
        error = ClusterDownError("CLUSTERDOWN")
        exchange, tries, pauses = Exchange((CALL,)), PATIENT, list[float]()
        while isinstance(told := step(exchange, error, tries=tries), Again):
            exchange, tries = told.exchange, told.tries
            pauses.append(told.after_s)
            assert told.where == [None]

        assert pauses[:6] == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.2])
        assert max(pauses) == 0.2
        assert 4.7 < sum(pauses) <= 5.0
        assert told == Raise(error)

    def test_nodes_that_contradict_each_other_are_asked_with_pauses_in_the_end(
        self,
    ) -> None:
        exchange, tries, pauses = Exchange((CALL,)), PATIENT, list[float]()
        while isinstance(told := step(exchange, MOVED, tries=tries, asked=HERE), Again):
            exchange, tries = told.exchange, told.tries
            pauses.append(told.after_s)

        assert pauses.count(0.0) == FREE_REDIRECTIONS
        assert told == Raise(MOVED)

    def test_no_patience_follows_redirections_only(self) -> None:
        hasty = Tries(0.0, patience_s=0.0)
        error = TryAgainError("TRYAGAIN")

        assert isinstance(step(once(CALL), MOVED, tries=hasty, asked=HERE), Again)
        assert step(once(CALL), error, tries=hasty, asked=HERE) == Raise(error)

    def test_that_a_slot_is_being_moved_is_what_is_said_in_the_end(self) -> None:
        """A server before 7.0 says so between redirections only."""
        error = TryAgainError("TRYAGAIN")
        told = step(Exchange((CALL,)), error, tries=PATIENT, asked=HERE)
        while isinstance(told, Again):
            told = step(told.exchange, ASK, tries=told.tries, asked=HERE)

        assert told == Raise(error)

    def test_what_any_node_can_run_goes_to_another_one(self) -> None:
        tries, asked = PATIENT, 0
        while True:
            told = step(once(PING), lost(), tries=tries, asked=HERE, nodes=3)
            asked += 1
            if not isinstance(told, Again):
                break
            tries = told.tries
            assert told.after_s == 0.0

        assert asked == 3
        # All replicas of another node have what a connection to that wrote: nothing.
        for call in (WAIT, CALL):
            error = lost()
            assert step(once(call), error, tries=PATIENT, asked=HERE, nodes=3) == Raise(
                error
            )


class TestCallsOfTheirOwn:
    """A pipeline."""

    def test_only_what_failed_is_made_again_and_all_come_in_their_order(self) -> None:
        exchange = Exchange([READ] * 5, is_one=False)
        mine = ResponseError("MINE")
        told = step(
            exchange, "a", lost(), mine, NoScriptError("No matching script."), lost()
        )
        assert isinstance(told, Again)
        assert [call.command()[0] for call in told.exchange.calls] == [
            "EVALSHA",
            "EVAL",
            "EVALSHA",
        ]
        assert args_of(told) == ["again", "first", "again"]
        assert told.after_s == PAUSES_S[0]
        told = step(told.exchange, "b", "d", refused(), tries=told.tries)
        assert args_of(told) == ["again"]
        assert isinstance(told, Again)
        told = step(told.exchange, "e", tries=told.tries)

        read = [("read", reply) for reply in "abde"]
        assert told == Done([*read[:2], mine, *read[2:]])

    def test_errors_take_the_places_of_results(self) -> None:
        first, last = lost(), ResponseError("MINE")

        told = step(Exchange([CALL] * 2, is_one=False, repeats=False), first, last)

        assert told == Done([first, last])

    def test_each_follows_its_own_slot(self) -> None:
        exchange = Exchange([CALL] * 3, is_one=False)
        told = step(exchange, MOVED, 1, ASK, tries=PATIENT, asked=HERE)

        assert isinstance(told, Again)
        assert told.where == [Where(THERE), Where(THERE, is_asking=True)]


class TestCallsBehindAnother:
    """A call, its fence, and the command that waits."""

    EXCHANGE = Exchange((NIL_IS_ANOTHER, FENCE, WAIT))

    def test_all_results_come_and_a_refusal_to_wait_in_its_place(self) -> None:
        error = ResponseError("unknown command 'WAITAOF'")

        assert step(self.EXCHANGE, 1, b"OK", 2) == Done([1, b"OK", 2])
        assert step(self.EXCHANGE, 1, b"OK", error) == Done([1, b"OK", error])

    @pytest.mark.parametrize(
        ("replies", "args"),
        [
            ([lost()] * 3, "again"),
            ([refused()] * 3, "first"),
            ([readonly()] * 3, "first"),
            ([unsent(Demoted("a replica now"))] * 3, "first"),
            ([NoScriptError("No matching script."), b"OK", 1], "first"),
            ([None, b"OK", 1], "full"),
            # The call has run, and nobody knows whether that is durable.
            ([1, lost(), lost()], "again"),
            ([1, b"OK", silent()], "again"),
            ([1, readonly(), 0], "again"),
            ([1, b"OK", unsent(Demoted("a replica now"))], "again"),
            ([1, b"OK", ResponseError("UNBLOCKED force unblock")], "again"),
            (
                [1, b"OK", ResponseError("WAIT cannot be used with replica instances")],
                "again",
            ),
        ],
    )
    def test_all_go_again_together(self, replies: Sequence[Any], args: str) -> None:
        told = step(self.EXCHANGE, *replies)

        assert args_of(told) == [args, "SET", "WAIT"]

    def test_a_repeat_is_read_as_the_script_that_handles_every_case_is(self) -> None:
        full = replace(CALL, args=("every case",), read=lambda reply: ("full", reply))
        call = replace(CALL, full=lambda: full)
        told = step(Exchange((call, FENCE, WAIT)), *[lost()] * 3)
        assert isinstance(told, Again)

        told = step(told.exchange, 7, b"OK", 1, tries=told.tries)

        assert told == Done([("full", 7), b"OK", 1])

    def test_they_follow_a_slot_together(self) -> None:
        told = step(self.EXCHANGE, MOVED, MOVED, 1, tries=PATIENT, asked=HERE)

        assert args_of(told) == ["first", "SET", "WAIT"]
        assert isinstance(told, Again)
        assert told.where == [Where(THERE)]

    def test_what_was_refused_is_not_asked_again(self) -> None:
        error = OutOfMemoryError("OOM")

        assert step(self.EXCHANGE, error, error, 1) == Raise(error)

    def test_a_call_that_has_run_may_have_run_whatever_is_said_of_the_wait(
        self,
    ) -> None:
        told = step(Exchange((NEVER_TWICE, FENCE, WAIT)), 1, readonly(), 0)

        assert isinstance(told, Raise)
        assert "no reply says how durable it is" in str(told.error)
        assert may_have_run(told.error)

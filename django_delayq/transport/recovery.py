"""What follows from the replies to an `Exchange`, and so which calls are made again.

The caller that sends an `Exchange` reads its replies. If one of them is an error, or if only another script can answer, `recover`
decides without any I/O what is sent next, to which node of a cluster, and after what pause; or how the exchange ends. It
alone knows which errors mean that a call did not run, and which calls may be made again.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_delayq.redaction import brief
from django_delayq.transport.call import Call, InFull
from django_delayq.transport.errors import (
    LOST,
    MAY_HAVE_RUN,
    REDIRECTIONS,
    astray,
    is_demoted,
    may_have_run,
)
from django_delayq.transport.exchange import (
    WAITS,
    Address,
    Exchange,
    Made,
    Where,
    key_of,
)

#: Waits before a call is made again, s. A lost connection shows at once; a silent server has already cost a time-out,
#: so only the first of these follows it. None is longer, because Sentinels may name another primary meanwhile.
PAUSES_S = (0.05, 0.2, 0.25, 0.25)
#: The first and the longest pause while a cluster's slot is moved, or served by no node, s. They double.
SLOT_PAUSES_S = (0.01, 0.2)
#: Redirections that are followed without a pause. More come from nodes that do not agree yet about the slot.
FREE_REDIRECTIONS = 4


@brief
class Outcome(msgspec.Struct, frozen=True):
    """The result of sending an exchange."""

    #: The reply to each call, or the error in its place.
    replies: list[Any]
    now_ms: float
    #: The node of a cluster that was asked for each; None: none could be found.
    asked: Sequence[Address | None] = ()
    #: How many nodes can run a command without a key.
    nodes: int = 1


@brief
class Tries(msgspec.Struct, frozen=True):
    """Facts that the tries of an exchange so far have shown."""

    #: When the first began.
    began_ms: float
    #: How long a cluster's slot is waited for, s; None: of a server that is no cluster.
    patience_s: float | None = None
    #: Which calls of the first try are left.
    places: Sequence[int] = ()
    #: The results of the others, by place.
    told: Mapping[int, Any] = {}
    #: Which may have run.
    ran: frozenset[int] = frozenset()
    #: How often calls were made again because of a lost reply, and whether the first was lost in silence.
    pauses: int = 0
    is_silent: bool = False
    #: Since then: how often another node was named, and how long a slot was waited for, s.
    redirections: int = 0
    waited_s: float = 0.0
    #: That the slot is being moved, which a server before 7.0 says between redirections only.
    moving: TryAgainError | None = None


@brief
class Again(msgspec.Struct, frozen=True):
    """Send this next."""

    exchange: Exchange
    #: For each call the node that another one has named; None: the node that holds its key.
    where: Sequence[Where | None]
    after_s: float
    tries: Tries


@brief
class Done(msgspec.Struct, frozen=True):
    """The exchange has ended with these results."""

    results: list[Any]


class Raise(msgspec.Struct, frozen=True):
    """The exchange has ended with an error."""

    error: Exception


class _Turn(NamedTuple):
    """How a call is made again."""

    call: Made
    where: Where | None = None
    after_s: float = 0.0
    #: Which number of the tries goes up.
    counted: str = ""


def recover(exchange: Exchange, outcome: Outcome, tries: Tries) -> Again | Done | Raise:
    """Return how an exchange continues."""
    replies, calls = outcome.replies, exchange.calls
    if exchange.is_one:
        replies, calls = [_lead(replies)], calls[:1]
    for reply in replies:
        if isinstance(reply, TryAgainError):
            tries = replace(tries, moving=reply)
    told, ran = dict(tries.told), set(tries.ran)
    turns: dict[int, _Turn] = {}
    for place, call, reply, asked in zip(
        tries.places or range(len(calls)),
        calls,
        replies,
        outcome.asked or repeat(None),
        strict=False,
    ):
        if isinstance(reply, LOST) and may_have_run(reply):
            ran.add(place)
        turn = _turn(exchange, outcome, tries, call, reply, asked, place in ran)
        if turn is not None:
            turns[place] = turn
        elif not isinstance(reply, Exception):
            told[place] = call.read(reply)
        else:
            told[place] = _last_word(reply, tries, place)
    behind = exchange.calls[len(calls) :]
    if turns:
        return Again(
            replace(exchange, calls=(*(turn.call for turn in turns.values()), *behind)),
            [turn.where for turn in turns.values()],
            max(turn.after_s for turn in turns.values()),
            replace(
                _counted(tries, turns.values(), replies),
                places=tuple(turns),
                told=told,
                ran=frozenset(ran),
            ),
        )
    results = [told[place] for place in range(len(told))]
    if exchange.is_one and isinstance(results[0], Exception):
        return Raise(results[0])
    for call, reply in zip(behind, outcome.replies[len(calls) :], strict=True):
        results.append(reply if isinstance(reply, Exception) else call.read(reply))
    return Done(results)


def _lead(replies: Sequence[Any]) -> Any:
    """Return the reply to the first call, or an error if a later part of the exchange is lost."""
    lead, *behind = replies
    if not isinstance(lead, Exception):
        for reply in behind:
            if (error := astray(reply)) is not None:
                return error
    return lead


def _turn(
    exchange: Exchange,
    outcome: Outcome,
    tries: Tries,
    call: Made,
    reply: Any,
    asked: Address | None,
    has_run: bool,
) -> _Turn | None:
    """Return how a call is made again; None: the reply, or the error, is the last word."""
    if reply is None and call.full is not None:
        return _Turn(call.full())
    if isinstance(reply, NoScriptError) and type(call) is Call:
        return _Turn(InFull.of(call))
    if isinstance(reply, REDIRECTIONS):
        return _redirected(tries, call, reply, asked)
    if (
        isinstance(reply, LOST)
        and asked is not None
        and tries.redirections + 1 < outcome.nodes
        and _is_of_any_node(call)
    ):
        return _Turn(call, counted="redirections")
    # A replica has run nothing. Its connection is closed, and the next one may lead to another server.
    has_refused = is_demoted(reply) and not may_have_run(reply)
    if not has_refused and not _is_repeated(exchange, call, reply):
        return None
    if tries.pauses == len(PAUSES_S) or (tries.pauses and tries.is_silent):
        return None
    pause_s = PAUSES_S[tries.pauses]
    passed_ms = outcome.now_ms + 1000 * pause_s - tries.began_ms
    if has_run and passed_ms > call.window_ms:
        reply.add_note(
            f"django-delayq: not repeated: the server recognises a repeat for {call.window_ms / 1000:g} s"
            f" only, and {passed_ms / 1000:.1f} s have passed"
        )
        return None
    return _Turn(call.again() if has_run else call, None, pause_s, "pauses")


def _is_repeated(exchange: Exchange, call: Made, reply: Any) -> bool:
    """Return whether a lost reply, and nothing else, is a reason to make a call again."""
    return (
        isinstance(reply, LOST)
        and not isinstance(reply, AuthenticationError | AuthorizationError)
        and exchange.repeats
        and call.repeat is not None
    )


def _redirected(
    tries: Tries,
    call: Made,
    error: Exception,
    asked: Address | None,
) -> _Turn | None:
    """Return how a call is made again that a node of a cluster did not run."""
    if tries.patience_s is None:
        return None
    where = None
    if isinstance(error, AskError):
        if asked is not None:
            # Without a host it is that of the node that said so.
            address = Address(error.host or asked.host, error.port)
            where = Where(address, not isinstance(error, MovedError))
        if tries.redirections < FREE_REDIRECTIONS:
            return _Turn(call, where, counted="redirections")
    first_s, longest_s = SLOT_PAUSES_S
    pause_s = min(tries.waited_s + first_s, longest_s)
    if tries.waited_s + pause_s > tries.patience_s:
        return None
    return _Turn(call, where, pause_s)


def _counted(tries: Tries, turns: Collection[_Turn], replies: Sequence[Any]) -> Tries:
    counted = {turn.counted for turn in turns}
    if "pauses" in counted:
        is_silent = tries.is_silent
        if tries.pauses == 0:
            is_silent = any(isinstance(reply, RedisTimeoutError) for reply in replies)
        return Tries(
            tries.began_ms,
            tries.patience_s,
            pauses=tries.pauses + 1,
            is_silent=is_silent,
        )
    return replace(
        tries,
        redirections=tries.redirections + ("redirections" in counted),
        waited_s=tries.waited_s + max(turn.after_s for turn in turns),
    )


def _last_word(error: Exception, tries: Tries, place: int) -> Exception:
    if isinstance(error, REDIRECTIONS):
        error = tries.moving or error
    # A full server refuses to store, so it did not find the call of an earlier try stored.
    if place in tries.ran and not isinstance(error, OutOfMemoryError):
        setattr(error, MAY_HAVE_RUN, True)
    return error


def _is_of_any_node(call: Made) -> bool:
    """Return whether any node of a cluster can run a call. One that waits does so for what its connection wrote."""
    command = call.command()
    return key_of(command) is None and command[0] not in WAITS

"""Jobs of other projects in our queues, and our jobs under another prefix, found by the keys that signed them."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from shlex import quote
from typing import Any

from redis.client import Redis
from redis.exceptions import NoPermissionError, ResponseError

from django_delayq.core import prefixes, queue_reads
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.states import State
from django_delayq.exceptions import EncodeError
from django_delayq.health.facts import replies_of
from django_delayq.health.problem import Level, ServerProblem, some
from django_delayq.health.rights import user_of
from django_delayq.transport.errors import LOST, is_of_node
from django_delayq.transport.run import run
from django_delayq.wording import gettext, ngettext

#: Jobs of each state that show who has signed the jobs of a queue.
SAMPLE = 10
#: The same for a place in which most jobs may be another project's.
LARGE_SAMPLE = 100
#: The states of jobs that wait or run.
ALIVE = (State.SCHEDULED, State.DUE, State.RUNNING, State.RETRYING, State.HELD)


def find_strangers(
    client: Redis, queues: Sequence[DeliveryKeys], key_ids: Collection[str]
) -> Iterator[ServerProblem]:
    """Report queues in which jobs of another project wait, as far as their keys tell."""
    for keys, found in _signed(client, queues, (State.SCHEDULED, State.DUE), SAMPLE):
        for key_id, count in found.by_key.items():
            if key_id not in key_ids:
                yield ServerProblem(
                    Level.WARNING,
                    ngettext(
                        "At least {number:,} job in queue {queue!r} is signed with key {key!r}, which this project does not have.",
                        "At least {number:,} jobs in queue {queue!r} are signed with key {key!r}, which this project does not have.",
                        count,
                        queue=keys.queue.name,
                        key=key_id,
                    ),
                    gettext(
                        "If another project uses this server with the same queue names, set DELAYQ['PREFIX'] in one of them. A queue with REDISSON gets no prefix, so give it another name. If you changed a secret, add the old one to DELAYQ['KEYS'] if that is set, else to SECRET_KEY_FALLBACKS."
                    ),
                )


def find_left_behind(
    client: Redis,
    queues: Sequence[DeliveryKeys],
    key_ids: Collection[str],
    prefix: str,
) -> Iterator[ServerProblem]:
    """Report jobs of this project that wait under a prefix which its settings do not have any more."""
    noted: dict[str, str] = {}
    try:
        noted = run(client, prefixes.noted_prefixes())
    except NoPermissionError:
        # Without a prefix, there is most likely no other.
        if prefix:
            user = user_of(client)
            yield ServerProblem(
                Level.WARNING,
                f"User {user!r} may not use the key {prefixes.PREFIXES}: nobody notices when DELAYQ['PREFIX'] changes"
                " while jobs wait.",
                f"ACL SETUSER {user} ~{prefixes.PREFIXES}",
            )
    except ResponseError:
        # Another program uses this key for something that is not a hash, so there are no notes to read.
        pass
    except LOST as error:
        # The queues lie on other nodes than the notes.
        if not is_of_node(error):
            raise
    here = {keys.queue.destination for keys in queues}
    ours = (other for other, key_id in noted.items() if key_id in key_ids)
    for other in dict.fromkeys(("", prefix, *ours)):
        places = [
            keys
            for keys in _with_prefix(queues, other)
            if keys.queue.destination not in here
        ]
        left = [
            (keys.queue, found.total - found.of_others(key_ids))
            for keys, found in _signed(client, places, ALIVE, LARGE_SAMPLE)
            if not found.by_key.keys().isdisjoint(key_ids)
        ]
        if left:
            names = [queue.name for queue, total in left]
            count = sum(total for queue, total in left)
            yield ServerProblem(
                Level.ERROR,
                ngettext(
                    "{number:,} job waits in {there} on the server (PREFIX {other!r}). Workers with these settings serve {here} (PREFIX {prefix!r}).",
                    "{number:,} jobs wait in {there} on the server (PREFIX {other!r}). Workers with these settings serve {here} (PREFIX {prefix!r}).",
                    count,
                    there=some([queue.destination for queue, total in left]),
                    other=other,
                    prefix=prefix,
                    here=some(
                        [
                            keys.queue.destination
                            for keys in queues
                            if keys.queue.name in names
                        ]
                    ),
                ),
                gettext(
                    "To move them, run manage.py delayq_import --from-prefix={quoted}. Or change PREFIX, or REDISSON of the queue, back. If the prefix belongs to another project with the same secret, give each project its own KEYS.",
                    quoted=quote(other),
                ),
                is_fatal=True,
            )


def _with_prefix(queues: Iterable[DeliveryKeys], prefix: str) -> Iterator[DeliveryKeys]:
    for keys in queues:
        # Anybody may have noted a prefix that no name can have.
        with suppress(EncodeError):
            yield DeliveryKeys.of(keys.queue.name, prefix)


def _signed(
    client: Redis,
    queues: Sequence[DeliveryKeys],
    states: Sequence[State],
    count: int,
) -> Iterator[tuple[DeliveryKeys, prefixes.Signed]]:
    """Yield who has signed the first jobs of each queue that can be read."""
    calls: list[Any] = [
        queue_reads.page(keys, state, count=count)
        for keys in queues
        for state in states
    ]
    replies = iter(replies_of(client, calls))
    for keys in queues:
        found = list(islice(replies, len(states)))
        # Missing rights are reported with the commands themselves; under another prefix, anything may lie.
        pages = [each for each in found if not isinstance(each, Exception)]
        if len(pages) == len(found):
            yield keys, prefixes.signed(pages)

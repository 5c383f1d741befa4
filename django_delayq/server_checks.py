"""``manage.py check --deploy`` asks the server whether it can serve the queues."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.core import checks
from django.utils import translation
from redis.client import Redis
from redis.exceptions import RedisError, ResponseError

from django_delayq import conf
from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault
from django_delayq.transport.clients import own_clients
from django_delayq.transport.cluster import Cluster
from django_delayq.transport.connections import has_nodes, nodes_of
from django_delayq.transport.open_connections import why_unasked
from django_delayq.wording import one_line

if TYPE_CHECKING:
    from django_delayq.health.problem import ServerProblem

_ACCEPTED = {
    "ssl_cert_reqs=none": "any certificate",
    "ssl_check_hostname=false": "a certificate for any host",
}
_LEVELS = {
    "ERROR": (checks.ERROR, "django_delayq.E010"),
    "WARNING": (checks.WARNING, "django_delayq.W001"),
    "INFO": (checks.INFO, "django_delayq.I001"),
}


def check_server(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Ask the server whether it can serve the queues, and whether it is certain to be the right one."""
    from django_delayq.translations import say_problems

    found: list[checks.CheckMessage] = []
    try:
        found += _check_certificates()
        # Moments are in the project's time zone, the text is English: it can be searched for.
        with translation.override("en"):
            problems = say_problems(_problems_now())
        found += _check_run_ids()
    except (DelayqError, RedisError, OSError) as error:
        fault = describe_fault(error)
        return [
            *found,
            checks.Error(
                f"The server of DELAYQ['CONNECTION'] cannot be checked: {one_line(fault.message).rstrip('.')}.",
                hint=fault.hint,
                id="django_delayq.E009",
            ),
        ]
    found += [
        checks.CheckMessage(
            _LEVELS[problem.level.name][0],
            one_line(problem.message),
            hint=one_line(problem.hint),
            id=_LEVELS[problem.level.name][1],
        )
        for problem in problems
    ]
    return found


def _check_certificates() -> list[checks.CheckMessage]:
    """Report connections over TLS on which another than the server could answer."""
    server = own_clients.find()
    unchecked = (server.server if isinstance(server, Cluster) else server).unchecked()
    return [
        checks.Warning(
            f"{argument} accepts {_ACCEPTED[argument]} from the {peer}: an attacker on the network can read jobs and"
            " the password, and change jobs.",
            hint="Remove the argument, set ssl_ca_certs to the authority, and write the host as in the certificate."
            " With redis-py 5, a client that you make yourself needs ssl_check_hostname=True.",
            id="django_delayq.W009",
        )
        for peer, argument in unchecked.items()
    ]


def _check_run_ids() -> list[checks.CheckMessage]:
    """Report servers that did not give their run ids to the connections of the other questions."""
    places = {
        place
        for node in nodes_of(own_clients.shared())
        for place in node.connection_pool.places()
    }
    return [
        checks.Warning(
            "Workers do not notice if another server takes this address, or if the server restarts empty:"
            f" {one_line(why)}.",
            hint="Grant the account +info, and name an address that leads to one server.",
            id="django_delayq.W010",
        )
        for why in sorted(map(why_unasked, places))
        if why
    ]


def _problems_now() -> "list[ServerProblem]":
    """Return the problems of `server_problems`, and the warnings of the overview."""
    # Other checks need not import them.
    from django_delayq.display.overview import look
    from django_delayq.health.problem import Level

    with own_clients.waiting_once():
        try:
            seen = look(conf.get_settings().queues_of())
        except ResponseError:
            # What the server refuses is among them.
            return server_problems()
        seen = seen.with_problems(server_problems(seen.answering))
    # While a new version is brought out, workers are stopped: that is no reason to stop there.
    passing = {problem for queue in seen.queues for problem in queue.problems}
    return [
        problem._replace(level=Level.WARNING)
        if problem in passing and problem.level is Level.ERROR
        else problem
        for problem in seen.problems
    ]


def server_problems(
    queues: Iterable[conf.QueueSettings] | None = None,
    client: Redis | None = None,
) -> "list[ServerProblem]":
    """Ask the server of the settings about everything that `find_server_problems` knows; by default for all queues.

    Raises:
        InvalidSettings, redis.exceptions.RedisError, OSError: it cannot be asked.
    """
    # Other checks need not import it.
    from django_delayq.health.problems import find_server_problems

    asked = conf.get_settings().queues_of() if queues is None else list(queues)
    if client is None:
        client = own_clients.of_thread()
        client = client if has_nodes(client) else own_clients.shared()
    return find_server_problems(
        client,
        [queue.name for queue in asked],
        key_ids=conf.key_ids(),
        max_jobs=conf.limits_of(asked),
        durable=conf.durables_of(asked),
        shards=conf.shards_of(asked),
        prefix=conf.get_settings().prefix,
        keys_of=conf.keys_of,
    )

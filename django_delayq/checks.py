"""``manage.py check`` reports mistakes in ``DELAYQ`` before the first job meets them.

Only ``--deploy`` asks the server: an ordinary check must not need a running one.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from shlex import quote
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.db import connections
from django.db.models import Model
from django.utils import translation
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache
from redis.exceptions import RedisError, ResponseError

from django_delayq import conf
from django_delayq.calls.connections import has_nodes, nodes_of
from django_delayq.clients.answering import why_unasked
from django_delayq.clients.clients import own_clients
from django_delayq.clients.cluster import Cluster
from django_delayq.codecs.unsupported import UnsupportedCodec
from django_delayq.database_checks import check_databases, check_room
from django_delayq.delivery.sharding import shard_name
from django_delayq.exceptions import DelayqError, QueueNotFound
from django_delayq.faults import describe_fault
from django_delayq.jobs import contexts, outbox, periodic, registry
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs.commit import is_alias
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.options import commit_of
from django_delayq.jobs.preparing import check_key
from django_delayq.redaction import redact_url, show
from django_delayq.setting import Problem
from django_delayq.suggestions import suggestion
from django_delayq.testing import mode
from django_delayq.wording import one_line
from django_delayq.worker.surroundings import find_middleware

if TYPE_CHECKING:
    from django_delayq.health.problem import ServerProblem


def register_all() -> None:
    """Make ``manage.py check`` run these checks."""
    checks.register(check_settings, "delayq")
    checks.register(check_server, "delayq", deploy=True)
    checks.register(check_room, "delayq", checks.Tags.database, deploy=True)


def check_server(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Ask the server whether it can serve the queues, and whether it is certain to be the right one."""
    from django_delayq.translating import say_problems

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


_ACCEPTED = {
    "ssl_cert_reqs=none": "any certificate",
    "ssl_check_hostname=false": "a certificate for any host",
}


def _problems_now() -> "list[ServerProblem]":
    """Return the problems of `server_problems`, and the warnings of the overview."""
    # Other checks need not import them.
    from django_delayq.health.problem import Level
    from django_delayq.showing.overview import look

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
) -> "list[ServerProblem]":
    """Ask the server of the settings about everything that `find_server_problems` knows; by default for all queues.

    Raises:
        InvalidSettings, redis.exceptions.RedisError, OSError: it cannot be asked.
    """
    # Other checks need not import it.
    from django_delayq.health.problems import find_server_problems

    asked = conf.get_settings().queues_of() if queues is None else list(queues)
    client = own_clients.of_thread()
    return find_server_problems(
        client if has_nodes(client) else own_clients.shared(),
        [queue.name for queue in asked],
        key_ids=_key_ids(),
        max_jobs=conf.limits_of(asked),
        durable=conf.durables_of(asked),
        shards=conf.shards_of(asked),
        prefix=conf.get_settings().prefix,
        keys_of=conf.keys_of,
    )


def _key_ids() -> list[str] | None:
    try:
        return conf.get_keyring().ids
    except DelayqError:
        # `check_settings` reports what is wrong with the keys.
        return None


_LEVELS = {
    "ERROR": (checks.ERROR, "django_delayq.E010"),
    "WARNING": (checks.WARNING, "django_delayq.W001"),
    "INFO": (checks.INFO, "django_delayq.I001"),
}


def check_settings(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report misspelt keys and wrong values of ``DELAYQ``, and tasks on queues that do not exist."""
    value = getattr(django_settings, "DELAYQ", {})
    problems = list(conf.find_problems(value))
    if problems:
        return [error_of(problem) for problem in problems]
    found: list[checks.CheckMessage] = []
    settings = conf.read_settings(value)
    is_needed = mode.mode_in_force() == "connection" and not django_settings.DEBUG
    if settings.connection is None and is_needed:
        found.append(
            checks.Error(
                "DELAYQ['CONNECTION'] is not set, and the embedded server serves DEBUG only.",
                hint="Name a django-redis cache, or a URL such as 'redis://localhost:6379/0'.",
                id="django_delayq.E005",
            )
        )
    found += _check_alias(settings.connection)
    try:
        conf.get_keyring()
    except DelayqError as error:
        return [
            *found,
            checks.Error(
                f"Jobs cannot be signed: {error}.",
                hint="Workers run only jobs that your project has signed. Set what the message names;"
                " secrets.token_urlsafe(32) makes a secret.",
                id="django_delayq.E011",
            ),
        ]
    found += _check_paths(settings)
    found += [
        _missing_list(queue)
        for queue in settings.queues.values()
        if queue.is_shared and not queue.keeps_list
    ]
    for task in registry.all_tasks():
        found += [*_check_on_commit(task), *_check_outbox(task, settings)]
        found += _check_annotations(task)
        if task.options.queue in settings.sharded:
            found += _check_shards(task)
        elif task.options.queue not in settings.queues:
            found.append(
                checks.Error(
                    f"Task {task.name!r} goes to queue {task.options.queue!r}, which is not in DELAYQ['QUEUES']."
                    + suggestion(task.options.queue, settings.names),
                    hint=f"Add {task.options.queue!r}: {{}} to DELAYQ['QUEUES'], or correct the task's queue.",
                    id="django_delayq.E007",
                )
            )
        elif registry.get_handler(task.options.queue) is not task:
            found += _check_shared(task, settings.queues[task.options.queue])
        else:
            found += _check_payloads(task, settings.queues[task.options.queue])
    return [*found, *_check_schedules(), *check_databases(settings)]


def _check_shards(task: TaskDefinition) -> Iterator[checks.CheckMessage]:
    queue = task.options.queue
    if registry.get_handler(queue) is task:
        yield checks.Error(
            f"Handler {task.name!r} gets nothing: queue {queue!r} has shards, and other programs offer elements to"
            " one of them.",
            hint=f"Register the handler for a shard, such as {shard_name(queue, 0)!r}, or remove SHARDS.",
            id="django_delayq.E028",
        )
    try:
        check_key(task.name, task.options)
    except DelayqError as error:
        yield checks.Error(
            f"{str(error)[0].upper()}{str(error)[1:]}.",
            hint="Its calls raise InvalidTask.",
            id="django_delayq.E028",
        )


def _check_paths(settings: conf.Settings) -> Sequence[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    looks: list[tuple[Callable[[], object], str, str]] = [
        (
            functools.partial(find_middleware, path),
            "E015",
            "A middleware is a function that takes call and returns a function that takes job, see"
            " docs/howto/middleware.md.",
        )
        for path in settings.middleware
    ]
    looks.append(
        (
            functools.partial(contexts.load, settings.context),
            "E016",
            "A context is a class or an object with capture() and restore(headers), see docs/howto/context.md.",
        )
    )
    for look, number, hint in looks:
        try:
            look()
        except DelayqError as error:
            found.append(
                checks.Error(f"{error}.", hint=hint, id=f"django_delayq.{number}")
            )
    return found


def _check_schedules() -> Sequence[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    for schedule in periodic.all_schedules():
        try:
            periodic.check(schedule)
        except DelayqError as error:
            task = registry.find_task(schedule.task.name)
            is_of_task = task is not None and task.options.queue == schedule.queue
            if isinstance(error, QueueNotFound) and is_of_task:
                # E007 names the task.
                continue
            found.append(
                checks.Error(
                    f"Schedule {schedule.name!r} of task {schedule.task.name!r} cannot run:"
                    f" {str(error).removesuffix('.')}.",
                    hint="Correct its @periodic. A worker that starts with --skip-checks leaves this schedule out.",
                    id="django_delayq.E013",
                )
            )
    found += [
        checks.Error(
            f"Task {schedule.task.name!r} has a schedule named {schedule.name!r}, and so has another task of queue"
            f" {schedule.queue!r}: workers run only one of the two.",
            hint="Give one of them another name=.",
            id="django_delayq.E014",
        )
        for schedule in periodic.doubles()
    ]
    return found


def _missing_list(queue: conf.QueueSettings) -> checks.CheckMessage:
    return checks.Warning(
        f"Queue {queue.name!r} is shared with Redisson, but has no insertion list: Java's size, contains, remove and"
        " readAll do not see jobs from Django.",
        hint=f"Remove DELAYQ['QUEUES'][{queue.name!r}]['INSERTION_LIST'], and run manage.py delayq_frames"
        f" {quote(queue.name)} --list on; or silence this check if Java only offers and takes.",
        id="django_delayq.W003",
    )


def _check_payloads(
    handler: TaskDefinition, queue: conf.QueueSettings
) -> Sequence[checks.CheckMessage]:
    codec = queue.payload_codec
    if not isinstance(codec, UnsupportedCodec):
        return []
    return [
        checks.Warning(
            f"Handler {handler.name!r} gets nothing from queue {queue.name!r}: {codec.name}"
            " is not supported, and every payload goes to quarantine.",
            hint=codec.advice[0].upper() + codec.advice[1:] + ".",
            id="django_delayq.W002",
        )
    ]


def _check_shared(
    task: TaskDefinition, queue: conf.QueueSettings
) -> Sequence[checks.CheckMessage]:
    if not queue.is_shared:
        return []
    try:
        envelopes.encode(
            envelopes.Envelope(task.name),
            "0" * 22,
            queue.name,
            conf.get_keyring(),
            queue.payload_codec,
        )
    except DelayqError as error:
        return [
            checks.Error(
                f"Task {task.name!r} goes to queue {queue.name!r}, whose codec cannot carry a job: {error}.",
                hint=f"Set DELAYQ['QUEUES'][{queue.name!r}]['CODEC'] to 'StringCodec', or use another queue.",
                id="django_delayq.E008",
            )
        ]
    if task.options.encrypt:
        return [
            checks.Error(
                f"Task {task.name!r} goes to queue {queue.name!r} with encrypt=True, and Java could not read its jobs.",
                hint="Use a queue without REDISSON, or encrypt=False.",
                id="django_delayq.E008",
            )
        ]
    if task.options.priority:
        return [
            checks.Error(
                f"Task {task.name!r} goes to queue {queue.name!r} with priority={task.options.priority}, and"
                " Redisson has no priorities.",
                hint="Use a queue without REDISSON, or priority=0.",
                id="django_delayq.E008",
            )
        ]
    return []


def _check_annotations(task: TaskDefinition) -> Iterator[checks.CheckMessage]:
    for parameter in task.call_signature.parameters.values():
        model = _model_in(_resolved(parameter.annotation, task))
        if model is None:
            continue
        yield checks.Warning(
            f"Parameter {parameter.name!r} of task {task.name!r} is annotated with the model {model.__qualname__}, and a job"
            " carries no model instances: its arguments are JSON.",
            hint="Pass the primary key, and read the row in the task: it may have changed when the job runs.",
            id="django_delayq.W005",
        )


def _resolved(annotation: object, task: TaskDefinition) -> object:
    """Return what an annotation stands for if that can be told: strings may name what is imported for checkers only."""
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, task.function.__globals__)["it"]
    except Exception:
        # An annotation is any expression.
        return annotation


def _model_in(annotation: object) -> type[Model] | None:
    """Return the model of which an argument holds instances, whichever it is of all that the annotation allows."""
    origin = get_origin(annotation)
    if origin is None:
        is_model = isinstance(annotation, type) and issubclass(annotation, Model)
        return annotation if is_model else None  # type: ignore[return-value]
    if origin is type or origin is Callable:
        return None
    inner = [_model_in(each) for each in get_args(annotation) if each is not NoneType]
    if origin in (Union, UnionType) and not all(inner):
        # `Order | int` takes the key as well.
        return None
    return next(filter(None, inner), None)


def _check_on_commit(task: TaskDefinition) -> Sequence[checks.CheckMessage]:
    alias = task.options.on_commit
    if not isinstance(alias, str) or is_alias(alias):
        return []
    return [
        checks.Error(
            f"on_commit of task {task.name!r} is {show(alias)}, which is not in DATABASES.",
            hint="Give True, for the default database, or one of"
            f" {', '.join(map(repr, connections))}.",
            id="django_delayq.E012",
        )
    ]


def _check_outbox(
    task: TaskDefinition, settings: conf.Settings
) -> Sequence[checks.CheckMessage]:
    once = task.options.once
    found: list[checks.CheckMessage] = []
    try:
        commit = commit_of(task.options, on_commit=False, outbox=settings.outbox)
        is_row = commit is not None and commit.in_outbox
    except DelayqError as error:
        is_row = True
        found.append(
            checks.Error(
                f"DELAYQ['OUTBOX'] is on, but jobs of task {task.name!r} cannot be rows of the outbox: {error}.",
                hint="Give the task outbox=False.",
                id="django_delayq.E027",
            )
        )
    if (is_row or once) and not apps.is_installed("django_delayq.outbox"):
        option = "outbox" if is_row else f"once={show(once)}"
        found.append(
            checks.Error(
                f"Task {task.name!r} has {option}, which needs the app django_delayq.outbox.",
                hint=f"{outbox.ADVICE[0].upper()}{outbox.ADVICE[1:]}.",
                id="django_delayq.E024",
            )
        )
    if isinstance(once, str) and not is_alias(once):
        found.append(
            checks.Error(
                f"once of task {task.name!r} is {show(once)}, which is not in DATABASES.",
                hint="Give True, for the default database, or one of"
                f" {', '.join(map(repr, connections))}.",
                id="django_delayq.E025",
            )
        )
    return found


def _check_alias(connection: str | None) -> Sequence[checks.CheckMessage]:
    if connection is None or "://" in connection:
        return []
    backend = getattr(django_settings, "CACHES", {}).get(connection, {}).get("BACKEND")
    if backend is None:
        return [
            checks.Error(
                f"DELAYQ['CONNECTION'] is {redact_url(connection)!r}, which is neither a URL nor an alias of CACHES.",
                hint="Give a URL with its scheme, such as 'redis://localhost:6379/0', or add the cache.",
                id="django_delayq.E006",
            )
        ]
    if not _is_django_redis(backend):
        return [
            checks.Error(
                f"DELAYQ['CONNECTION'] is {redact_url(connection)!r}, a cache with the backend {backend!r}.",
                hint="Use a cache with 'django_redis.cache.RedisCache', or give a URL.",
                id="django_delayq.E006",
            )
        ]
    return []


def _is_django_redis(backend: Any) -> bool:
    try:
        found = import_string(backend) if isinstance(backend, str) else backend
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, RedisCache)


def error_of(problem: Problem) -> checks.Error:
    """Return a problem of the settings as Django's checks report it."""
    return checks.Error(
        problem.message, hint=problem.hint, id=f"django_delayq.{problem.id}"
    )

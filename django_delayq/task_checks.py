"""Checks of tasks: their queues, and options that do not fit the queue or the databases."""

from collections.abc import Callable, Iterator, Sequence
from types import NoneType, SimpleNamespace, UnionType
from typing import Union, get_args, get_origin, get_type_hints

from django.apps import apps
from django.core import checks
from django.db import connections
from django.db.models import Model

from django_delayq import conf
from django_delayq.codecs.unsupported import UnsupportedCodec
from django_delayq.core.shards import shard_name
from django_delayq.exceptions import DelayqError
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import outbox, registry
from django_delayq.jobs.commit import is_alias
from django_delayq.jobs.definition import TaskDefinition
from django_delayq.jobs.options import commit_of
from django_delayq.jobs.prepare import check_key
from django_delayq.redaction import show
from django_delayq.suggestions import suggestion


def check_tasks(settings: conf.Settings) -> Iterator[checks.CheckMessage]:
    """Report tasks whose calls or jobs would fail."""
    for task in registry.all_tasks():
        yield from _check_on_commit(task)
        yield from _check_outbox(task, settings)
        yield from _check_annotations(task)
        if task.options.queue in settings.sharded:
            yield from _check_handler_of_shards(task)
            yield from _check_keys(task)
        elif task.options.queue not in settings.queues:
            yield checks.Error(
                f"Task {task.name!r} goes to queue {task.options.queue!r}, which is not in DELAYQ['QUEUES']."
                + suggestion(task.options.queue, settings.names),
                hint=f"Add {task.options.queue!r}: {{}} to DELAYQ['QUEUES'], or correct the task's queue.",
                id="django_delayq.E007",
            )
        elif registry.get_handler(task.options.queue) is not task:
            yield from _check_shared(task, settings.queues[task.options.queue])
        else:
            yield from _check_payloads(task, settings.queues[task.options.queue])


def _check_handler_of_shards(task: TaskDefinition) -> Iterator[checks.CheckMessage]:
    queue = task.options.queue
    if registry.get_handler(queue) is task:
        yield checks.Error(
            f"Handler {task.name!r} gets nothing: queue {queue!r} has shards, and other programs offer elements to"
            " one of them.",
            hint=f"Register the handler for a shard, such as {shard_name(queue, 0)!r}, or remove SHARDS.",
            id="django_delayq.E028",
        )


def _check_keys(task: TaskDefinition) -> Iterator[checks.CheckMessage]:
    """Report a limit and a unique key that lead to different shards."""
    try:
        check_key(task.name, task.options)
    except DelayqError as error:
        yield checks.Error(
            f"{str(error)[0].upper()}{str(error)[1:]}.",
            hint="Its calls raise InvalidTask.",
            id="django_delayq.E028",
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

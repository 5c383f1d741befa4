"""The lines that a worker prints at its start."""

from collections.abc import Iterator

from django_delayq import __version__, conf
from django_delayq.jobs import registry
from django_delayq.management.terminal import padded, width_of
from django_delayq.redaction import redact_url
from django_delayq.translations import gettext, ngettext, number_text
from django_delayq.worker.parts import WorkerOptions

#: At the start, more tasks than this are counted, not named.
TASKS_SHOWN = 3


def banner_of(options: WorkerOptions) -> str:
    """Return the lines that a worker prints at its start: version, server, queues, tasks, and how many jobs at once."""
    worker = options.worker
    url = conf.get_settings().connection
    server = gettext("the embedded server") if url is None else redact_url(url)
    queues = (
        gettext("queues, by weight")
        if options.is_weighted
        else gettext("queues, in this order")
    )
    names = [task.name for task in registry.all_tasks()]
    tasks = ", ".join(names) or gettext(
        "none: put tasks in tasks.py of an app in INSTALLED_APPS"
    )
    if len(names) > TASKS_SHOWN:
        tasks = number_text(len(names))
    runs = gettext(
        "{processes} of {threads} and {coroutines}; lease {lease} s, grace {grace} s",
        processes=ngettext("{number} process", "{number} processes", worker.processes),
        threads=ngettext("{number} thread", "{number} threads", worker.threads),
        coroutines=ngettext(
            "{number} coroutine", "{number} coroutines", worker.coroutines
        ),
        lease=worker.lease_s,
        grace=worker.grace_s,
    )
    if options.is_burst:
        runs += "; " + gettext("ends when nothing is due")
    rows = {
        queues: ", ".join(_describe_queues(options)),
        gettext("tasks"): tasks,
        gettext("runs"): runs,
    }
    width = max(map(width_of, rows))
    lines = [
        gettext(
            "django-delayq {version} on {server}",
            version=__version__,
            server=server,
        )
    ]
    lines += [f"  {padded(name, width)}  {value}" for name, value in rows.items()]
    return "\n".join(lines)


def _describe_queues(options: WorkerOptions) -> Iterator[str]:
    settings = conf.get_settings()
    shown: dict[str, list[tuple[conf.QueueSettings, float]]] = {}
    for each in options.queues:
        shown.setdefault(_shown_name(each[0], options), []).append(each)
    for name, parts in shown.items():
        queue, weight = parts[0][0], sum(weight for _, weight in parts)
        facts = []
        if name in settings.sharded:
            whole = settings.sharded[name]
            shards = whole.shards or 0
            facts.append(ngettext("{number} shard", "{number} shards", shards))
        if queue.redisson is not None:
            facts.append(
                gettext("shared with Redisson {version}", version=queue.redisson)
            )
        handler = registry.get_handler(queue.name)
        if handler is not None:
            facts.append(gettext("handler {name}", name=handler.name))
        text = f"{name}={weight:g}" if options.is_weighted else name
        yield text + (f" ({', '.join(facts)})" if facts else "")


def _shown_name(queue: conf.QueueSettings, options: WorkerOptions) -> str:
    """Return the name under which a queue is reported: that of the whole, if all of its shards are served."""
    settings = conf.get_settings()
    whole = settings.sharded.get(queue.whole)
    served = {each.name for each, _ in options.queues}
    if whole is None or any(
        part.name not in served for part in settings.parts_of(whole.name)
    ):
        return queue.name
    return whole.name

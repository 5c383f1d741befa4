"""``manage.py delayq_health``: is the server there, are queues served in time, does the worker live? For probes."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext_lazy
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.clock import epoch_ms
from django_delayq.conf import QueueSettings
from django_delayq.display.json_output import json_text
from django_delayq.display.queue_status import QueueStatus, living, look_at_queues
from django_delayq.display.time_texts import span_text
from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault, is_forbidden
from django_delayq.health.facts import ask
from django_delayq.health.problem import Level
from django_delayq.health.queue_problems import find_missing_queues
from django_delayq.health.server_problems import find_role
from django_delayq.health.worker_problems import UNSERVED_MS, find_missing_workers
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.times import span
from django_delayq.translations import gettext, ngettext, say, say_fault
from django_delayq.transport.clients import own_clients
from django_delayq.wording import one_line

HEALTHY, UNHEALTHY, UNKNOWN = 0, 1, 2
#: How long the answer may take, unless --timeout says otherwise.
TIMEOUT = timedelta(seconds=5)
#: A process of a worker writes its file every 5 s. One that is older shows that the process can run no jobs.
OLDEST_FILE_MS = 60_000

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_health                                  the server answers, and due jobs have a worker
  manage.py delayq_health --queue mail --max-lateness 30s  no due job of this queue has waited for longer
  manage.py delayq_health --queue mail --worker            a worker serves this queue, even if nothing is due
  manage.py delayq_health --heartbeat /run/delayq          the worker on this machine can run jobs; without a server

A paused queue is healthy, and so is an empty queue. The command prints one line with the reason.

exit status:
  0  healthy
  1  unhealthy:
     - the server, or the node of a queue, does not answer, rejects the account or is a replica
     - a due job has waited for 5 s or more, and no worker serves its queue
     - a due job has waited for longer than --max-lateness
     - with --worker, a queue has no worker
     - with --heartbeat, a worker process is missing or has not updated its file
  2  unknown:
     - the settings or the options are wrong
     - the account may not read the queue or the list of workers
     - the node of that list does not answer
     - another program uses the queue's keys
     - the folder of --heartbeat does not exist
"""
)


class Verdict(NamedTuple):
    """What a probe is told."""

    status: int
    why: str


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy(
        "Check whether queues are served in time, and report it by the exit status. For probes."
    )
    # A probe asks one thing; the checks of the settings are for deployments.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queue",
            action="append",
            metavar="NAME",
            help=gettext("only this queue; repeat it for more. Default: all."),
        )
        parser.add_argument(
            "--worker",
            action="store_true",
            help=gettext("require a worker for each queue, even if nothing is due."),
        )
        parser.add_argument(
            "--max-lateness",
            type=span,
            metavar="TIME",
            help=gettext(
                "unhealthy if a due job has waited for longer, even if workers serve its queue: seconds, or 30s, 5m, 2h."
            ),
        )
        parser.add_argument(
            "--heartbeat",
            metavar="DIR",
            help=gettext(
                "check the files of delayq_worker --heartbeat DIR. This connects to the server only if another option needs it."
            ),
        )
        parser.add_argument(
            "--timeout",
            type=span,
            default=TIMEOUT,
            metavar="TIME",
            help=gettext(
                "unhealthy if there is no answer within this time. Default: 5s."
            ),
        )
        parser.add_argument(
            "--json", action="store_true", help=gettext("print a JSON object.")
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["timeout"]:
            raise CommandError("--timeout is longer than 0 s.", returncode=UNKNOWN)
        verdict = _within(options["timeout"], lambda: _judge(options))
        names = {
            HEALTHY: gettext("healthy"),
            UNHEALTHY: gettext("unhealthy"),
            UNKNOWN: gettext("unknown"),
        }
        if options["json"]:
            told = json_text(
                {
                    "status": ("healthy", "unhealthy", "unknown")[verdict.status],
                    "why": verdict.why,
                }
            )
        else:
            told = f"{names[verdict.status]}: {one_line(verdict.why)}"
        self.stdout.write(told)
        if verdict.status:
            raise SystemExit(verdict.status)


def _within(timeout: timedelta, judge: Callable[[], Verdict]) -> Verdict:
    """Return what ``judge`` returns, or that it took too long: a name that cannot be resolved obeys no time-out."""
    answers: SimpleQueue[Verdict | BaseException] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put(judge())
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=answer, name="delayq-health", daemon=True).start()
    try:
        found = answers.get(timeout=timeout.total_seconds())
    except Empty:
        return Verdict(
            UNHEALTHY,
            gettext("no answer within {count} s", count=timeout.total_seconds()),
        )
    if isinstance(found, Verdict):
        return found
    if not isinstance(found, DelayqError | RedisError | OSError):
        raise found
    fault = say_fault(describe_fault(found))
    is_wrong = isinstance(found, DelayqError) or is_forbidden(found)
    why = (
        str(found)
        if isinstance(found, DelayqError)
        else f"{fault.what} {fault.message}"
    )
    return Verdict(UNKNOWN if is_wrong or "WRONGTYPE" in str(found) else UNHEALTHY, why)


def _judge(options: dict[str, Any]) -> Verdict:
    told = []
    if options["heartbeat"] is not None:
        verdict = _judge_files(Path(options["heartbeat"]))
        asks_server = (
            options["queue"] or options["worker"] or options["max_lateness"] is not None
        )
        if verdict.status or not asks_server:
            return verdict
        told.append(verdict.why)
    queues = conf.get_settings().queues_of(*options["queue"] or ())
    verdict = _judge_queues(queues, options["worker"], options["max_lateness"])
    return verdict._replace(why="; ".join([*told, verdict.why]))


def _judge_files(directory: Path) -> Verdict:
    try:
        files = {path: path.stat() for path in directory.glob("worker-*.json")}
        if not directory.is_dir():
            return Verdict(UNKNOWN, gettext("{path} is not a folder", path=directory))
    except OSError as error:
        return Verdict(UNKNOWN, str(error))
    if not files:
        return Verdict(
            UNHEALTHY, gettext("{path} has no file of a worker", path=directory)
        )
    for path, stat in files.items():
        age_ms = int(epoch_ms() - stat.st_mtime * 1000)
        if age_ms > OLDEST_FILE_MS:
            return Verdict(
                UNHEALTHY,
                gettext(
                    "a process has not updated its file for {time}: {path}",
                    time=span_text(age_ms),
                    path=path,
                ),
            )
    return Verdict(
        HEALTHY,
        ngettext(
            "{number} worker process runs", "{number} worker processes run", len(files)
        ),
    )


def _judge_queues(
    queues: Sequence[QueueSettings], needs_worker: bool, most_late: timedelta | None
) -> Verdict:
    with own_clients.waiting_once() as client:
        for problem in find_role(ask(client)):
            return Verdict(UNHEALTHY, say(problem.message))
        serving, error = living()
        found = look_at_queues(queues, serving)
    if error is not None and is_forbidden(error):
        raise error
    parts = [part for each in found for part in each.shards or [each]]
    away = {
        each.name: each.counts
        for each in parts
        if isinstance(each.counts, Exception) and each.is_away
    }
    if len(away) == len(parts):
        raise next(iter(away.values()))
    there = [
        part
        for each in found
        for part in (each.shards if each.is_away else [each])
        if not part.is_away
    ]
    faults = [
        fault for each in there if (fault := _fault(each, needs_worker, most_late))
    ]
    faults += [say(problem.message) for problem in find_missing_queues(away)]
    if faults:
        return Verdict(UNHEALTHY, "; ".join(faults))
    is_late = any(each.late_ms >= UNSERVED_MS and not each.is_paused for each in there)
    if error is not None and (needs_worker or is_late):
        (unknown,) = find_missing_workers(error)
        return Verdict(UNKNOWN, say(unknown.message))
    told = [ngettext("{number} queue", "{number} queues", len(queues))]
    if paused := sum(each.is_paused for each in found):
        told.append(
            ngettext("{number} of them paused", "{number} of them paused", paused)
        )
    late_ms = max((_late_ms(each) for each in there), default=0)
    if late_ms < 1000:
        told.append(gettext("nothing is late"))
    else:
        told.append(
            gettext("the first due job has waited for {time}", time=span_text(late_ms))
        )
    return Verdict(HEALTHY, ", ".join(told))


def _late_ms(queue: QueueStatus) -> int:
    """Return for how long the first due job has waited, unless a pause holds it."""
    if isinstance(queue.counts, Exception):
        raise queue.counts
    return 0 if queue.is_paused else queue.counts.late_ms


def _fault(
    queue: QueueStatus, needs_worker: bool, most_late: timedelta | None
) -> str | None:
    """Return what is wrong with a queue; None: nothing."""
    late_ms, processes = _late_ms(queue), len(queue.workers or ())
    if queue.is_paused:
        return None
    for problem in queue.problems:
        if problem.level is Level.ERROR:
            return say(problem.message).rstrip(".")
    if queue.workers is None:
        # `_judge_queues` says so if it matters.
        return None
    if most_late is not None and late_ms > most_late / timedelta(milliseconds=1):
        return ngettext(
            "queue {queue}: its first due job has waited for {time}, and {number} worker process serves it",
            "queue {queue}: its first due job has waited for {time}, and {number} worker processes serve it",
            processes,
            queue=queue.name,
            time=span_text(late_ms),
        )
    if needs_worker and not processes:
        return gettext("no worker serves queue {queue}", queue=queue.name)
    return None

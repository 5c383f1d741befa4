"""``manage.py delayq_worker``: transfer due jobs and run them."""

import logging
import os
import re
import time
from argparse import ArgumentTypeError
from contextlib import suppress
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext_lazy
from redis.exceptions import RedisError, ResponseError

from django_delayq import conf
from django_delayq.display.overview import look_around
from django_delayq.exceptions import DelayqError, InvalidSettings
from django_delayq.health.problem import Level
from django_delayq.jobs.middleware import compose
from django_delayq.logs import get_log
from django_delayq.management.backends import prepare_tasks
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.reloader import RELOADER, run_reloaded
from django_delayq.management.worker_banner import banner_of
from django_delayq.redaction import redact
from django_delayq.server_checks import server_problems
from django_delayq.setting_values import WEIGHT
from django_delayq.slices import loaded
from django_delayq.translations import gettext
from django_delayq.transport.clients import own_clients
from django_delayq.transport.connections import has_nodes
from django_delayq.worker import watchdog
from django_delayq.worker.operating_system import UNWRITABLE
from django_delayq.worker.parts import WorkerOptions
from django_delayq.worker.process import NODE_PATIENCE_S, at_most
from django_delayq.worker.supervisor import Supervisor

logger = get_log("django_delayq.worker")

#: Bytes. A lower --max-memory is a mistake, most often a missing unit.
LEAST_MEMORY = 32 * 2**20
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?) ?(?:([KMGT])(?:I?B)?|B)?")
_LOG_LEVELS = {
    Level.ERROR: logging.ERROR,
    Level.WARNING: logging.WARNING,
    Level.INFO: logging.INFO,
}

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_worker                                  every queue in DELAYQ["QUEUES"], by weight
  manage.py delayq_worker --queue urgent --queue default   urgent first, always; default when there is time
  manage.py delayq_worker --queue urgent=5 --queue bulk=1  urgent leads five times as often as bulk
  manage.py delayq_worker --processes 4 --threads 16       64 jobs at once
  manage.py delayq_worker --burst                          run what is due, then end: for cron and tests

signals:
  SIGTERM, SIGINT (Ctrl-C)   claim no more jobs, let running jobs end within --grace, give back the rest
  SIGHUP                     the same, unless nohup ignores it: the terminal was closed
  a second signal            stop now: running jobs are given back, and run again elsewhere

exit status:
  0 when it was stopped or --burst is done, 1 when a process failed or a queue could not be served,
  78 when the server refused DELAYQ["CONNECTION"] for 10 s: its account, its database, or the certificate
"""
)


def _whole_number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 10**9:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip().upper())
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not a size such as 512MB or 1.5GB")
    power = " KMGT".index(found[2] or " ")
    size = round(float(found[1]) * float(1024**power))
    if size < LEAST_MEMORY:
        raise ArgumentTypeError(
            f"{text!r} is {size} bytes, and no worker process fits into less than"
            f" {LEAST_MEMORY // 2**20}MB; give a size such as 512MB"
        )
    return size


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy(
        "Run delayed jobs: wait until they are due, claim them and call their functions.\n"
        "One worker is enough; you may start as many as you like, on as many machines as you like."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        worker = conf.WorkerSettings()
        parser.add_argument(
            "-Q",
            "--queue",
            action="append",
            metavar="NAME[=WEIGHT]",
            help=gettext(
                "a queue to serve; repeat it for more, in order of priority, or each with a weight."
                " Default: all in DELAYQ['QUEUES'], by their WEIGHT."
            ),
        )
        parser.add_argument(
            "--burst",
            action="store_true",
            help=gettext("run what is due now, then end."),
        )
        parser.add_argument(
            "--max-jobs",
            type=_whole_number,
            metavar="N",
            help=gettext(
                "replace a process after N jobs, against memory leaks; with --burst it is not replaced."
            ),
        )
        parser.add_argument(
            "--max-memory",
            type=_size,
            metavar="SIZE",
            help=gettext(
                "replace a process whose own memory exceeds SIZE, such as 512MB or 1.5GB, once its running jobs have"
                " ended."
            ),
        )
        parser.add_argument(
            "-p",
            "--processes",
            type=_whole_number,
            metavar="N",
            help=gettext(
                "number of worker processes. A process that dies is replaced, and its jobs run again. Default: DELAYQ['WORKER']['PROCESSES'], else {number}.",
                number=worker.processes,
            ),
        )
        parser.add_argument(
            "-t",
            "--threads",
            type=_whole_number,
            metavar="N",
            help=gettext(
                "threads per process, for sync tasks. Async tasks share an event loop. Default: DELAYQ['WORKER']['THREADS'], else {number}.",
                number=worker.threads,
            ),
        )
        parser.add_argument(
            "--grace",
            type=_seconds,
            metavar="SECONDS",
            help=gettext(
                "how long running jobs may take to end when the worker is stopped."
                " Default: DELAYQ['WORKER']['GRACE'], else {number}.",
                number=worker.grace_s,
            ),
        )
        parser.add_argument(
            "--heartbeat",
            metavar="DIR",
            help=gettext(
                "directory for the heartbeat files of this worker alone. Each process writes worker-PID.json there every few seconds while it can run jobs. A probe checks the age of the file; see docs/howto/deploy.md. Default: DELAYQ['WORKER']['HEARTBEAT'], else none."
            ),
        )
        parser.add_argument(
            "--reload",
            action="store_true",
            help=gettext(
                "restart when code changes; for development. Running jobs are interrupted at once, and run again."
            ),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _log_to_stderr(options["verbosity"])
        try:
            prepare_tasks()
            worker_options = self._read(options)
        except DelayqError as error:
            raise CommandError(str(error)) from error
        pipe = os.environ.pop(RELOADER, None)
        if options["reload"] and pipe is None:
            raise SystemExit(run_reloaded(self.stderr))
        try:
            if worker_options.worker.heartbeat is not None:
                watchdog.clear(worker_options.worker.heartbeat)
        except DelayqError as error:
            raise CommandError(str(error)) from error
        if options["verbosity"]:
            banner = banner_of(worker_options)
            with suppress(*UNWRITABLE):
                self.stdout.write(banner)
                self.stdout.flush()
        try:
            self._check_server(worker_options)
        except DelayqError as error:
            # Reported here, in the foreground, instead of by each process.
            raise CommandError(str(error)) from error
        except (RedisError, OSError) as error:
            # Each process waits for the server, and logs why.
            logger.debug("the server cannot be checked yet: %s", redact(str(error)))
        stop_with = None
        if pipe is not None:
            stop_with = int(pipe)
            os.set_inheritable(stop_with, False)
        raise SystemExit(Supervisor(worker_options, stop_with=stop_with).run())

    def _read(self, options: dict[str, Any]) -> WorkerOptions:
        settings = conf.get_settings()
        # Without a key, workers would hold every job.
        conf.get_keyring()
        # A wrong path is reported here, and not by each process.
        compose(settings)
        given = {
            name.upper(): options[name]
            for name in ("processes", "threads", "grace", "heartbeat")
            if options[name] is not None
        }
        worker = conf.override_worker(settings.worker, given)
        queues, is_weighted = _read_queues(options["queue"], settings)
        return WorkerOptions(
            queues=queues,
            is_weighted=is_weighted,
            worker=worker,
            parts=loaded("part"),
            reports=loaded("report"),
            is_burst=options["burst"],
            max_jobs=options["max_jobs"],
            max_memory=options["max_memory"],
        )

    def _check_server(self, options: WorkerOptions) -> None:
        client = own_clients.make()
        if has_nodes(client):
            # One that hangs is not to keep the jobs of the others.
            client = own_clients.make(**at_most(client, NODE_PATIENCE_S))
        queues = [queue for queue, _ in options.queues]
        try:
            for problem in server_problems(queues, client):
                if problem.is_fatal:
                    raise InvalidSettings(f"{problem.message} {problem.hint}")
                logger.log(
                    _LOG_LEVELS[problem.level], "%s %s", problem.message, problem.hint
                )
        finally:
            client.close()
        try:
            # While everything starts, the others may just not be there yet.
            for problem in look_around([queue.name for queue in queues]):
                logger.warning("%s %s", problem.message, problem.hint)
        except ResponseError as error:
            # What the server refuses was found before.
            logger.debug("the list of workers cannot be read: %s", error)
        finally:
            # The processes make their own.
            own_clients.forget()


def _read_queues(
    names: list[str] | None, settings: conf.Settings
) -> tuple[list[tuple[conf.QueueSettings, float]], bool]:
    if not names:
        return [
            (queue, queue.weight / len(settings.queues_of(queue.whole)))
            for queue in settings.queues_of()
        ], True
    queues: dict[str, tuple[conf.QueueSettings, float]] = {}
    given, weighted = set[str](), 0
    for item in names:
        name, equals, text = item.rpartition("=")
        if not equals or item in settings.queues or item in settings.sharded:
            name, text = item, ""
        weight = 1
        if text:
            try:
                weight = int(text)
            except ValueError:
                weight = 0
            if not WEIGHT.is_fit(weight):
                raise CommandError(
                    f"--queue {item}: the weight {text!r} is not {WEIGHT.wanted}."
                    f" Give one, such as {name}=1; only the ratio between the queues' weights matters."
                )
            weighted += 1
        parts = settings.queues_of(name)
        if any(queue.name in queues for queue in parts):
            raise CommandError(f"--queue {name} is given twice")
        given.add(name)
        # Together, the shards of a queue have its weight.
        queues |= {queue.name: (queue, weight / len(parts)) for queue in parts}
    if weighted not in (0, len(given)):
        raise CommandError(
            "give weights to all queues or to none: without weights the order decides"
        )
    return list(queues.values()), weighted > 0


def _log_to_stderr(verbosity: int) -> None:
    """Send the worker's log to stderr if the project's LOGGING has no handler for it."""
    if logger.hasHandlers():
        return
    root = logging.getLogger("django_delayq")
    handler = logging.StreamHandler()
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03d+00:00 %(process)d %(levelname)s %(message)s",
        "%Y-%m-%dT%H:%M:%S",
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root.addHandler(handler)
    root.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))

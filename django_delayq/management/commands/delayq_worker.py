"""``manage.py delayq_worker``: transfer due jobs and run them."""

import logging
import signal
import subprocess
import sys
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.autoreload import StatReloader

from django_delayq import __version__, conf
from django_delayq.exceptions import DelayqError
from django_delayq.jobs import registry
from django_delayq.worker.process import WorkerOptions
from django_delayq.worker.supervisor import Supervisor

logger = logging.getLogger("django_delayq.worker")

EXAMPLES = """
examples:
  manage.py delayq_worker                                  every queue in DELAYQ["QUEUES"], by weight
  manage.py delayq_worker --queue urgent --queue default   urgent first, always
  manage.py delayq_worker --queue urgent=5 --queue bulk=1  five claims of urgent for each of bulk
  manage.py delayq_worker --burst                          run what is due, then end: for cron and tests

signals:
  SIGTERM, SIGINT   claim no more, let running jobs end within --grace, give back the rest; again: stop now
"""


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


class Command(BaseCommand):
    help = "Run delayed jobs: move what is due, claim it, and call the registered functions."

    def create_parser(
        self, prog_name: str, subcommand: str, **kwargs: Any
    ) -> CommandParser:
        return super().create_parser(
            prog_name,
            subcommand,
            epilog=EXAMPLES,
            formatter_class=RawDescriptionHelpFormatter,
            **kwargs,
        )

    def add_arguments(self, parser: CommandParser) -> None:
        worker = conf.WorkerSettings()
        group = parser.add_argument_group("what to run")
        group.add_argument(
            "-Q",
            "--queue",
            action="append",
            metavar="NAME[=WEIGHT]",
            help="a queue to serve; repeat it in order of priority, or give weights. Default: all, by their WEIGHT.",
        )
        group.add_argument(
            "--burst", action="store_true", help="run what is due now, then end."
        )
        group.add_argument(
            "--max-jobs",
            type=_whole_number,
            metavar="N",
            help="replace a process after N jobs, against leaks; with --burst it ends for good.",
        )
        group = parser.add_argument_group("how to run it")
        group.add_argument(
            "-p",
            "--processes",
            type=_whole_number,
            metavar="N",
            help=f"worker processes. Default: DELAYQ['WORKER']['PROCESSES'], else {worker.processes}.",
        )
        group.add_argument(
            "-t",
            "--threads",
            type=_whole_number,
            metavar="N",
            help=f"threads of each process, for sync tasks. Default: DELAYQ['WORKER']['THREADS'], else {worker.threads}.",
        )
        group.add_argument(
            "--grace",
            type=_seconds,
            metavar="SECONDS",
            help="time that running jobs get to end when the worker is stopped."
            f" Default: DELAYQ['WORKER']['GRACE'], else {worker.grace_s:g}.",
        )
        group.add_argument(
            "--reload",
            action="store_true",
            help="restart when code changes; for development.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["reload"]:
            self._reload()
            return
        _log_to_stderr(options["verbosity"])
        try:
            worker_options = self._read(options)
            conf.connection_url()
            # Fails here, in the foreground, rather than in each process.
            conf.make_client().ping()
        except DelayqError as error:
            raise CommandError(str(error)) from error
        except Exception as error:
            logger.warning(
                "the server cannot be reached yet, the worker will wait for it: %s",
                error,
            )
        self._greet(worker_options)
        sys.exit(Supervisor(worker_options).run())

    def _read(self, options: dict[str, Any]) -> WorkerOptions:
        settings = conf.get_settings()
        worker = settings.worker
        for option, field in (
            ("processes", "processes"),
            ("threads", "threads"),
            ("grace", "grace_s"),
        ):
            if options[option] is not None:
                worker = replace(worker, **{field: options[option]})
        queues, is_weighted = _read_queues(options["queue"], settings)
        return WorkerOptions(
            queues=queues,
            is_weighted=is_weighted,
            worker=worker,
            is_burst=options["burst"],
            max_jobs=options["max_jobs"],
        )

    def _greet(self, options: WorkerOptions) -> None:
        worker = options.worker
        url = conf.get_settings().connection or "the embedded server"
        lines = [f"django-delayq {__version__} on {_without_password(url)}"]
        mode = "by weight" if options.is_weighted else "in this order"
        names = [
            f"{queue.name}"
            + (f"={weight:g}" if options.is_weighted else "")
            + (" (Redisson)" if queue.is_shared else "")
            for queue, weight in options.queues
        ]
        lines.append(f"queues, {mode}: {', '.join(names)}")
        tasks = registry.all_tasks()
        lines.append(
            f"tasks: {', '.join(task.name for task in tasks) if tasks else 'none registered'}"
        )
        lines.append(
            f"{worker.processes} process(es) of {worker.threads} threads, lease {worker.lease_s:g} s,"
            f" grace {worker.grace_s:g} s" + (", burst" if options.is_burst else "")
        )
        for line in lines:
            logger.info("%s", line)

    def _reload(self) -> None:
        """Run the worker as a child and restart it whenever a module of this project changes."""
        arguments = [argument for argument in sys.argv if argument != "--reload"]
        reloader = _ChangeReporter()
        ticker = reloader.tick()
        next(ticker)
        stopping: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: stopping.append(number))
        child = subprocess.Popen([sys.executable, *arguments])
        while not stopping:
            next(ticker)
            if reloader.changed is None:
                continue
            self.stderr.write(f"{reloader.changed} changed, restarting the worker")
            reloader.changed = None
            child.terminate()
            child.wait()
            child = subprocess.Popen([sys.executable, *arguments])
        child.terminate()
        sys.exit(child.wait())


class _ChangeReporter(StatReloader):
    """Django's reloader, but it reports instead of ending the process."""

    changed: Path | None = None

    def notify_file_changed(self, path: Path) -> None:
        self.changed = path


def _read_queues(
    names: list[str] | None, settings: conf.Settings
) -> tuple[list[tuple[conf.QueueSettings, float]], bool]:
    if not names:
        return [
            (queue, float(queue.weight)) for queue in settings.queues.values()
        ], True
    queues: dict[str, tuple[conf.QueueSettings, float]] = {}
    weighted = 0
    for item in names:
        name, equals, text = item.rpartition("=")
        if not equals or item in settings.queues:
            name, text = item, ""
        weight = 1.0
        if text:
            try:
                weight = float(text)
            except ValueError:
                weight = 0.0
            if not 0 < weight < 10**6:
                raise CommandError(
                    f"--queue {item}: the weight {text!r} is not a number above 0"
                )
            weighted += 1
        queue = settings.queue(name)
        if queue.name in queues:
            raise CommandError(f"--queue {name} is given twice")
        queues[queue.name] = queue, weight
    if weighted not in (0, len(queues)):
        raise CommandError(
            "give weights to all queues or to none: without weights the order decides"
        )
    return list(queues.values()), weighted > 0


def _without_password(url: str) -> str:
    scheme, slashes, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if slashes else url


def _log_to_stderr(verbosity: int) -> None:
    """Give the worker's log a place where the project's LOGGING has none."""
    root = logging.getLogger("django_delayq")
    if root.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter(
            "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(message)s", "%H:%M:%S"
        )
    )
    root.addHandler(handler)
    root.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))

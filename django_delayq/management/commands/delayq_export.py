"""``manage.py delayq_export``: write what queues hold to a file, so that another server can take it over."""

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, BinaryIO

from django.core.management.base import CommandError
from django.utils.translation import gettext_lazy
from redis.client import Redis

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.core import queue_reads
from django_delayq.management.command_errors import explained
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.moving_report import told
from django_delayq.management.progress_line import ProgressLine
from django_delayq.tools import exports, lines
from django_delayq.tools.exports import Exporting
from django_delayq.tools.lines import Page
from django_delayq.tools.move import Tally, total_of
from django_delayq.tools.page_calls import Kind
from django_delayq.tools.source import Taking
from django_delayq.translations import gettext
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_export jobs.jsonl              all queues
  manage.py delayq_export m.jsonl --queue mail    one queue
  manage.py delayq_export --confirm 3f9a12c4d5    the jobs were imported: delete them here
  manage.py delayq_export --release               the jobs were not imported: put them back
  manage.py delayq_export --copy backup.jsonl     only copy the jobs: they stay and run here

If this machine reaches both servers, delayq_import --from moves everything without a file.

Exported jobs are held here, and do not run, until --confirm or --release. The file contains the arguments of the jobs.
If an export is interrupted, run it again: its new file has everything. The last line of delayq_import has the code for
--confirm. Never release jobs that were imported, or they run twice.
Workers may run meanwhile. Running jobs end here, and so do jobs that wait for a running job or for their batch. Run the
command again to export the jobs that remain.

exit status:
  0 when the command succeeded; otherwise 1, and the last lines say why
"""
)


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy(
        "Export the jobs of queues to a file for delayq_import on another server. Until you confirm or release the export, the jobs are held here."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "file",
            nargs="?",
            metavar="FILE",
            help=gettext(
                "file to write, which must not exist yet; - is the standard output."
            ),
        )
        parser.add_argument(
            "--queue",
            action="append",
            metavar="NAME",
            help=gettext("only this queue; repeat it for more. Default: all."),
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help=gettext("print the summary as one JSON object, on the error stream."),
        )
        parser.add_argument(
            "--no-wait",
            action="store_true",
            help=gettext(
                "do not wait for replicas: after a failover, jobs may be lost or run twice."
            ),
        )
        ways = parser.add_mutually_exclusive_group()
        ways.add_argument(
            "--dry-run",
            action="store_true",
            help=gettext("count what would be exported, without changing anything."),
        )
        ways.add_argument(
            "--copy",
            action="store_true",
            help=gettext("only copy the jobs: they stay and run here."),
        )
        ways.add_argument(
            "--confirm",
            metavar="CODE",
            help=gettext(
                "delete the exported jobs here. delayq_import prints the CODE."
            ),
        )
        ways.add_argument(
            "--release",
            action="store_true",
            help=gettext("put back exported jobs that were not imported anywhere."),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._progress = ProgressLine(self.stderr, is_on=options["verbosity"] > 0)
        is_ending = options["confirm"] is not None or options["release"]
        if (options["file"] is None) is not (is_ending or options["dry_run"]):
            raise CommandError(
                "Name the FILE to write (- is the standard output); but with --dry-run, --confirm and --release there is no"
                " file."
            )
        with explained():
            settings = conf.get_settings()
            queues = settings.queues_of(*(options["queue"] or sorted(settings.names)))
            client = own_clients.make()
        interrupted = (
            "Interrupted. No step is half done. The jobs that were taken out are held; run the command again: its file will"
            " have everything."
        )
        with closing(client), self._progress.of_steps(interrupted), explained():
            if is_ending:
                tallies = self._end(
                    client,
                    queues,
                    options["confirm"],
                    is_named=bool(options["queue"]),
                    waits=not options["no_wait"],
                )
            elif options["dry_run"]:
                tallies = {queue.name: _would_move(client, queue) for queue in queues}
            else:
                with _created(options["file"]) as file:
                    tallies = self._export(
                        client,
                        queues,
                        file,
                        options["file"],
                        is_copy=options["copy"],
                        waits=not options["no_wait"],
                    )
        self._report(tallies, options)

    def _export(
        self,
        client: Redis,
        queues: list[QueueSettings],
        file: BinaryIO,
        name: str,
        *,
        is_copy: bool,
        waits: bool,
    ) -> Mapping[str, Tally]:
        exporting = Exporting(client, queues, is_copy=is_copy, waits=waits)
        total = sum(
            total_of(run(client, queue_reads.counts(queue.keys))) for queue in queues
        )
        done = 0
        for line in exporting.lines():
            with _written(name):
                file.write(lines.write(line))
            if isinstance(line, Page):
                done += len(line.jobs)
                self._progress(gettext("exporting"), done, max(total, done))
        return exporting.tallies

    def _end(
        self,
        client: Redis,
        queues: list[QueueSettings],
        code: str | None,
        *,
        is_named: bool,
        waits: bool,
    ) -> Mapping[str, Tally]:
        runs = exports.open_runs(client, queues)
        files = {name: each for name, each in runs.items() if each.kind is Kind.FILE}
        confirmed = {
            queue.name: exports.confirmed_with(client, queue)
            for queue in queues
            if queue.name in files
        }
        if code is None:
            _check_unconfirmed(confirmed)
        elif lines.code_of(files) == code:
            exports.confirm(client, [q for q in queues if q.name in files], code)
        else:
            # Those that are left of an end that was interrupted.
            among = ", ".join(map(repr, files)) or "none"
            files = {
                name: each for name, each in files.items() if confirmed[name] == code
            }
            if not files:
                raise CommandError(
                    f"{code!r} is not the code of what is exported now (queues: {among}). Import the last file that"
                    " delayq_export has written, as a whole; give the code that delayq_import prints, and the same --queue as"
                    " for the export."
                )
        # A run from server to server has no file. If its target is lost, what is on its way is put back; else the target
        # may have it as well, so somebody has to name the queue.
        chosen = runs if code is None and is_named else files
        if not chosen:
            direct = ", ".join(map(repr, runs.keys() - files.keys()))
            if code is None and direct:
                raise CommandError(
                    f"On their way to another server: {direct}. Run that delayq_import --from again to continue. If that"
                    " server is lost, name the queue with --queue, and what is on its way is put back here."
                )
            raise CommandError("Nothing of these queues is on its way.")
        tallies = {}
        for queue in queues:
            if queue.name in chosen:
                tally = tallies[queue.name] = Tally()
                its_run = chosen[queue.name]
                taking = Taking(client, queue, tally, its_run.kind, waits=waits)
                for _ in taking.end_steps(its_run, is_moved=code is not None):
                    self._progress(gettext("ending the export"), tally.moved, 0)
        return tallies

    def _report(self, tallies: Mapping[str, Tally], options: dict[str, Any]) -> None:
        self._progress.end()
        if options["json"]:
            told_as = {
                name: {"jobs": tally.moved, "stay": tally.stay}
                | {"schedules": tally.schedules}
                for name, tally in tallies.items()
            }
            self.stderr.write(json.dumps({"queues": told_as}))
            return
        if options["confirm"] is not None:
            done = gettext("{count} deleted here")
        elif options["release"]:
            done = gettext("{count} put back")
        elif options["dry_run"]:
            done = gettext("{count} would be exported")
        elif options["copy"]:
            done = gettext("{count} copied; they stay and run here")
        else:
            done = gettext("{count} exported and held here")
        for name, tally in tallies.items():
            self.stderr.write(told(name, tally, done))


@contextmanager
def _created(name: str) -> Iterator[BinaryIO]:
    """Create a file for this user alone: it has the arguments of jobs. At the end it is on the disk."""
    if name == "-":
        if sys.__stdout__ is None:
            raise CommandError("The standard output is closed. Name a file.")
        yield sys.stdout.buffer
        with _written(name):
            sys.stdout.buffer.flush()
        return
    try:
        number = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CommandError(
            f"{name!r} cannot be created: {error.strerror}. Name another file."
        ) from error
    file = os.fdopen(number, "wb")
    try:
        yield file
        with _written(name):
            file.flush()
            os.fsync(number)
    except BaseException:
        if not file.tell():
            # Nothing was taken out: the same command can be run again.
            os.unlink(name)
        raise
    finally:
        # A full disk refuses the rest once more, which is told already.
        with suppress(OSError):
            file.close()


@contextmanager
def _written(name: str) -> Iterator[None]:
    """Say which file cannot be written: an OSError of a server looks the same."""
    try:
        yield
    except OSError as error:
        raise CommandError(
            f"{name!r} cannot be written: {error.strerror}. The jobs that were taken out are held; make room or name another"
            " file, and run the command again: its file will have everything."
        ) from error


def _would_move(client: Redis, queue: QueueSettings) -> Tally:
    counts = run(client, queue_reads.counts(queue.keys))
    return Tally(moved=total_of(counts), stay=counts.running + counts.forwards)


def _check_unconfirmed(confirmed: Mapping[str, str | None]) -> None:
    """Refuse to put back what another server is known to have."""
    for name, code in confirmed.items():
        if code is not None:
            raise CommandError(
                f"Queue {name!r} was confirmed: another server has its jobs, and would run them as well. Run delayq_export"
                f" --confirm {code} again, to its end."
            )

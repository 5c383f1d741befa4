"""``manage.py delayq_import``: take over what another server's queues hold, from that server or from a file."""

import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, BinaryIO

from django.core.management.base import CommandError
from django.utils.translation import gettext_lazy
from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.core.queue_reads import Counts
from django_delayq.faults import describe_fault
from django_delayq.jobs import shard_agreement
from django_delayq.management.command_errors import explained
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.moving_report import told
from django_delayq.management.progress_line import ProgressLine
from django_delayq.project_connection import embedded_url
from django_delayq.redaction import redact_url
from django_delayq.setting_values import PREFIX
from django_delayq.tools import lines
from django_delayq.tools.direct import Moving
from django_delayq.tools.imports import Importing
from django_delayq.tools.move import (
    SameQueue,
    Tally,
    check_shards,
    left_of,
    left_on,
    queues_on,
    total_of,
)
from django_delayq.translations import gettext, list_text
from django_delayq.transport.clients import Clients, own_clients
from django_delayq.transport.steps import perform

#: Between two looks at a source whose jobs still run, s.
PAUSE_S = 0.5

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_import --from redis://blue:6379/0        move all queues of DELAYQ["QUEUES"] from there to here
  manage.py delayq_import --from embedded                   from the server that this project's DEBUG has used
  manage.py delayq_import --from redis://blue --queue mail  one queue
  manage.py delayq_import --from redis://blue --until-empty until nothing is left there, running jobs included
  manage.py delayq_import --from-prefix=old-                jobs under an earlier PREFIX, on this server
  manage.py delayq_import jobs.jsonl                        a file of delayq_export; - is the standard input

The target is the server of DELAYQ["CONNECTION"]. Jobs keep their IDs, due times, attempts, errors, unique keys
and priorities. Results, statistics and ended jobs do not move.
Workers may run on both servers. Each step is atomic and takes some milliseconds. You may interrupt the command at any
time and run it again: it continues, no job is lost, and no job is stored twice.
Running jobs end where they are, and so do jobs that wait for a running job or for their batch.

exit status:
  0 when everything was imported; otherwise 1, and the last lines say what is left or what failed
"""
)


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy(
        "Import jobs from another server's queues, or from a file of delayq_export."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "file",
            nargs="?",
            metavar="FILE",
            help=gettext("a file of delayq_export; - is the standard input."),
        )
        parser.add_argument(
            "--from",
            dest="source",
            metavar="URL",
            help=gettext("server to move from; 'embedded' is the embedded server."),
        )
        parser.add_argument(
            "--from-prefix",
            metavar="PREFIX",
            help=gettext(
                "PREFIX of the queues to move, if it differs from the settings. Without --from, the queues are on this server."
            ),
        )
        parser.add_argument(
            "--queue",
            action="append",
            metavar="NAME",
            help=gettext(
                "with --from: only this queue; repeat it for more. Default: all."
            ),
        )
        parser.add_argument(
            "--until-empty",
            action="store_true",
            help=gettext("with --from: continue until nothing is left there."),
        )
        parser.add_argument(
            "--no-wait",
            action="store_true",
            help=gettext(
                "do not wait for replicas: after a failover, jobs may be lost or run twice."
            ),
        )
        parser.add_argument(
            "--resign",
            action="store_true",
            help=gettext("sign jobs with this project's first key."),
        )
        parser.add_argument(
            "--copy",
            action="store_true",
            help=gettext("accept a file of delayq_export --copy."),
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help=gettext("count what would be imported, without changing anything."),
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help=gettext("print the summary as one JSON object."),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._progress = ProgressLine(self.stderr, is_on=options["verbosity"] > 0)
        _check_options(options)
        with explained():
            target = own_clients.make()
        act = self._move if options["file"] is None else self._import
        with closing(target), self._progress.of_steps(), explained():
            is_done = act(target, options)
        if not is_done:
            raise SystemExit(1)

    # From a file.

    def _import(self, target: Redis, options: dict[str, Any]) -> bool:
        importing = Importing(
            target,
            conf.get_keyring(),
            is_signing=options["resign"],
            is_copy=options["copy"],
            is_dry=options["dry_run"],
            waits=not options["no_wait"],
        )
        with _opened(options["file"]) as file:
            for line in lines.read(_lines_of(file)):
                importing.take_in(line)
                self._progress(gettext("importing"), importing.seen, 0)
        self._progress.end()
        self._tell(importing.tallies, {}, options, importing.code)
        if not options["json"] and importing.code:
            self.stdout.write(
                gettext(
                    "Everything was imported. Now run on the source: manage.py delayq_export --confirm {code}",
                    code=importing.code,
                )
            )
        return True

    # From a server.

    def _move(self, target: Redis, options: dict[str, Any]) -> bool:
        settings, keyring = conf.get_settings(), conf.get_keyring()
        names = options["queue"] or sorted(settings.names)
        queues = settings.queues_of(*names)
        prefix = options["from_prefix"]
        there_prefix = settings.prefix if prefix is None else prefix
        is_here = options["source"] is None
        source = own_clients.make() if is_here else _client_of(options["source"])
        of_source = nullcontext if is_here else _told_of_source
        tallies: dict[str, Tally] = {}
        moved: list[tuple[str, Moving]] = []
        try:
            with of_source():
                source.ping()
                for name in dict.fromkeys(queue.whole for queue in queues):
                    whole = settings.sharded.get(name) or settings.queue(name)
                    check_shards(source, replace(whole, prefix=there_prefix))
            if not options["dry_run"]:
                # It writes the number of a new queue.
                perform(target, shard_agreement.checking(queues))
            with of_source():
                found = queues_on(source, there_prefix, settings.prefix)
                others = _not_among(queues, found, settings, options)
            for queue in queues:
                moving = Moving(
                    source,
                    target,
                    queue,
                    keyring,
                    is_signing=options["resign"],
                    # Elsewhere, a queue that is shared with Java has its bare name; here it has it already.
                    prefix=None if queue.is_shared and not is_here else prefix,
                    waits=not options["no_wait"],
                    target_name=redact_url(settings.connection or "embedded"),
                    at_source=of_source,
                )
                if is_here and moving.there.keys == queue.keys:
                    continue
                tallies[queue.name] = moving.tally
                if options["dry_run"]:
                    with of_source():
                        moving.count()
                else:
                    try:
                        self._move_queue(
                            queue, moving, is_waiting=options["until_empty"]
                        )
                    except SameQueue:
                        if prefix is None or not queue.is_shared:
                            raise
                        # No prefix goes before its name, and --from is this server.
                        del tallies[queue.name]
                        continue
                moved.append((queue.name, moving))
            with of_source():
                # Counted last: what ends in one queue may have put jobs into another that was empty already.
                left = {name: moving.counts for name, moving in moved}
                unknown = left_on(source, others, there_prefix)
        finally:
            source.close()
        self._progress.end()
        if is_here and not tallies:
            raise CommandError(
                f"--from-prefix {prefix!r} is the PREFIX of these settings, so no job has to move. Give the old PREFIX."
            )
        self._tell(tallies, left, options, "", unknown)
        if options["dry_run"]:
            return True
        return not unknown and not any(left_of(counts) for counts in left.values())

    def _move_queue(
        self, queue: QueueSettings, moving: Moving, *, is_waiting: bool
    ) -> None:
        moving.begin()
        total = total_of(moving.counts)
        said = gettext("queue {queue}", queue=queue.name)
        while True:
            for _ in moving.steps():
                tally = moving.tally
                done = tally.moved + tally.known
                self._progress(said, done, max(total, done))
            counts = moving.counts
            if not is_waiting or not left_of(counts):
                break
            said = gettext(
                "queue {queue}: waiting for {count} that end on the source, {running} of them running",
                queue=queue.name,
                count=left_of(counts),
                running=counts.running,
            )
            self._progress(said, 0, 0)
            time.sleep(PAUSE_S)
        moving.end()

    def _tell(
        self,
        tallies: dict[str, Tally],
        left: dict[str, Counts],
        options: dict[str, Any],
        code: str,
        unknown: list[str] | None = None,
    ) -> None:
        is_dry = options["dry_run"]
        if options["json"]:
            self.stdout.write(json.dumps(_data(tallies, left, code, unknown or [])))
            return
        done = gettext("{count} would be moved") if is_dry else gettext("{count} moved")
        for name, tally in tallies.items():
            self.stdout.write(told(name, tally, done))
            counts = left.get(name)
            if counts is None or is_dry or not left_of(counts):
                continue
            self.stdout.write(
                gettext(
                    "queue {queue}: {count} are left on the source, {running} of them running. Jobs of another project stay there. The others came meanwhile, or wait for a job or a batch that must end on the source. Run this command again later, or with --until-empty.",
                    queue=name,
                    count=left_of(counts),
                    running=counts.running,
                )
            )
        if unknown:
            self.stdout.write(
                gettext(
                    'Not moved, because DELAYQ["QUEUES"] does not have them: {queues}',
                    queues=list_text(unknown),
                )
            )


@contextmanager
def _told_of_source() -> Iterator[None]:
    """Say that it is the server of --from which does not answer, or refuses."""
    try:
        yield
    except RedisError as error:
        what, message, hint = describe_fault(error)
        text = f"{what} {hint}\n{message}"
        raise CommandError(text.replace("DELAYQ['CONNECTION']", "--from")) from error


def _not_among(
    queues: list[QueueSettings],
    there: list[str],
    settings: conf.Settings,
    options: dict[str, Any],
) -> list[str]:
    """Return the queues of a server that do not move; where some are named, only further shards of these."""
    names = {queue.name for queue in queues}
    others = [name for name in there if name not in names]
    if not options["queue"]:
        return others
    wholes = {queue.whole for queue in queues}
    return [name for name in others if settings.whole(name) in wholes]


def _check_options(options: dict[str, Any]) -> None:
    is_file = options["file"] is not None
    if (options["source"] is not None) is is_file and options["from_prefix"] is None:
        raise CommandError(
            "Name what to import: either a FILE of delayq_export (- is the standard input), or a server with --from."
        )
    if is_file and options["from_prefix"] is not None:
        raise CommandError(
            "--from-prefix is for a server: the queues of a file have no prefix, and get that of these settings."
        )
    if not is_file and not PREFIX.is_fit(options["from_prefix"] or ""):
        raise CommandError(
            f"--from-prefix is {options['from_prefix']!r}: give {PREFIX.wanted}."
        )
    for name in ("queue", "until_empty"):
        if options[name] and is_file:
            option = name.replace("_", "-")
            raise CommandError(f"--{option} needs --from; a file is imported whole.")
    if options["copy"] and not is_file:
        raise CommandError("--copy needs a FILE; with --from, jobs are moved.")


def _client_of(source: str) -> Redis:
    """Return a client of the server to move from.

    Raises:
        InvalidSettings, EmbeddedServerError: it is no URL, or the embedded server does not start.
    """
    return Clients.of(embedded_url() if source == "embedded" else source).make()


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(name, "rb")  # noqa: SIM115
    except OSError as error:
        raise CommandError(f"{name!r} cannot be read: {error.strerror}.") from error
    with file:
        yield file


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Say which file cannot be read: an OSError of a server looks the same."""
    try:
        yield from file
    except OSError as error:
        raise CommandError(
            f"{file.name!r} cannot be read: {error.strerror}."
        ) from error


def _data(
    tallies: dict[str, Tally],
    left: dict[str, Counts],
    code: str,
    unknown: list[str],
) -> dict[str, Any]:
    queues: dict[str, dict[str, Any]] = {}
    for name, tally in tallies.items():
        queues[name] = {
            "moved": tally.moved,
            "known": tally.known,
            "without_unique_key": tally.shared,
            "signed": tally.signed,
            "schedules": tally.schedules,
            "missing_keys": tally.unknown,
        }
        if name in left:
            counts = left[name]
            queues[name]["left"] = left_of(counts)
            queues[name]["running"] = counts.running
    return {"queues": queues, "not_configured": unknown, "code": code or None}

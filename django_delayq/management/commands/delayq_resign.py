"""``manage.py delayq_resign``: sign waiting jobs anew with the first key, so that an older key can go."""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError
from django.utils.translation import gettext_lazy
from redis.client import Redis

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.core import queue_reads
from django_delayq.exceptions import DelayqError
from django_delayq.jobs.envelope import OTHER_CODEC
from django_delayq.management.command_errors import Missing, explained
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.progress_line import ProgressLine
from django_delayq.tools.resign import Resigning, Tally
from django_delayq.translations import gettext, list_text
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.wire.signatures import FORMAT, Keyring

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_resign                 all queues of DELAYQ["QUEUES"]
  manage.py delayq_resign mail orders     these

To replace a key:
  1. Put the new one first: SECRET_KEY, with the old one in SECRET_KEY_FALLBACKS; or DELAYQ["KEYS"].
     Restart every process that schedules or runs jobs.
  2. Run this command.
  3. Remove the old key when the command says that you can.

Workers may run meanwhile. Each step is atomic and takes some milliseconds; 100,000 jobs take some ten seconds.
You may interrupt the command at any time and run it again.

exit status:
  0 when these queues need only the first key
  1 when they need another key, when a queue is in a later format, when the command was interrupted, or when the server did
    not answer; the last lines say which
"""
)

ADVICE = "The steps done so far stand. Fix the problem, then run the command again."


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy(
        "Sign all jobs that wait, are due, held, or given up with the project's first key.\nRunning jobs are signed as well, in case they run again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "queues",
            nargs="*",
            metavar="QUEUE",
            help=gettext('queue names; without any, all of DELAYQ["QUEUES"].'),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._progress = ProgressLine(self.stderr, is_on=options["verbosity"] > 0)
        missing = Missing()
        try:
            settings, keyring = conf.get_settings(), conf.get_keyring()
            names = options["queues"] or sorted(settings.names)
            queues = settings.queues_of(*names)
            with explained(lambda: ADVICE), own_clients.waiting_once() as client:
                tallies = self._sign(client, queues, keyring, missing)
                if missing.queues:
                    raise CommandError(f"{missing.line}\n{ADVICE}")
        except DelayqError as error:
            raise CommandError(str(error)) from error
        left = sorted(
            {each.name for each in settings.queues_of()}
            - {each.name for each in queues}
        )
        if not self._conclude(tallies, left, keyring):
            raise SystemExit(1)

    def _sign(
        self,
        client: Redis,
        queues: Sequence[QueueSettings],
        keyring: Keyring,
        missing: Missing,
    ) -> list[Tally]:
        names = [queue.name for queue in queues]
        for queue in queues:
            with missing.queue(queue.name, of=names):
                self._check_readable(client, queue)
        tallies = []
        for queue in queues:
            if queue.name not in missing.queues:
                with missing.queue(queue.name, of=names):
                    signing = Resigning(client, queue, keyring)
                    tallies.append(self._write_anew(queue, signing))
        return tallies

    def _write_anew(self, queue: QueueSettings, signing: Resigning) -> Tally:
        try:
            with self._progress.of_steps():
                total = signing.total()
                for _ in signing.steps():
                    told = gettext("queue {queue}", queue=queue.name)
                    self._progress(told, signing.seen, total)
        finally:
            self.stdout.write(_told(queue.name, signing.tally))
        return signing.tally

    def _check_readable(self, client: Redis, queue: QueueSettings) -> None:
        format = run(client, queue_reads.read_format(queue.keys))
        if format > FORMAT:
            raise CommandError(
                f"Queue {queue.name} is in format {format}, and this version reads format {FORMAT}. Run this with a version"
                " that reads it."
            )

    def _conclude(
        self,
        tallies: Sequence[Tally],
        left: Sequence[str],
        keyring: Keyring,
    ) -> bool:
        """Print whether an older key may go; return whether it may."""
        first, *others = keyring.ids
        late = sum(tally.late for tally in tallies)
        missing = sorted({name for tally in tallies for name in tally.unknown})
        if late:
            self.stdout.write(
                gettext(
                    "Not done: processes still sign jobs with an older key, {count} during the last check. Put the new key first in their settings, restart them, and run this again.",
                    count=late,
                )
            )
        if missing:
            self.stdout.write(
                gettext(
                    "Not done: jobs that need {keys} were not signed again. Run this where the settings have it.",
                    keys=list_text(missing),
                )
            )
        has_hidden = any(tally.has_hidden for tally in tallies)
        if has_hidden and others:
            self.stdout.write(
                gettext(
                    "Not done: this account may not use SCAN, so encrypted results were not searched. Keep the older key as long as they are kept, or run this with an account that may use SCAN."
                )
            )
            return False
        if late or any(name.startswith(OTHER_CODEC) for name in missing):
            # Which key a job in another codec needs is not known before it can be read.
            return False
        # Jobs that another project has signed do not need this project's keys.
        template = (
            gettext("Nothing else here needs any key except {key}.")
            if missing
            else gettext("Nothing here needs any key except {key}.")
        )
        done = template.format(key=repr(first))
        if others:
            template = (
                gettext("You can remove {keys} when this has run for {queues} as well.")
                if left
                else gettext("You can remove {keys}.")
            )
            keys = list_text([repr(other) for other in others])
            told = template.format(keys=keys, queues=list_text(left) if left else "")
            done = f"{done} {told}"
        self.stdout.write(done)
        return not missing


def _told(name: str, tally: Tally) -> str:
    told = [
        gettext("{count} signed again", count=tally.signed),
        gettext("{count} already signed with the first key", count=tally.current),
    ]
    if tally.encrypted:
        told.append(
            gettext("{count} errors and results encrypted again", count=tally.encrypted)
        )
    if tally.foreign:
        told.append(
            gettext("{count} that are not jobs of this project", count=tally.foreign)
        )
    told += [
        gettext(
            "{count} that need the {key}, which this project does not have",
            count=count,
            key=key,
        )
        for key, count in sorted(tally.unknown.items())
    ]
    if tally.released:
        told.append(gettext("{count} no longer held", count=tally.released))
    return gettext("queue {queue}: {counts}", queue=name, counts=", ".join(told))

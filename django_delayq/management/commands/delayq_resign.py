"""``manage.py delayq_resign``: sign what waits with the key that signs now, so that an older one can go."""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError
from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.conf import QueueSettings
from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault
from django_delayq.jobs.resigning import Resigning, Tally
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.progress import ProgressLine
from django_delayq.wire.signing import Keyring

EXAMPLES = """
examples:
  manage.py delayq_resign                 all queues of DELAYQ["QUEUES"]
  manage.py delayq_resign mail orders     these

To take a key out of use:
  1. Put the new one first: SECRET_KEY, with the old one in SECRET_KEY_FALLBACKS; or DELAYQ["KEYS"].
     Restart what schedules jobs and what runs them.
  2. Run this.
  3. Remove the old key when this says that it may go.
Workers go on meanwhile. Each step is atomic, and takes some milliseconds; 100,000 jobs take some ten seconds.
It may be interrupted at any moment, and run again.

exit status:
  0 when nothing in these queues needs another key than the first
  1 when something does, when it was interrupted, or when the server did not answer; the last lines say which
"""


class Command(CommandWithExamples):
    examples = EXAMPLES
    help = (
        "Sign the jobs that wait, are due, are held or were given up with the first of the project's keys.\n"
        "What a process runs at the moment is signed anew as well, should it be tried again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "queues",
            nargs="*",
            metavar="QUEUE",
            help='names of queues; without any, all of DELAYQ["QUEUES"].',
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._progress = ProgressLine(self.stderr, is_on=options["verbosity"] > 0)
        try:
            settings, keyring = conf.get_settings(), conf.get_keyring()
            queues = [
                settings.queue(name)
                for name in options["queues"] or sorted(settings.queues)
            ]
            client = conf.make_client()
        except DelayqError as error:
            raise CommandError(str(error)) from error
        try:
            tallies = [self._sign(client, queue, keyring) for queue in queues]
        finally:
            client.close()
        left = sorted(
            settings.queues.keys() - {queue.name for queue in queues}, key=str
        )
        if not self._conclude(tallies, left, keyring):
            raise SystemExit(1)

    def _sign(self, client: Redis, queue: QueueSettings, keyring: Keyring) -> Tally:
        run = Resigning(client, queue, keyring)
        try:
            total = run.total()
            for _ in run.steps():
                self._progress(f"queue {queue.name}", run.seen, total)
        except RedisError as error:
            self._progress.end()
            what, message, hint = describe_fault(error)
            raise CommandError(
                f"{what} {hint}\n{message}\nWhat was done so far stands; run it again when that is mended."
            ) from error
        except KeyboardInterrupt:
            self._progress.end()
            self.stdout.write(_told(queue.name, run.tally))
            raise CommandError(
                "Interrupted. No step is half done; run it again to go on."
            ) from None
        self._progress.end()
        self.stdout.write(_told(queue.name, run.tally))
        return run.tally

    def _conclude(
        self, tallies: Sequence[Tally], left: Sequence[str], keyring: Keyring
    ) -> bool:
        """Say whether an older key may go; return that."""
        first, *others = keyring.ids
        late = sum(tally.late for tally in tallies)
        missing = sorted({name for tally in tallies for name in tally.unknown})
        if late:
            self.stdout.write(
                f"Not done: jobs signed with an older key go on coming, {late:,} while this looked for the last time. Restart"
                " what schedules them, with the new key first, and run this again."
            )
        if missing:
            self.stdout.write(
                f"Not done: what needs {_all_of(missing)} is not signed anew. Run this where that is known."
            )
        if late or missing:
            return False
        done = f"Nothing here needs a key but {first!r}."
        if others and left:
            done += f" {_all_of(map(repr, others))} may go when this was run for {_all_of(left)} as well."
        elif others:
            done += f" {_all_of(map(repr, others))} may go."
        self.stdout.write(done)
        return True


def _all_of(names: Any) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else str(last)


def _told(name: str, tally: Tally) -> str:
    parts = [
        f"{tally.signed:,} signed anew",
        f"{tally.current:,} already signed with the first key",
    ]
    if tally.foreign:
        parts.append(f"{tally.foreign:,} that are no jobs of this project")
    parts += [
        f"{count:,} that need the {missing}, which is not here"
        for missing, count in sorted(tally.unknown.items())
    ]
    if tally.released:
        parts.append(f"{tally.released:,} no longer held")
    return f"queue {name}: " + ", ".join(parts)

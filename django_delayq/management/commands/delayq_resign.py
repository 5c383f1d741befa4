"""``manage.py delayq_resign``: sign what waits with the key that signs now, so that an older one can go."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault
from django_delayq.jobs.resigning import Resigning, Tally
from django_delayq.management.help import CommandWithExamples

EXAMPLES = """
examples:
  manage.py delayq_resign                 all queues of DELAYQ["QUEUES"]
  manage.py delayq_resign mail orders     these

To take a key out of use: put the new one first (SECRET_KEY, the old one into SECRET_KEY_FALLBACKS; or DELAYQ["KEYS"]),
restart what schedules and what runs jobs, run this, and remove the old key when it says that nothing needs it.
Each step is atomic and takes some milliseconds. It may be interrupted at any moment, and run again.

exit status:
  0 when all that is signed by this project is signed with the first key; 1 when something could not be read
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
        try:
            settings, keyring = conf.get_settings(), conf.get_keyring()
            queues = [
                settings.queue(name)
                for name in options["queues"] or sorted(settings.queues)
            ]
            client = conf.make_client()
        except DelayqError as error:
            raise CommandError(str(error)) from error
        is_complete = True
        with client:
            for queue in queues:
                run = Resigning(client, queue, keyring)
                try:
                    for _ in run.steps():
                        pass
                except RedisError as error:
                    what, message, hint = describe_fault(error)
                    raise CommandError(
                        f"{what} {hint}\n{message}\nWhat was done so far stands; run it again when that is mended."
                    ) from error
                except KeyboardInterrupt:
                    self.stdout.write(_told(queue.name, run.tally))
                    raise CommandError(
                        "Interrupted. No step is half done; run it again to go on."
                    ) from None
                self.stdout.write(_told(queue.name, run.tally))
                is_complete = is_complete and not run.tally.unknown
        if not is_complete:
            raise SystemExit(1)
        self.stdout.write(f"Nothing here needs a key but {keyring.ids[0]!r}.")


def _told(name: str, tally: Tally) -> str:
    parts = [
        f"{tally.signed:,} signed anew",
        f"{tally.current:,} already signed with the first key",
    ]
    if tally.foreign:
        parts.append(f"{tally.foreign:,} that are no jobs of this project")
    parts += [
        f"{count:,} that need the {missing}, which is not here"
        for missing, count in tally.unknown.items()
    ]
    if tally.released:
        parts.append(f"{tally.released:,} no longer held")
    return f"queue {name}: " + ", ".join(parts)

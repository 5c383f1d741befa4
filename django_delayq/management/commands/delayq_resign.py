"""``manage.py delayq_resign``: sign waiting jobs anew with the first key, so that an older key can go."""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.utils.translation import gettext, gettext_lazy, ngettext
from redis.client import Redis
from redis.exceptions import RedisError

from django_delayq import conf
from django_delayq.calls.running import run
from django_delayq.clients.clients import own_clients
from django_delayq.conf import QueueSettings
from django_delayq.delivery import upgrading
from django_delayq.delivery.upgrading import ENROLLED_MS, FormatSet
from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault
from django_delayq.jobs.envelope import OTHER_CODEC
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.progress import ProgressLine
from django_delayq.repair.resigning import FormatChange, Resigning, Tally
from django_delayq.translating import list_text, number_text
from django_delayq.wire.signing import Keyring

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_resign                 all queues of DELAYQ["QUEUES"]
  manage.py delayq_resign mail orders     these
  manage.py delayq_resign --format 1      all queues go back to what the version before this one reads

To take a key out of use:
  1. Put the new one first: SECRET_KEY, with the old one in SECRET_KEY_FALLBACKS; or DELAYQ["KEYS"].
     Restart every process that schedules or runs jobs.
  2. Run this command.
  3. Remove the old key once the command says that it may go.
To go back to a version that reads an earlier format: run this command with --format, then start that version.
A queue moves to a later format by itself once all its workers read it, unless you chose one with --format.

Workers go on meanwhile. Each step is atomic, and takes some milliseconds; 100,000 jobs take some ten seconds.
You may interrupt the command at any moment, and run it again.

exit status:
  0 when nothing in these queues needs another key than the first, or another format than the chosen one
  1 when something does, when the format was refused, when the command was interrupted, or when the server did not
    answer; the last lines say which
"""
)


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy(
        "Use the first of the project's keys to sign all jobs that wait, are due, are held, or were given up.\n"
        "Jobs that run at the moment are signed as well, in case they are tried again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "queues",
            nargs="*",
            metavar="QUEUE",
            help=gettext('queue names; without any, all of DELAYQ["QUEUES"].'),
        )
        parser.add_argument(
            "--format",
            type=int,
            metavar="N",
            help=gettext("write this format from now on, and rewrite waiting jobs."),
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help=gettext(
                "change to a later format even if some workers do not read it; those claim nothing from then on."
            ),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._progress = ProgressLine(self.stderr, is_on=options["verbosity"] > 0)
        if options["force"] and options["format"] is None:
            raise CommandError("--force needs --format N.")
        try:
            settings, keyring = conf.get_settings(), conf.get_keyring()
            names = options["queues"] or sorted(settings.names)
            queues = settings.queues_of(*names)
            self._check_format(options["format"], keyring)
            client = own_clients.make()
        except DelayqError as error:
            raise CommandError(str(error)) from error
        try:
            # All queues begin before the first is rewritten, so that their schedulers notice at the same time.
            works = [self._begin(client, queue, keyring, options) for queue in queues]
            tallies = [
                self._write_anew(queue, *work)
                for queue, work in zip(queues, works, strict=True)
            ]
        finally:
            client.close()
        left = sorted(
            {each.name for each in settings.queues_of()}
            - {each.name for each in queues}
        )
        if not self._conclude(tallies, left, keyring, options["format"]):
            raise SystemExit(1)

    def _check_format(self, format: int | None, keyring: Keyring) -> None:
        if format is not None and format not in keyring.formats:
            raise CommandError(
                f"This version reads and writes {_formats(keyring)}. For --format {format}, run a version that knows it."
            )

    def _begin(
        self,
        client: Redis,
        queue: QueueSettings,
        keyring: Keyring,
        options: dict[str, Any],
    ) -> tuple[Resigning, Iterator[None]]:
        """Choose the format of a queue, if one is given; return what rewrites its jobs."""
        format: int | None = options["format"]
        if format is None:
            with self._explained():
                its_format = run(client, upgrading.read_format(queue.keys)).format
            self._check_readable(queue, keyring, its_format)
            signing = Resigning(client, queue, keyring)
            return signing, signing.steps()
        change = FormatChange(client, queue, keyring, format)
        with self._explained():
            found = change.begin(is_forced=options["force"])
        self._check_begun(queue, keyring, format, found, options["force"])
        return change.signing, change.steps()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            self._progress.end()
            what, message, hint = describe_fault(error)
            raise CommandError(
                f"{what} {hint}\n{message}\nThe steps done so far stand. Fix the problem, then run the command again."
            ) from error

    def _write_anew(
        self, queue: QueueSettings, signing: Resigning, steps: Iterator[None]
    ) -> Tally:
        try:
            with self._explained():
                total = signing.total()
                for _ in steps:
                    told = gettext("queue {queue}").format(queue=queue.name)
                    self._progress(told, signing.seen, total)
        except KeyboardInterrupt:
            self._progress.end()
            self.stdout.write(_told(queue.name, signing.tally))
            raise CommandError(
                "Interrupted. No step is half done; run the command again to go on."
            ) from None
        self._progress.end()
        self.stdout.write(_told(queue.name, signing.tally))
        return signing.tally

    def _check_readable(
        self, queue: QueueSettings, keyring: Keyring, its_format: int
    ) -> None:
        if its_format > keyring.formats[-1]:
            raise CommandError(
                f"Queue {queue.name} is in format {its_format}, and this version reads {_formats(keyring)}. Run this with a"
                " version that reads it."
            )

    def _check_begun(
        self,
        queue: QueueSettings,
        keyring: Keyring,
        format: int,
        found: FormatSet,
        is_forced: bool,
    ) -> None:
        self._check_readable(queue, keyring, found.before)
        if format > found.before and found.behind:
            behind = (
                f"{found.behind} of its worker processes cannot read format {format}"
            )
            if not is_forced:
                raise CommandError(
                    f"Queue {queue.name} stays in format {found.before}: {behind}. Update them first, or stop them; one that"
                    f" was killed counts for {ENROLLED_MS // 60_000} minutes. With --force they claim nothing there until"
                    " they are updated."
                )
            told = ngettext(
                "queue {queue}: {count} of its worker processes cannot read format {format}, and claims nothing now",
                "queue {queue}: {count} of its worker processes cannot read format {format}, and claim nothing now",
                found.behind,
            )
            self.stdout.write(
                told.format(
                    queue=queue.name, count=number_text(found.behind), format=format
                )
            )
        if format != found.before:
            self.stdout.write(
                gettext("queue {queue}: from format {before} to format {after}").format(
                    queue=queue.name, before=found.before, after=format
                )
            )

    def _conclude(
        self,
        tallies: Sequence[Tally],
        left: Sequence[str],
        keyring: Keyring,
        format: int | None,
    ) -> bool:
        """Print whether an older key may go; return whether it may."""
        first, *others = keyring.ids
        late = sum(tally.late for tally in tallies)
        missing = sorted({name for tally in tallies for name in tally.unknown})
        if late:
            template = (
                gettext(
                    "Not done: jobs signed with an older key keep coming, {count} during the last look. Restart the processes"
                    " that schedule them, with the new key first, and run this again."
                )
                if format is None
                else gettext(
                    "Not done: jobs in another format keep coming, {count} during the last look. Restart the processes that"
                    " schedule them, with the new key first, and run this again."
                )
            )
            self.stdout.write(template.format(count=number_text(late)))
        if missing:
            template = gettext(
                "Not done: jobs that need {keys} are not signed anew. Run this where it is known."
            )
            self.stdout.write(template.format(keys=list_text(missing)))
        unfit = sum(tally.unfit for tally in tallies)
        if unfit:
            template = ngettext(
                "Not done: {count} jobs contain something that the format cannot hold. They stay as they are, and are held"
                " for a worker that reads their format.",
                "Not done: {count} jobs contain something that the format cannot hold. They stay as they are, and are held"
                " for a worker that reads their format.",
                unfit,
            )
            self.stdout.write(template.format(count=number_text(unfit)))
        if late or unfit or any(name.startswith(OTHER_CODEC) for name in missing):
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
                gettext("{keys} may go once this has run for {queues} as well.")
                if left
                else gettext("{keys} may go.")
            )
            keys = list_text([repr(other) for other in others])
            told = template.format(keys=keys, queues=list_text(left) if left else "")
            done = f"{done} {told}"
        self.stdout.write(done)
        return not missing


def _formats(keyring: Keyring) -> str:
    return (
        f"the formats {_all_of(keyring.formats)}"
        if keyring.formats[1:]
        else f"format {keyring.formats[0]}"
    )


def _all_of(names: Any) -> str:
    *others, last = map(str, names)
    return f"{', '.join(others)} and {last}" if others else last


def _told(name: str, tally: Tally) -> str:
    told = [
        (gettext("{count} signed anew"), tally.signed, ""),
        (gettext("{count} already signed with the first key"), tally.current, ""),
    ]
    if tally.foreign:
        template = gettext("{count} that are not jobs of this project")
        told.append((template, tally.foreign, ""))
    if tally.unfit:
        template = gettext("{count} that the format cannot hold")
        told.append((template, tally.unfit, ""))
    template = gettext("{count} that need the {key}, which is not here")
    told += [(template, count, key) for key, count in sorted(tally.unknown.items())]
    if tally.released:
        told.append((gettext("{count} no longer held"), tally.released, ""))
    parts = [
        template.format(count=number_text(count), key=key)
        for template, count, key in told
    ]
    return gettext("queue {queue}: {counts}").format(
        queue=name, counts=", ".join(parts)
    )

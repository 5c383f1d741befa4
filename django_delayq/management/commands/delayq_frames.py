"""``manage.py delayq_frames``: show, rewrite, list and unlist the frames of a queue that Redisson uses."""

from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import closing, suppress
from shlex import quote
from typing import Any

from django.core.management.base import (
    CommandError,
    CommandParser,
)
from django.utils.translation import gettext_lazy
from redis.client import Redis
from redis.exceptions import NoPermissionError

from django_delayq import conf
from django_delayq.core import stored_pauses
from django_delayq.core.keys import DeliveryKeys
from django_delayq.exceptions import DelayqError
from django_delayq.management.command_errors import explained
from django_delayq.management.frames_report import (
    advise,
    describe,
    describe_list_plan,
    describe_listing,
    describe_plan,
    describe_rest,
    describe_tally,
    setting,
)
from django_delayq.management.help import CommandWithExamples
from django_delayq.management.progress_line import ProgressLine
from django_delayq.tools.frame_calls import ListBusy
from django_delayq.tools.insertion_list import Listing
from django_delayq.tools.reframe import Reframing
from django_delayq.tools.survey import Survey, similar_queues, take_survey
from django_delayq.translations import gettext, ngettext, say
from django_delayq.transport.clients import own_clients
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat
from django_delayq.wire.queue_keys import QueueKeys

EXAMPLES = gettext_lazy(
    """
examples:
  manage.py delayq_frames payments                            what lies there, what is stuck, and what to do
  manage.py delayq_frames payments --to 3.27.2 --dry-run      what it would rewrite for Java services on 3.27.2
  manage.py delayq_frames payments --to 3.27.2                rewrite; a stuck transfer continues by itself
  manage.py delayq_frames payments --to 3.27.2 --follow       the same while services on the old version still offer
  manage.py delayq_frames payments --list on                  put what waits into Redisson's list, once REDISSON is set
  manage.py delayq_frames payments --list off                 take it out of there, once INSERTION_LIST is off

Each step is atomic and takes some milliseconds. You may interrupt the command at any time, and run it again.

exit status:
  0 when no frame stops a Redisson of the given format, or no format was given
  1 when one does, or when the command could not find out
"""
)


def _format(text: str) -> FrameFormat:
    with suppress(ValueError):
        return FrameFormat(text)
    try:
        return FrameFormat.for_redisson(text)
    except DelayqError as error:
        raise ArgumentTypeError(f"{error}, or give a format: dLc0 or Bc0Lc0") from None


class Command(CommandWithExamples):
    examples = EXAMPLES
    summary = gettext_lazy(
        "Show the frames of a delayed queue, rewrite them for one version of Redisson, or update the queue's list after a change of INSERTION_LIST.\nRedisson up to 3.21.0 and Redisson from 3.21.1 on get stuck at each other's frames. Rewriting the frames frees both. The queue need not be in DELAYQ."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "queue",
            metavar="QUEUE",
            help=gettext(
                "name of the queue on the server, with the prefix that a NameMapper adds."
            ),
        )
        parser.add_argument(
            "--to",
            type=_format,
            metavar="VERSION",
            help=gettext(
                "rewrite frames to the format of this Redisson: a version such as 3.27.2, or dLc0 (up to 3.21.0) or Bc0Lc0 (from 3.21.1 on). Members that are not frames stop every Redisson, so they are quarantined. Without --to or --list the command changes nothing."
            ),
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help=gettext(
                "with --to or --list: show what the command would do, without changing anything."
            ),
        )
        parser.add_argument(
            "--drop-delivered",
            action="store_true",
            help=gettext(
                "with --to: first remove the frames that a stuck transfer has already delivered. These are due and missing from the delay queue. By default they stay, so that nothing is lost, and are delivered again. Do not use this option if other clients store elements without the delay queue: their frames look the same."
            ),
        )
        parser.add_argument(
            "--follow",
            action="store_true",
            help=gettext(
                "with --to: continue until interrupted, while services of the other generation still offer."
            ),
        )
        parser.add_argument(
            "--list",
            choices=("on", "off"),
            help=gettext(
                "update Redisson's list, which Java's size, contains, remove and readAll read. Change INSERTION_LIST or REDISSON of the queue and restart all processes first. on adds every waiting frame to the list; off removes them, but not frames that are only in the list. Either way, all elements still wait and are delivered as before."
            ),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["list"] and options["to"]:
            raise CommandError("--to and --list cannot be combined: give one")
        if options["to"] is None:
            for option in ("dry_run", "drop_delivered", "follow"):
                if options[option] and not (option == "dry_run" and options["list"]):
                    other = " or --list" if option == "dry_run" else ""
                    raise CommandError(
                        f"--{option.replace('_', '-')} needs --to VERSION{other}"
                    )
        if options["dry_run"] and options["follow"]:
            raise CommandError("--follow and --dry-run cannot be combined: give one")
        try:
            keys = conf.keys_of(options["queue"])
            if options["list"]:
                _check_setting(options["queue"], options["list"] == "on")
            client = own_clients.make()
        except DelayqError as error:
            raise CommandError(str(error)) from error
        self._changes = False
        self._progress = ProgressLine(self.stderr, is_on=options["verbosity"] > 0)
        with closing(client), self._progress.of_steps(), explained(self._advise):
            try:
                status = self._run(client, keys, options)
            except ListBusy as error:
                raise CommandError(f"{error}.") from error
        if status:
            raise SystemExit(status)

    def _advise(self) -> str:
        rest = (
            "The steps done so far stand." if self._changes else "Nothing was changed."
        )
        return f"{rest} Fix the problem, then run the command again."

    def _run(self, client: Redis, keys: DeliveryKeys, options: dict[str, Any]) -> int:
        target: FrameFormat | None = options["to"]
        name = keys.queue.name
        survey = take_survey(client, keys, progress=self._progress)
        self._progress.end()
        if survey.is_empty and not options["follow"]:
            self._say(*self._describe_absence(client, keys.queue))
            return 0
        if options["list"]:
            return self._list(client, keys, survey, options)
        if target is None:
            pauses = run(client, stored_pauses.pauses(keys))
            self._say(
                *describe(survey, name),
                *(say(pause.words) for pause in pauses),
                "",
                *advise(survey, name),
            )
            return 0
        if options["dry_run"]:
            self._say(*describe_plan(survey, target, options["drop_delivered"]))
            return _status(survey, target)
        self._changes = True
        reframing = Reframing(client, keys, target, self._progress)
        try:
            if options["drop_delivered"]:
                reframing.drop_delivered(survey.delivered)
            reframing.run()
            if options["follow"]:
                self._follow(reframing)
        except KeyboardInterrupt:
            if not options["follow"]:
                raise
        finally:
            self._progress.end()
            self._say(*describe_tally(reframing.tally, target))
        left = take_survey(client, keys, progress=self._progress)
        self._progress.end()
        self._say(*describe_rest(left, target))
        return _status(left, target)

    def _list(
        self,
        client: Redis,
        keys: DeliveryKeys,
        survey: Survey,
        options: dict[str, Any],
    ) -> int:
        is_on = options["list"] == "on"
        if options["dry_run"]:
            self._say(*describe_list_plan(survey, is_on))
            return 0
        self._changes = True
        listing = Listing(client, keys, self._progress)
        try:
            if is_on:
                listing.fill()
            else:
                listing.empty()
        finally:
            self._progress.end()
            self._say(*describe_listing(listing, is_on))
        if not is_on:
            left = client.llen(keys.queue.delay_queue) - listing.alone
            if left > 0:
                self._say(
                    ngettext(
                        "{number} frame was added to the list meanwhile, by Java or by a process with the old setting.",
                        "{number} frames were added to the list meanwhile, by Java or by a process with the old setting.",
                        left,
                    )
                )
        return 0

    def _follow(self, reframing: Reframing) -> None:
        self._progress.end()
        self._say(
            gettext(
                "Rewritten so far: {count}. Still running; press Ctrl-C to stop.",
                count=reframing.tally.rewritten,
            )
        )
        said = reframing.tally.changed
        for tally in reframing.follow():
            if tally.changed != said:
                said = tally.changed
                self._progress(
                    gettext(
                        "rewritten since the start: {count}", count=tally.rewritten
                    ),
                    0,
                    0,
                )

    def _describe_absence(self, client: Redis, queue: QueueKeys) -> Iterator[str]:
        yield gettext(
            "Queue {name!r} is empty: none of its keys exists.", name=queue.name
        )
        try:
            similar = similar_queues(client, queue.destination, progress=self._progress)
        except NoPermissionError as error:
            yield gettext(
                "The account may not search for queues with similar names: {error}",
                error=error,
            )
            return
        finally:
            self._progress.end()
        if not similar:
            yield gettext(
                "No other queue's name contains this one. Redisson deletes the keys of an empty queue."
            )
            return
        yield gettext(
            "These names contain it. A NameMapper of Redisson may have added the rest:"
        )
        for other in similar:
            yield f"  manage.py delayq_frames {quote(other)}"
        yield gettext("Use the name with its prefix, here and in the settings:")
        yield setting(similar[0], {})

    def _say(self, *lines: str) -> None:
        for line in lines:
            self.stdout.write(line)
        self.stdout.flush()


def _check_setting(name: str, is_on: bool) -> None:
    queue = conf.get_settings().find(name)
    if queue is None or queue.keeps_list == is_on:
        return
    path = f"DELAYQ['QUEUES'][{name!r}]"
    if is_on:
        raise CommandError(
            f"{path} keeps no list, so jobs scheduled from now on would be missing from it. Set REDISSON to the version"
            " of your Java services, or INSERTION_LIST to True, restart all processes, and run this again."
        )
    raise CommandError(
        f"{path} keeps the list, which would fill up again. Set INSERTION_LIST to False, restart all processes, and run"
        " this again."
    )


def _status(survey: Survey, target: FrameFormat) -> int:
    return 1 if survey.foreign(target) else 0

"""Problems of the server itself: version, role, memory, clock, persistence."""

from collections.abc import Iterator

from django_delayq.health.facts import Facts
from django_delayq.health.problem import Level, ServerProblem
from django_delayq.wording import gettext, ngettext

#: From this share of its memory on, a server is nearly full.
NEARLY_OUT_OF_MEMORY = 0.9
#: Clocks that are further apart than this are reported: a job for a moment of the day begins by the server's.
CLOCK_SKEW_MS = 2_000
#: The oldest servers that know every command of ours.
OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}


def find_in_facts(facts: Facts) -> Iterator[ServerProblem]:
    """Report what a server's word about itself shows: all but its persistence, which is a matter of choice."""
    yield from _version(facts)
    yield from find_role(facts)
    yield from _memory(facts)
    yield from _nearly_out_of_memory(facts)
    yield from _clock_skew(facts)


def _version(facts: Facts) -> Iterator[ServerProblem]:
    if facts.version and facts.version < (oldest := OLDEST[facts.product]):
        yield ServerProblem(
            Level.ERROR,
            gettext(
                "The server is {product} {version}. The oldest supported version is {product} {oldest}.",
                product=facts.product,
                version=".".join(map(str, facts.version)),
                oldest=".".join(map(str, oldest)),
            ),
            gettext("Use a newer server: Redis 6.2 or later, or Valkey 7.2 or later."),
        )


def find_role(facts: Facts) -> Iterator[ServerProblem]:
    """Report a server that is no primary."""
    if facts.role not in ("", "primary"):
        yield ServerProblem(
            Level.ERROR,
            gettext(
                "The server is a {role}: it refuses writes, or loses them with the next synchronisation.",
                role=facts.role,
            ),
            gettext("Name the primary in DELAYQ['CONNECTION']."),
        )


def _memory(facts: Facts) -> Iterator[ServerProblem]:
    hint = gettext(
        "Set maxmemory-policy to noeviction: a full server then refuses new jobs instead of dropping old ones."
    )
    named: dict[str, str | int] = {
        "policy": facts.policy,
        "limit": facts.maxmemory or 0,
    }
    is_known = facts.maxmemory is not None
    if facts.policy.startswith("allkeys-"):
        if facts.maxmemory == 0:
            yield ServerProblem(
                Level.WARNING,
                gettext(
                    "maxmemory-policy is {policy!r}: as soon as maxmemory is set, the server may drop whole queues.",
                    **named,
                ),
                hint,
            )
        else:
            yield ServerProblem(
                Level.ERROR,
                gettext(
                    "maxmemory-policy is {policy!r} and maxmemory is {limit:,} bytes: a full server drops whole queues.",
                    **named,
                )
                if is_known
                else gettext(
                    "maxmemory-policy is {policy!r}: a full server drops whole queues.",
                    **named,
                ),
                hint,
            )
    elif facts.policy.startswith("volatile-") and facts.maxmemory != 0:
        yield ServerProblem(
            Level.WARNING,
            gettext(
                "maxmemory-policy is {policy!r} and maxmemory is {limit:,} bytes: a full server drops the results of"
                " jobs before their time. Jobs are safe.",
                **named,
            )
            if is_known
            else gettext(
                "maxmemory-policy is {policy!r}: a full server drops the results of jobs before their time. Jobs are"
                " safe.",
                **named,
            ),
            hint,
        )


def _nearly_out_of_memory(facts: Facts) -> Iterator[ServerProblem]:
    used, limit = facts.used_memory, facts.maxmemory
    # Above its limit it is full, which `find_missing_rights` finds by what it refuses.
    if limit and used is not None and NEARLY_OUT_OF_MEMORY * limit <= used < limit:
        yield ServerProblem(
            Level.WARNING,
            gettext(
                "The server uses {used:,} bytes of {limit:,} (maxmemory). When it is full, it takes no new jobs.",
                used=used,
                limit=limit,
            ),
            gettext(
                "Raise maxmemory: CONFIG SET maxmemory BYTES, and the same in the server's configuration."
            ),
        )


def _clock_skew(facts: Facts) -> Iterator[ServerProblem]:
    skew_ms = facts.skew_ms
    if skew_ms is None or abs(skew_ms) < CLOCK_SKEW_MS:
        return
    seconds = abs(skew_ms) // 1000
    yield ServerProblem(
        Level.WARNING,
        ngettext(
            "The server's clock is {number:,} s ahead of this machine's clock. Jobs that are scheduled for a date and time start early.",
            "The server's clock is {number:,} s ahead of this machine's clock. Jobs that are scheduled for a date and time start early.",
            seconds,
        )
        if skew_ms > 0
        else ngettext(
            "The server's clock is {number:,} s behind this machine's clock. Jobs that are scheduled for a date and time start late.",
            "The server's clock is {number:,} s behind this machine's clock. Jobs that are scheduled for a date and time start late.",
            seconds,
        ),
        gettext("Synchronize both clocks with NTP: timedatectl set-ntp true."),
    )


def find_persistence(facts: Facts) -> Iterator[ServerProblem]:
    if facts.is_aof_on is not False:
        return
    if facts.snapshots:
        what = f"Jobs scheduled since the last snapshot (save {facts.snapshots!r}) are lost"
    elif facts.snapshots == "":
        what = "There are no snapshots either: all jobs are lost"
    else:
        what = "Jobs scheduled since the last snapshot, if there is one, are lost"
    yield ServerProblem(
        Level.WARNING,
        f"The append-only file is off (appendonly 'no'). {what} when the server crashes.",
        "Set appendonly to yes, and appendfsync to everysec or always.",
    )


def find_unknowns(facts: Facts) -> Iterator[ServerProblem]:
    unknown = [
        name
        for name, is_known in (
            ("the version", bool(facts.version)),
            ("whether it is a primary", bool(facts.role)),
            ("maxmemory-policy (has to be noeviction)", bool(facts.policy)),
            ("the append-only file (ought to be on)", facts.is_aof_on is not None),
        )
        if not is_known
    ]
    if unknown:
        yield ServerProblem(
            Level.INFO,
            f"Could not be checked, because the server allows neither INFO nor CONFIG GET: {', '.join(unknown)}.",
            "Look it up where the server is managed, or allow the user INFO.",
        )

"""How far a job that runs is, as it is stored."""

import pytest

from django_delayq.core import progress
from django_delayq.core import sweep as sweep_calls
from django_delayq.core.claim import Leased
from django_delayq.core.progress import JobProgress, StoredProgress
from tests.core.rig import T0, Rig


def say(rig: Rig, job: Leased, done: float | None) -> None:
    """Say how far a job is; None: its attempt has ended."""
    stored = b"" if done is None else progress.encode(StoredProgress(done, 9, "file"))
    said = JobProgress(job.token, job.fence, stored)
    rig.run(progress.note_progress(rig.keys, [said]))


def done(rig: Rig, job: Leased) -> float | None:
    found = rig.run(progress.read_progress(rig.keys, job.token))
    return None if found is None else found.progress.done


@pytest.fixture
def job(rig: Rig) -> Leased:
    rig.schedule({"a": 0})
    return rig.lease()


def test_last_word_of_a_job_is_read(rig: Rig, job: Leased) -> None:
    say(rig, job, 1)
    rig.now = 7
    say(rig, job, 2.5)

    found = rig.run(progress.read_progress(rig.keys, job.token))

    assert found == (StoredProgress(2.5, 9, "file"), T0 + 7)


def test_only_the_holder_of_the_lease_writes(rig: Rig, job: Leased) -> None:
    stranger = Leased(job.token, 0, 0, T0, b"", False, b"another-")
    say(rig, stranger, 5)
    assert done(rig, job) is None
    say(rig, job, 1)

    say(rig, stranger, None)

    assert done(rig, job) == 1


def test_progress_goes_with_the_attempt(rig: Rig, job: Leased) -> None:
    say(rig, job, 1)
    rig.acknowledge(job)
    assert done(rig, job) is None

    say(rig, job, None)

    assert not rig.client.exists(rig.keys.progress)


def test_nothing_is_written_after_the_end(rig: Rig, job: Leased) -> None:
    rig.acknowledge(job)

    say(rig, job, 1)

    assert not rig.client.exists(rig.keys.progress)


def test_sweep_forgets_what_a_killed_process_has_left(rig: Rig, job: Leased) -> None:
    rig.schedule({"b": 0})
    other = rig.lease()
    say(rig, job, 1)
    say(rig, other, 2)
    rig.acknowledge(job)

    swept = rig.run(sweep_calls.sweep(rig.keys, "progress"))

    assert swept == (0, 1)
    assert rig.client.hkeys(rig.keys.progress) == [other.token.encode()]


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"text",
        b"12 ",
        b"x {}",
        b"5 \xff",
        b'5 {"done":"a"}',
        b'-1 {"done":1}',
        b'1e3 {"done":1}',
        b'999999999999999999 {"done":1}',
    ],
)
def test_what_others_have_written_is_nothing(
    rig: Rig, job: Leased, stored: bytes
) -> None:
    rig.client.hset(rig.keys.progress, job.token, stored)

    assert done(rig, job) is None


def test_later_version_may_say_more(rig: Rig, job: Leased) -> None:
    rig.client.hset(rig.keys.progress, job.token, b'5 {"done":1,"mood":2}')

    assert done(rig, job) == 1

"""In a `TestCase`, jobs go when the outermost `atomic()` of the code's own ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection, transaction
from django.db.models.signals import post_delete
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from django_delayq import Batch, JobNotFound, State, get_job, schedule_many
from django_delayq.jobs import outbox
from django_delayq.outbox import row_writer
from django_delayq.outbox.part import OutboxPart
from django_delayq.testing import captured, frozen_queue, immediate
from tests.testing.samples import RAN, committed, double, failing


@contextmanager
def rolled_back(**options: Any) -> Iterator[None]:
    with transaction.atomic(**options):
        yield
        transaction.set_rollback(True)


class CapturedTest(TestCase):
    def test_job_outside_of_the_codes_own_transaction_goes_at_once(self) -> None:
        with captured() as jobs:
            for task in (double, committed, double.using(on_commit=False)):
                assert task.schedule(900, 1).state is State.SCHEDULED
        assert len(jobs) == 3
        assert connection.run_on_commit == []

    def test_jobs_go_when_the_outermost_transaction_of_the_code_ends(self) -> None:
        with captured() as jobs:
            with transaction.atomic():
                with transaction.atomic():
                    job = double.schedule(900, 1)
                    many = schedule_many([double.prepare(900, n) for n in (2, 3)])
                Batch(double.prepare(0, 9)).schedule([double.prepare(900, 4)])
                assert {each.state for each in (job, *many)} == {State.UNCOMMITTED}
                with pytest.raises(JobNotFound):
                    get_job(job.id)
                jobs.assert_not_scheduled()
            assert [job.args for job in jobs] == [[1], [2], [3], [9], [4]]
            assert job.refresh() is State.SCHEDULED

    def test_rollback_of_the_whole_or_of_a_part_drops_its_jobs(self) -> None:
        with captured() as jobs:
            with rolled_back():
                double.schedule(900, 1)
            with transaction.atomic():
                double.schedule(900, 2)
                with rolled_back():
                    double.schedule(900, 3)
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                double.schedule(1 / 0, 4)
        assert [job.args for job in jobs] == [[2]]

    def test_other_hooks_are_left_to_the_test(self) -> None:
        ran: list[str] = []
        with captured() as jobs, self.captureOnCommitCallbacks(execute=True):
            with transaction.atomic():
                transaction.on_commit(lambda: ran.append("hook"))
                transaction.on_commit(lambda: double.schedule(900, 2))
                double.schedule(900, 1)
            assert (len(jobs), ran) == (1, [])
        assert ran == ["hook"]
        assert [job.args for job in jobs] == [[1], [2]]

    def test_job_of_a_signal_handler_goes_with_the_write(self) -> None:
        # Django deletes in a transaction without a savepoint.
        def handle(**kwargs: Any) -> None:
            double.schedule(900, 1)
            seen.append(len(jobs))

        seen: list[int] = []
        user = User.objects.create(username="goes")
        user.groups.add(Group.objects.create(name="with a user"))
        post_delete.connect(handle, sender=User)
        try:
            with captured() as jobs:
                user.delete()
        finally:
            post_delete.disconnect(handle, sender=User)
        assert seen == [0]
        assert len(jobs) == 1

    def test_rollback_without_a_savepoint_drops_its_jobs(self) -> None:
        with captured() as jobs:
            with rolled_back(savepoint=False):
                double.schedule(900, 1)
            transaction.set_rollback(False)
            with transaction.atomic():
                double.schedule(900, 2)
        assert [job.args for job in jobs] == [[2]]

    def test_transaction_of_another_database_is_not_asked(self) -> None:
        with captured() as jobs:
            with transaction.atomic():
                double.using(on_commit="other").schedule(900, 1)
                assert len(jobs) == 1

    databases = {"default", "other"}  # noqa: RUF012


class ImmediateTest(TestCase):
    def test_job_runs_when_the_transaction_ends(self) -> None:
        with immediate():
            with transaction.atomic():
                double.schedule(900, 1)
                assert RAN == []
            assert RAN == [("double", 1)]

    def test_what_a_task_raises_comes_once_all_have_run(self) -> None:
        def commit() -> None:
            with transaction.atomic():
                failing.schedule(900, 1)
                double.schedule(900, 2)

        with immediate(), pytest.raises(ValueError, match="no 1"):
            commit()
        assert RAN == [("failing", 1), ("double", 2)]


class FrozenTest(TestCase):
    def test_delay_counts_from_the_end_of_the_transaction(self) -> None:
        with frozen_queue() as q:
            with transaction.atomic():
                double.schedule(900, 1)
                assert q.advance(1_000) == []
            assert q.advance(899) == []
            assert len(q.advance(1)) == 1


class OutboxTest(TestCase):
    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "_installed", OutboxPart())
        monkeypatch.setattr(row_writer, "_quiet_until_ms", {})

    def test_row_outside_of_the_codes_own_transaction_is_sent_at_once(self) -> None:
        with captured() as jobs:
            double.using(outbox=True).schedule(900, 1)
            assert len(jobs) == 1
            with rolled_back():
                double.using(outbox=True).schedule(900, 2)
        assert len(jobs) == 1


class SetUpTest(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        with captured() as jobs:
            with transaction.atomic():
                double.schedule(900, 1)
                assert len(jobs) == 0
            cls.count = len(jobs)

    def test_data_of_the_class_is_committed_as_well(self) -> None:
        assert self.count == 1

    count = 0


class CommittingTest(TransactionTestCase):
    def test_real_commit_sends_the_jobs_once(self) -> None:
        with captured() as jobs, transaction.atomic():
            double.schedule(900, 1)
            assert len(jobs) == 0
        assert len(jobs) == 1


class NoDatabaseTest(SimpleTestCase):
    def test_no_database_is_asked(self) -> None:
        with captured() as jobs:
            double.schedule(900, 1)
            committed.schedule(900, 2)
            schedule_many([committed.prepare(900, 3)])
        assert len(jobs) == 3

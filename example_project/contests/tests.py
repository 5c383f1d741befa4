from datetime import timedelta

from django.db import transaction
from django.test import TestCase
from django.utils import timezone
from django_delayq import JobNotFound, State, get_job

from .models import Contest
from .tasks import publish_contest


class ContestTests(TestCase):
    def announce(self, *, seconds=3600):
        publish_at = timezone.localtime() + timedelta(seconds=seconds)
        publish_at = publish_at.replace(microsecond=0)
        self.client.post(
            "/contests/",
            {"title": "Autumn cup", "publish_at": publish_at.isoformat()[:19]},
        )
        contest = Contest.objects.get()
        self.assertEqual(contest.publish_at, publish_at)
        return contest

    def post(self, contest, verb, **data):
        # TestCase rolls everything back, so it only simulates the commit for other hooks.
        with self.captureOnCommitCallbacks(execute=True):
            return self.client.post(
                f"/contests/{contest.pk}/{verb}/", data, follow=True
            )

    def test_announcing_schedules_the_publication(self):
        contest = self.announce()

        job = get_job(contest.job_id)

        self.assertEqual(job.state, State.SCHEDULED)
        self.assertEqual(job.start_time, contest.publish_at)
        self.assertEqual((job.task, job.args), (publish_contest.name, [contest.pk]))
        self.assertEqual(contest.status, "scheduled")

    def test_a_job_is_not_sent_before_the_commit(self):
        with transaction.atomic():
            contest = self.announce()
            with self.assertRaises(JobNotFound):
                get_job(contest.job_id)

        self.assertEqual(get_job(contest.job_id).state, State.SCHEDULED)

    def test_the_job_publishes_once(self):
        contest = self.announce()

        publish_contest(contest.pk)
        contest.refresh_from_db()
        first = contest.published_at
        publish_contest(contest.pk)
        contest.refresh_from_db()

        self.assertEqual(contest.status, "published")
        self.assertEqual(contest.published_at, first)

    def test_a_contest_can_be_moved(self):
        contest = self.announce()

        answer = self.post(contest, "move", publish_at="2100-01-01T00:00:00")

        self.assertContains(answer, "Moved.")
        contest.refresh_from_db()
        self.assertEqual(timezone.localtime(contest.publish_at).year, 2100)
        self.assertEqual(get_job(contest.job_id).start_time, contest.publish_at)

    def test_what_is_no_time_moves_nothing(self):
        contest = self.announce()

        answer = self.post(contest, "move", publish_at="soon")

        self.assertContains(answer, "That is not a valid time.")
        self.assertEqual(get_job(contest.job_id).start_time, contest.publish_at)

    def test_a_withdrawn_contest_is_not_published(self):
        contest = self.announce()

        answer = self.post(contest, "withdraw")
        publish_contest(contest.pk)  # as if the job had started in that very moment

        self.assertContains(answer, "Withdrawn.")
        contest.refresh_from_db()
        self.assertEqual(contest.status, "withdrawn")
        self.assertEqual(get_job(contest.job_id).state, State.CANCELLED)

    def test_a_published_contest_is_neither_moved_nor_withdrawn(self):
        contest = self.announce()
        get_job(contest.job_id).cancel()  # it ran, in other words
        publish_contest(contest.pk)

        moved = self.post(contest, "move", publish_at="2100-01-01T00:00:00")
        withdrawn = self.post(contest, "withdraw")

        self.assertContains(moved, "Too late")
        self.assertContains(withdrawn, "Too late")
        contest.refresh_from_db()
        self.assertEqual(contest.status, "published")
        self.assertNotEqual(timezone.localtime(contest.publish_at).year, 2100)

    def test_the_pages_show_when_it_was_published(self):
        contest = self.announce(seconds=-1)
        publish_contest(contest.pk)

        self.assertContains(self.client.get("/contests/"), "published")
        self.assertContains(self.client.get(f"/contests/{contest.pk}/"), "s later than")

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from unittest import mock

from django.test import SimpleTestCase, TestCase
from django_delayq import EndedJob, State
from redis.exceptions import ConnectionError as RedisConnectionError

from .chart import Chart
from .figures import figures_of

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def ended(late_ms, *, ago_s=10.0, queue="orders", outcome=State.SUCCEEDED, now=NOW):
    at = now - timedelta(seconds=ago_s)
    return EndedJob(f"{queue}:x", queue, "t", outcome, at, late_ms, 1.0, 1, "")


class ChartTests(SimpleTestCase):
    def test_now_is_at_the_right_and_the_span_at_the_left(self):
        chart = Chart([ended(1, ago_s=0), ended(1, ago_s=60)], NOW)

        self.assertEqual([mark.x for mark in chart.marks], [chart.RIGHT, chart.LEFT])

    def test_the_span_has_room_for_the_oldest_job_but_none_for_jobs_of_long_ago(self):
        for ago_s, first in ((30, "−1 min"), (61, "−2 min"), (301, "−10 min")):
            chart = Chart([ended(1, ago_s=ago_s)], NOW)

            self.assertEqual(chart.moments[-1].says, first)
            self.assertEqual(len(chart.marks), 1)

        self.assertEqual(Chart([ended(1, ago_s=601)], NOW).marks, [])

    def test_each_level_is_ten_times_the_one_below(self):
        chart = Chart([], NOW)

        heights = [level.at for level in chart.levels]
        steps = [below - above for below, above in pairwise(heights)]
        self.assertEqual(heights[0], chart.BOTTOM)
        self.assertEqual(heights[-1], chart.TOP)
        self.assertLess(max(steps) - min(steps), 0.2)

    def test_the_levels_reach_the_worst_job(self):
        self.assertEqual(Chart([ended(5)], NOW).levels[-1].says, "100 ms")
        self.assertEqual(Chart([ended(450)], NOW).levels[-1].says, "1 s")

    def test_what_is_beyond_the_levels_stands_at_their_ends(self):
        chart = Chart([ended(0), ended(3_600_000)], NOW)

        self.assertEqual([mark.y for mark in chart.marks], [chart.BOTTOM, chart.TOP])

    def test_a_clock_that_is_behind_shows_no_job_in_the_future(self):
        [mark] = Chart([ended(1, ago_s=-2)], NOW).marks

        self.assertEqual(mark.x, Chart.RIGHT)

    def test_a_job_that_was_tried_again_has_no_mark(self):
        self.assertEqual(Chart([ended(None)], NOW).marks, [])


class FiguresTests(SimpleTestCase):
    def test_they_are_of_the_jobs_whose_lateness_is_known(self):
        jobs = [ended(late_ms) for late_ms in (3, None, 1, 200)]

        self.assertEqual(figures_of(jobs), (3, 3, 200))

    def test_there_are_none_without_such_jobs(self):
        self.assertIsNone(figures_of([ended(None)]))


class PageTests(TestCase):
    def page_of(self, jobs, **headers):
        with mock.patch("lateness.views.last_jobs", return_value=jobs):
            return self.client.get("/lateness/", headers=headers)

    def test_each_queue_has_a_shape_of_its_own(self):
        now = datetime.now(UTC)
        queues = ("contests", "orders", "notifications", "delays", "sample")
        page = self.page_of([ended(2, queue=queue, now=now) for queue in queues])

        chart = re.search(
            r"<svg class=\"chart\".*?</svg>", page.content.decode(), re.DOTALL
        )[0]
        marks = re.findall(r"<(circle|path) (\S+ \S+) .*?class=\"mark", chart)
        self.assertEqual(len(marks), 5)
        shapes = {
            tag + re.sub(r"[-\d.]+ [-\d.]+", "", at, count=1) for tag, at in marks
        }
        self.assertEqual(len(shapes), 5)

    def test_what_it_draws_it_says_as_well(self):
        now = datetime.now(UTC)
        page = self.page_of([ended(2, now=now), ended(40, now=now)])

        self.assertContains(
            page, "2 jobs: half began at most 21.0 ms late, the worst 40.0 ms."
        )
        self.assertContains(page, "orders, ")
        self.assertContains(page, '<th scope="row">')

    def test_programs_get_the_figures(self):
        now = datetime.now(UTC)
        page = self.page_of([ended(2, now=now)], accept="application/json")

        self.assertEqual(
            page.json()["queues"],
            {"orders": {"jobs": 1, "median_ms": 2, "worst_ms": 2}},
        )

    def test_it_is_empty_before_the_first_job(self):
        self.assertContains(self.page_of([]), "No job has ended yet.")

    def test_it_says_that_the_server_is_down(self):
        down = RedisConnectionError("nobody is there")
        with mock.patch("lateness.views.last_jobs", side_effect=down):
            page = self.client.get("/lateness/")

        self.assertContains(page, "does not answer: nobody is there")

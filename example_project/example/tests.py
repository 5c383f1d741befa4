import re
from datetime import timedelta
from html.parser import HTMLParser
from unittest import mock

from django.core.management import CommandError, call_command
from django.test import SimpleTestCase, TestCase, override_settings
from django.utils import timezone
from redis.exceptions import ConnectionError as RedisConnectionError

from contests import announcing
from contests.models import Contest
from notifications import trading
from notifications.models import Trade
from orders import ordering
from orders.models import Order

from .templatetags.live import duration, in_words

PAGES = ("/contests/", "/orders/", "/trades/", "/delays/", "/lateness/")


class Elements(HTMLParser):
    """The elements of a page with their attributes, the text within each, and which are never closed."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self, page):
        super().__init__()
        self.found, self.open = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), []))
        if tag not in self.VOID:
            self.open.append(self.found[-1])

    def handle_endtag(self, tag):
        opened, _, _ = self.open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}> at {self.getpos()}"

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs), []))

    def handle_data(self, data):
        for _, _, text in self.open:
            text.append(data)


class SiteTests(TestCase):
    def setUp(self):
        in_an_hour = timezone.now() + timedelta(hours=1)
        self.contest = Contest(title="Autumn cup", publish_at=in_an_hour)
        announcing.announce(self.contest)
        self.order = Order(item="Tea")
        ordering.place(self.order)
        self.trade = Trade(symbol="ACME", quantity=10)
        trading.make(self.trade)
        self.pages = (
            "/",
            *PAGES,
            f"/contests/{self.contest.pk}/",
            f"/orders/{self.order.pk}/",
            f"/trades/{self.trade.pk}/",
        )

    def elements(self, page):
        answer = self.client.get(page)
        self.assertEqual(answer.status_code, 200, page)
        elements = Elements(answer.content.decode())
        self.assertEqual(elements.open, [], page)
        return elements.found

    def test_the_home_page_leads_to_every_app(self):
        answer = self.client.get("/")

        for page in (*PAGES, "/admin/"):
            self.assertContains(answer, f'href="{page}"')

    def test_the_home_page_says_how_much_there_is_and_what_is_next(self):
        answer = self.client.get("/")

        numbers = re.findall(r"<dt>([^<]+)</dt><dd>(\d+)</dd>", answer.content.decode())
        self.assertEqual(
            [(name, int(number)) for name, number in numbers[:6]],
            [
                ("scheduled", 1),
                ("published", 0),
                ("to be paid", 1),
                ("paid", 0),
                ("cancelled", 0),
                ("not sent", 1),
            ],
        )
        self.assertContains(answer, "Autumn cup: <time data-countdown")
        self.assertContains(answer, "Tea: cancelled in <time data-countdown")

    def test_the_home_page_says_that_the_server_is_down_and_shows_the_rest(self):
        down = RedisConnectionError("nobody is there")
        with mock.patch("example.views.last_jobs", side_effect=down):
            answer = self.client.get("/")

        self.assertContains(answer, "does not answer: nobody is there")
        self.assertContains(answer, "Autumn cup")

    def test_no_page_has_a_script_or_a_style_inside(self):
        for page in self.pages:
            with self.subTest(page):
                for tag, attributes, text in self.elements(page):
                    self.assertNotEqual(tag, "style")
                    self.assertFalse(tag == "script" and "".join(text).strip())
                    self.assertEqual(
                        [name for name in attributes if name.startswith("on")], []
                    )
                    self.assertNotIn("style", attributes)

    def test_ids_are_used_once_a_page(self):
        for page in self.pages:
            ids = [found["id"] for _, found, _ in self.elements(page) if "id" in found]

            self.assertEqual(len(ids), len(set(ids)), page)

    def test_every_page_has_a_title_of_its_own_and_one_heading(self):
        titles = set()
        for page in self.pages:
            elements = self.elements(page)
            titles.add(title_of(elements))
            headings = [tag for tag, _, _ in elements if tag == "h1"]
            self.assertEqual(headings, ["h1"], page)

        self.assertEqual(len(titles), len(self.pages))

    def test_the_page_that_is_shown_is_marked_in_the_menu(self):
        for page in self.pages[1:]:
            current = [
                attributes["href"]
                for tag, attributes, _ in self.elements(page)
                if tag == "a" and "aria-current" in attributes
            ]

            self.assertEqual(current, [f"/{page.split('/')[1]}/"])

    def test_every_field_has_a_label(self):
        for page in self.pages:
            elements = self.elements(page)
            labelled = {
                found.get("for") for tag, found, _ in elements if tag == "label"
            }
            fields = [
                found.get("id")
                for tag, found, _ in elements
                if tag == "input" and found.get("type") != "hidden"
            ]

            self.assertLessEqual(set(fields), labelled, page)

    def test_without_scripts_a_page_is_loaded_anew_or_says_how(self):
        for page in self.pages:
            self.assertContains(self.client.get(page), "<noscript>Scripts are off")
        # Not while somebody fills in a form.
        for page in ("/", "/lateness/", *self.pages[-3:]):
            self.assertContains(self.client.get(page), 'http-equiv="refresh"')
        for page in ("/contests/", "/orders/", "/trades/", "/delays/"):
            self.assertNotContains(self.client.get(page), 'http-equiv="refresh"')

    def test_the_policy_allows_files_of_this_site_and_what_has_the_nonce(self):
        first, second = (
            self.client.get("/")["Content-Security-Policy"] for _ in range(2)
        )

        self.assertIn("default-src 'self';", first)
        self.assertNotIn("unsafe", first)
        self.assertRegex(first, r"style-src 'self' 'nonce-[\w-]{22}';")
        self.assertNotEqual(first, second)

    @override_settings(DEBUG=True)
    def test_the_page_of_an_error_keeps_its_looks(self):
        self.assertNotIn("Content-Security-Policy", self.client.get("/nowhere/"))


def title_of(elements):
    return next("".join(text) for tag, _, text in elements if tag == "title")


class WordsTests(SimpleTestCase):
    def test_a_countdown_is_read_at_a_glance(self):
        for seconds, words in (
            (0.2, "0:01"),
            (59, "0:59"),
            (60, "1:00"),
            (3599.5, "1:00:00"),
            (3723, "1:02:03"),
            (86_400 * 2 + 3 * 3600 + 245, "2 d 03:04:05"),
            (0, "now"),
            (-5, "now"),
        ):
            self.assertEqual(in_words(timedelta(seconds=seconds)), words)

    def test_a_duration_has_the_unit_that_fits(self):
        self.assertEqual(duration(1.449), "1.4 ms")
        self.assertEqual(duration(999.9), "999.9 ms")
        self.assertEqual(duration(55_822.1), "55.8 s")


class AdministratorTests(TestCase):
    @override_settings(DEBUG=True)
    def test_the_demo_has_an_administrator(self):
        call_command("demo_admin", verbosity=0)
        call_command("demo_admin", verbosity=0)

        self.assertTrue(self.client.login(username="demo", password="demo"))
        self.assertEqual(self.client.get("/admin/").status_code, 200)

    def test_nobody_else_has_it(self):
        with self.assertRaisesMessage(CommandError, "DEBUG only"):
            call_command("demo_admin")

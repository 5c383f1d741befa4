from django.test import Client, TestCase

from .models import Delay
from .tasks import receive

JSON = {"accept": "application/json"}
PAGE = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class EndpointTests(TestCase):
    def post(self, query):
        # Like curl: no cookie, no token, and any kind of answer.
        client = Client(enforce_csrf_checks=True, headers={"accept": "*/*"})
        return client.post(f"/delays/{query}")

    def test_an_element_is_offered(self):
        answer = self.post("?data=a&expire=30000")

        self.assertEqual(answer.status_code, 202)
        self.assertEqual(
            (answer.json()["data"], answer.json()["asked_ms"]), ("a", 30000)
        )

    def test_a_form_is_as_good_as_a_query(self):
        answer = self.client.post(
            "/delays/", {"data": "a", "expire": "30000"}, headers=JSON
        )

        self.assertEqual(answer.status_code, 202)

    def test_a_browser_is_led_back_to_the_page(self):
        answer = self.client.post(
            "/delays/", {"data": "a", "expire": "30000"}, headers=PAGE
        )

        self.assertRedirects(answer, "/delays/")

    def test_a_browser_is_shown_the_errors_beside_the_form(self):
        answer = self.client.post(
            "/delays/", {"data": "a", "expire": "x"}, headers=PAGE
        )

        self.assertContains(answer, "Enter a whole number.")
        self.assertContains(answer, "<form")

    def test_errors_name_what_is_wrong(self):
        for query, field, error in (
            ("?expire=1", "data", "This field is required."),
            ("?data=a", "expire", "This field is required."),
            ("?data=a&expire=soon", "expire", "Enter a whole number."),
            ("?data=a&expire=1.5", "expire", "Enter a whole number."),
            ("?data=a&expire=-1", "expire", "greater than or equal to 0"),
            ("?data=a&expire=99999999999999", "expire", "less than or equal to"),
            (f"?data={'a' * 201}&expire=1", "data", "at most 200 characters"),
        ):
            with self.subTest(query):
                answer = self.post(query)

                self.assertEqual(answer.status_code, 400)
                self.assertEqual(list(answer.json()["errors"]), [field])
                self.assertIn(error, answer.json()["errors"][field][0])

    def test_other_methods_are_refused(self):
        self.assertEqual(self.client.put("/delays/").status_code, 405)

    def test_what_came_out_is_logged_once_and_shown(self):
        element = self.post("?data=a&expire=30000").json()

        with self.assertLogs("delays.tasks", "INFO") as logs:
            receive(element)
            receive(element)

        self.assertEqual(len(logs.output), 1)
        self.assertRegex(
            logs.output[0], r"data=a asked=30000ms actual=[\d.]+ms late=-?[\d.]+ms$"
        )
        self.assertEqual(Delay.objects.count(), 1)
        self.assertContains(self.client.get("/delays/"), "30000 ms")
        [shown] = self.client.get("/delays/", headers=JSON).json()["delays"]
        self.assertEqual(shown["id"], element["id"])

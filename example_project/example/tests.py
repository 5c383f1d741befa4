from django.core.management import CommandError, call_command
from django.test import TestCase, override_settings


class SiteTests(TestCase):
    def test_the_index_leads_to_every_app(self):
        answer = self.client.get("/")

        for page in ("/contests/", "/orders/", "/trades/", "/delays/", "/admin/"):
            self.assertContains(answer, f'href="{page}"')

    @override_settings(DEBUG=True)
    def test_the_demo_has_an_administrator(self):
        call_command("demo_admin", verbosity=0)
        call_command("demo_admin", verbosity=0)

        self.assertTrue(self.client.login(username="demo", password="demo"))
        self.assertEqual(self.client.get("/admin/").status_code, 200)

    def test_nobody_else_has_it(self):
        with self.assertRaisesMessage(CommandError, "DEBUG only"):
            call_command("demo_admin")

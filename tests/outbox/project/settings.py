"""Settings of the site and the workers of `tests.outbox.proof`; what differs comes from the environment."""

import json
import os

from tests.settings import TIME_ZONE as TIME_ZONE

SECRET_KEY = "only for tests"
DEBUG = False
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_delayq", "django_delayq.outbox", "tests.outbox.project"]
DATABASES = {"default": json.loads(os.environ["OUTBOX_TEST_DATABASE"])}
DELAYQ = json.loads(os.environ["OUTBOX_TEST_DELAYQ"])

"""Settings of the workers that tests start; what differs from test to test comes from the environment."""

import json
import os

from tests.settings import TIME_ZONE as TIME_ZONE

SECRET_KEY = "only for tests"
DEBUG = os.environ.get("WORKER_TEST_DEBUG") == "1"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django_delayq",
    "tests.worker.project",
    *os.environ.get("WORKER_TEST_APPS", "").split(),
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("WORKER_TEST_DATABASE", ":memory:"),
        "CONN_MAX_AGE": int(os.environ.get("WORKER_TEST_CONN_MAX_AGE", "0")),
    }
}
DELAYQ = json.loads(os.environ["WORKER_TEST_DELAYQ"])
if "WORKER_TEST_TASKS" in os.environ:
    TASKS = json.loads(os.environ["WORKER_TEST_TASKS"])
if "WORKER_TEST_LOGGING" in os.environ:
    LOGGING = json.loads(os.environ["WORKER_TEST_LOGGING"])

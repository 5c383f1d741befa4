"""The settings of a Django site that shares its queues with one version of Redisson."""

import json
import os

from tests.interop.codecs import delayq
from tests.settings import TIME_ZONE as TIME_ZONE

SECRET_KEY = "only for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_delayq", "tests.interop.project"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
DELAYQ = delayq(**json.loads(os.environ["INTEROP_SITE"]))

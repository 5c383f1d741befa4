"""Settings of the example project in containers, from the environment: see compose.yaml."""

import os

from .settings import *  # noqa: F403
from .settings import DELAYQ

DEBUG = False
SECRET_KEY = os.environ["SECRET_KEY"]
ALLOWED_HOSTS = os.environ["ALLOWED_HOSTS"].split()
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        # PGHOST, PGUSER and PGPASSWORD are read by PostgreSQL's own library.
        "NAME": os.environ["PGDATABASE"],
    }
}
DELAYQ["CONNECTION"] = os.environ["REDIS_URL"]

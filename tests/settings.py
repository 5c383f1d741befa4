"""Django settings of the test suite.

The server under test is not known here: tests ask for the ``delayq`` fixture, which puts its
address into ``DELAYQ``. Only processes that a test starts itself read it from the environment.
"""

import os

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
# Every test passes in every zone; processes that tests start inherit it.
TIME_ZONE = os.environ.get("DELAYQ_TEST_TIME_ZONE", "UTC")
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # logs in at once

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_delayq",
    # Its tables and models; `tests.conftest` keeps workers from looking at them in all tests but its own.
    "django_delayq.outbox",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        # A file only where a test starts processes that must see the same rows.
        "NAME": os.environ.get("DELAYQ_TEST_DATABASE", ":memory:"),
    },
    # For what depends on the database alias: hooks that wait for the right commit.
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}

# Tests name their own queues, so none is asked for here.
TASKS = {
    "default": {"BACKEND": "django_delayq.backend.DelayqBackend", "QUEUES": []},
}

DELAYQ = {
    # Nothing answers at the default, so a test that forgot the fixture fails instead of
    # writing somewhere.
    "CONNECTION": os.environ.get(
        "DELAYQ_TEST_URL", "unix:///dev/null/no-server-under-test"
    ),
    "QUEUES": {"default": {}},
    # Tests of ours mean the server that they name.
    "TEST": "connection",
}

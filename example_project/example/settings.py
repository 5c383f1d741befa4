"""Settings of the example project: SQLite, the embedded server, nothing to install but pip.

The environment can change these:

EXAMPLE_DATA_DIR         where db.sqlite3 and the embedded server's data are; here by default
EXAMPLE_MINUTE_SECONDS   how long a minute is: the demo's lasts one second
EXAMPLE_TIME_ZONE        the site's TIME_ZONE, UTC by default
EXAMPLE_LANGUAGE_CODE    the language of the admin and the commands, English by default
DELAYQ_URL               a Redis or Valkey of your own instead of the embedded one
"""

import os
from pathlib import Path

import django

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(os.environ.get("EXAMPLE_DATA_DIR", BASE_DIR))

SECRET_KEY = "an example, served on loopback only"
DEBUG = True
USE_TZ = True
TIME_ZONE = os.environ.get("EXAMPLE_TIME_ZONE", "UTC")
LANGUAGE_CODE = os.environ.get("EXAMPLE_LANGUAGE_CODE", "en-us")
ROOT_URLCONF = "example.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
# Messages go to the worker's log.
CONSOLE = "django.core.mail.backends.console.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": CONSOLE}}
else:
    EMAIL_BACKEND = CONSOLE
TEST_RUNNER = "example.runner.OwnServerRunner"

# What the apps promise, in seconds.
MINUTE = float(os.environ.get("EXAMPLE_MINUTE_SECONDS", "60"))
ORDER_PAYMENT_SECONDS = 15 * MINUTE
TRADE_MESSAGE_SECONDS = 5 * MINUTE

DELAYQ = {
    "CONNECTION": os.environ.get("DELAYQ_URL"),
    "EMBEDDED_DIR": DATA_DIR,
    "QUEUES": {
        "contests": {},
        "orders": {},
        # Three attempts, one and two minutes apart; then a dead letter.
        "notifications": {
            "MAX_ATTEMPTS": 3,
            "RETRY": {"BASE": MINUTE, "FACTOR": 2, "JITTER": 0},
        },
        # Plain JSON that a Java service with Redisson could offer, take, or remove just as well. REDISSON is for queues
        # that Java really uses: it costs the list in which Java looks.
        "delays": {"REDISSON": "3.52.0", "CODEC": "TypedJsonJacksonCodec"},
        "sample": {},
    },
}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_delayq",
    "example",
    "contests",
    "orders",
    "notifications",
    "delays",
    "lateness",
    "sample",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "example.csp.policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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
                "example.csp.nonce",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "db.sqlite3",
        # In memory, threads would meet SQLite's table locks, on which no one waits.
        "TEST": {"NAME": DATA_DIR / "test.sqlite3"},
        "OPTIONS": {
            # The site and the worker write to one file: a reader never waits, a writer
            # waits for the other instead of failing halfway through its transaction.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
        },
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}

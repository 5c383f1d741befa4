"""Django settings of the peers that are Django apps; BENCH_DJANGO names the app.

The database is SQLite as Django's page on it advises for production: WAL and IMMEDIATE transactions.
The file lies beside the record file.
"""

import os
import shutil
from pathlib import Path

from benchmarks.peers.adapters.adapter import HOST, IS_TUNED, PORT, QUEUES, URL

APP = os.environ["BENCH_DJANGO"]
SECRET_KEY = "benchmarks"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django.contrib.contenttypes", APP]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
QUEUE_NAMES = [f"q{i}" for i in range(QUEUES)]
DATABASE = Path(os.environ.get("BENCH_RECORDS", "") + ".sqlite3")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "root": {"level": "WARNING"},
    "loggers": {"django": {"level": "WARNING"}, APP: {"level": "WARNING"}},
}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
DATABASES = {}
if APP != "django_tasks_redis":
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATABASE,
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }

if APP == "django_delayq":
    INSTALLED_APPS.append("benchmarks.peers.adapters.delayq_app")
    _shared = {"REDISSON": "4.7.0", "CODEC": "StringCodec"}
    _queue = _shared if os.environ.get("BENCH_DELAYQ") == "redisson" else {}
    DELAYQ = {
        "CONNECTION": URL,
        "QUEUES": {name: _queue for name in QUEUE_NAMES},
        "WORKER": {"LEASE": 3.0 if IS_TUNED else 30.0},
    }
    if os.environ.get("BENCH_DELAYQ") == "tasks":
        DELAYQ["MODULES"] = ["benchmarks.peers.adapters.delayq_tasks"]
        TASKS = {
            "default": {
                "BACKEND": "django_delayq.backend.DelayqBackend",
                "QUEUES": QUEUE_NAMES,
                "OPTIONS": {"RESULT_TTL": 60},
            }
        }
elif APP == "django_tasks_redis":
    TASKS = {
        "default": {
            "BACKEND": "django_tasks_redis.RedisTaskBackend",
            "QUEUES": QUEUE_NAMES,
            "OPTIONS": {
                "REDIS_URL": URL,
                "REDIS_COMPLETED_TASK_TTL": 60,
                "REDIS_BLOCK_TIMEOUT": int(os.environ.get("BENCH_BLOCK_MS", "5000")),
                "REDIS_CLAIM_TIMEOUT": 5 if IS_TUNED else 300,
            },
        }
    }
elif APP == "django_tasks_db":
    TASKS = {
        "default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": QUEUE_NAMES}
    }
elif APP == "django_q":
    _cluster = {
        "workers": int(os.environ.get("BENCH_WORKERS", "1")),
        "queue_limit": int(os.environ.get("BENCH_QUEUE_LIMIT", "500")),
        "recycle": 1_000_000,
        "save_limit": -1,
        "timeout": 60,
        "retry": 120,
    }
    Q_CLUSTER = {
        "name": "q0",
        "log_level": "WARNING",
        "redis": {"host": HOST, "port": PORT, "db": 0},
        **_cluster,
        "ALT_CLUSTERS": {name: dict(_cluster) for name in QUEUE_NAMES},
    }


def _files():
    return [DATABASE.with_name(DATABASE.name + end) for end in ("", "-wal", "-shm")]


def make_database():
    """Make an empty database, migrated, while no worker runs."""
    from django.core.management import call_command
    from django.db import connection

    for file in _files():
        file.unlink(missing_ok=True)
    template = DATABASE.with_name(f"{DATABASE.name}.template")
    if not template.exists():
        call_command("migrate", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        DATABASE.rename(template)
    shutil.copyfile(template, DATABASE)


def database_bytes():
    """Return what the database holds, what waits in its log included."""
    return sum(file.stat().st_size for file in _files()[:2] if file.exists())

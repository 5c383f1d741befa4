"""Django settings of the benchmarks: the server's URL comes from the environment, everything else is default."""

import os

SECRET_KEY = "benchmarks"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = ["django_delayq", "benchmarks"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TASKS = {
    "default": {"BACKEND": "django_delayq.backend.DelayqBackend", "QUEUES": []},
}
DELAYQ = {
    "CONNECTION": os.environ.get("DELAYQ_BENCH_URL", "redis://127.0.0.1:6379/0"),
    "QUEUES": {
        # Set here, because otherwise it follows from REDISSON.
        "default": {"INSERTION_LIST": True},
        "flat": {"INSERTION_LIST": False},
        "few": {"INSERTION_LIST": False},
        "listed": {"INSERTION_LIST": True},
    },
}
if "DELAYQ_BENCH_QUEUES" in os.environ:
    # More queues, such as one on each node of a cluster.
    DELAYQ["QUEUES"] |= {
        name: {} for name in os.environ["DELAYQ_BENCH_QUEUES"].split(",")
    }
if "DELAYQ_BENCH_STATISTICS" in os.environ:
    DELAYQ["STATISTICS"] = int(os.environ["DELAYQ_BENCH_STATISTICS"])
if "DELAYQ_BENCH_KEEP_ENDED" in os.environ:
    DELAYQ["KEEP_ENDED"] = int(os.environ["DELAYQ_BENCH_KEEP_ENDED"])
# Earlier commits, which `compare` measures with these settings, do not know it.
if "DELAYQ_BENCH_KEYS" in os.environ:
    DELAYQ["KEYS"] = os.environ["DELAYQ_BENCH_KEYS"].split("\n")
# Nor this app, and its workers would ask the database.
if "DELAYQ_BENCH_OUTBOX" in os.environ:
    INSTALLED_APPS.append("django_delayq.outbox")

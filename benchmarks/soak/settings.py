"""Django settings of the soak: the defaults, but for the queues. The environment says where the server is."""

import os

from benchmarks.soak.kinds import queue_names

SECRET_KEY = "benchmarks"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = ["django_delayq", "benchmarks.soak"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
_QUEUES = queue_names()
_SHARDS = os.environ.get("DELAYQ_SOAK_SHARDS")
DELAYQ = {
    "CONNECTION": os.environ["DELAYQ_SOAK_URL"],
    "QUEUES": {_QUEUES[0]: {"SHARDS": int(_SHARDS)}}
    if _SHARDS
    # One of them keeps Redisson's list.
    else {name: {"INSERTION_LIST": name == _QUEUES[-1]} for name in _QUEUES},
}

"""Django settings of the soak: the defaults, but for the queues. The environment says where the server is."""

import os

from benchmarks.soak.kinds import queue_names

SECRET_KEY = "benchmarks"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = ["django_delayq", "benchmarks.soak"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
_QUEUES = queue_names(int(os.environ["DELAYQ_SOAK_QUEUES"]))
DELAYQ = {
    "CONNECTION": os.environ["DELAYQ_SOAK_URL"],
    # One of them keeps Redisson's list.
    "QUEUES": {name: {"INSERTION_LIST": name == _QUEUES[-1]} for name in _QUEUES},
}

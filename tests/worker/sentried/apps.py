"""Sets Sentry up as a project does, but for the transport."""

import json
import os
from typing import Any

import sentry_sdk
from django.apps import AppConfig
from sentry_sdk.transport import Transport

ENVIRONMENT = "WORKER_TEST_SENTRY"


class FileTransport(Transport):
    """Writes each item as one line of JSON."""

    def capture_envelope(self, envelope: Any) -> None:
        for item in envelope.items:
            line = json.dumps({"type": item.type, "item": item.payload.json})
            fd = os.open(
                os.environ[ENVIRONMENT], os.O_WRONLY | os.O_APPEND | os.O_CREAT
            )
            try:
                os.write(fd, line.encode() + b"\n")
            finally:
                os.close(fd)


class SentriedConfig(AppConfig):
    name = "tests.worker.sentried"

    def ready(self) -> None:
        sentry_sdk.init(
            dsn="https://key@sentry.example/1",
            transport=FileTransport,
            traces_sample_rate=1.0,
        )

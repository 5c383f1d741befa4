"""Before anything is signed or read, the program is of the later version."""

import pytest
from django.apps import AppConfig

from tests.later import come


class LaterConfig(AppConfig):
    name = "tests.worker.later"

    def ready(self) -> None:
        come(pytest.MonkeyPatch())

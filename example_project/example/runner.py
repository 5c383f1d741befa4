"""Run the tests on a server of their own, away from the pending jobs of a running site."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.conf import settings
from django.test import override_settings
from django.test.runner import DiscoverRunner
from django_delayq.embedded.embedded_server import ensure_server


class OwnServerRunner(DiscoverRunner):
    def build_suite(self, test_labels: Any = None, **kwargs: Any) -> Any:
        # The tests of this project, whatever the current folder.
        return super().build_suite(test_labels or [str(settings.BASE_DIR)], **kwargs)

    def setup_test_environment(self, **kwargs: Any) -> None:
        super().setup_test_environment(**kwargs)
        # The server outlives us by a moment, and its data go with it.
        self._directory = TemporaryDirectory(ignore_cleanup_errors=True)
        url = ensure_server(Path(self._directory.name))
        self._settings = override_settings(DELAYQ=settings.DELAYQ | {"CONNECTION": url})
        self._settings.enable()
        # Some tests send bad requests on purpose.
        logging.getLogger("django.request").setLevel(logging.ERROR)

    def teardown_test_environment(self, **kwargs: Any) -> None:
        self._settings.disable()
        self._directory.cleanup()
        super().teardown_test_environment(**kwargs)

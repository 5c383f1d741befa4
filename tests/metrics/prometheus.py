"""Debian's Prometheus on loopback, with what it scrapes and the rules of the docs.

DELAYQ_TEST_REQUIRE_PROMETHEUS=1   a Prometheus that is missing fails the tests that need it
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.polling import wait_until

_open = build_opener(ProxyHandler({})).open


def find(program: str) -> str:
    """Return the path of a program of Prometheus; skip the test, or fail it, where it is missing."""
    found = shutil.which(program)
    if found is None:
        missing = f"{program} is missing"
        if os.environ.get("DELAYQ_TEST_REQUIRE_PROMETHEUS") == "1":
            pytest.fail(f"{missing}, and DELAYQ_TEST_REQUIRE_PROMETHEUS is set")
        pytest.skip(f"{missing} (apt-get install prometheus)")
    return found


def promtool(*arguments: str, told: str | None = None) -> str:
    """Run promtool; return what it says. A status other than 0 is an AssertionError."""
    done = subprocess.run(
        [find("promtool"), *arguments],
        input=told,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class Prometheus:
    """A server that scrapes one site each second."""

    def __init__(self, directory: Path, target: str, token: str, rules: Path) -> None:
        program = find("prometheus")
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {
                    "job_name": "shop",
                    "metrics_path": "/delayq/metrics",
                    "authorization": {"credentials": token},
                    "static_configs": [{"targets": [target]}],
                }
            ],
        }
        path = directory / "prometheus.yml"
        # JSON is YAML.
        path.write_text(json.dumps(config))
        self._url = ""
        self._log = directory / "prometheus.log"
        self._command = [
            program,
            f"--config.file={path}",
            f"--storage.tsdb.path={directory / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ]

    def __enter__(self) -> "Prometheus":
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(self._is_ready, description="Prometheus answers")
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.terminate()
        self._process.wait()

    def _is_ready(self) -> bool:
        log = self._log.read_text()
        assert self._process.poll() is None, log
        found = re.search(r'"Listening on" address=(127\.0\.0\.1:\d+)', log)
        if found is None:
            return False
        self._url = f"http://{found[1]}"
        try:
            with _open(f"{self._url}/-/ready") as answer:
                return bool(answer.status == 200)
        except (URLError, ConnectionError):
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """Ask its API; return the data of the answer."""
        with _open(f"{self._url}/api/v1/{path}?{urlencode(parameters)}") as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def values(self, expression: str) -> list[float]:
        """Return the values that an expression has now."""
        found = self.ask("query", query=expression)["result"]
        return [float(each["value"][1]) for each in found]

"""A sample names keys by kind, and counts what processes have."""

import os
import subprocess
import sys

import pytest

from benchmarks.soak.sampling import kind_of, look_at


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("delayq_locators:{soak-0}", "delayq_locators"),
        ("delayq_result:{soak-3}:X0wZNC4ICLNUqUa2o8646Q", "delayq_result"),
        ("redisson_delay_queue_timeout:{soak-1}", "redisson_delay_queue_timeout"),
        ("delayq_workers:{delayq}", "delayq_workers"),
        ("soak-0", "soak-0"),
    ],
)
def test_key_is_named_by_its_kind(key: str, kind: str) -> None:
    assert kind_of(key) == kind


def test_processes_are_looked_at() -> None:
    rss, before = look_at({"here": os.getpid()})
    files = os.pipe()
    _, after = look_at({"here": os.getpid()})
    for file in files:
        os.close(file)

    assert rss["here"] > 1_000_000
    assert after["here"] == before["here"] + 2


def test_process_that_has_ended_is_left_out() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()

    assert look_at({"gone": process.pid}) == ({}, {})

import re
from pathlib import Path

import pytest

from tests.example.project import manage


@pytest.mark.slow
def test_three_consumers_are_measured_and_compared(tmp_path: Path):
    told = manage(tmp_path, "compare_consumers", "--elements", "40", "--seconds", "1.5")

    rows = dict(re.findall(r"^(\S.*?) {2,}(\d.*)$", told, re.MULTILINE))
    (take, timer, rate) = (
        [float(number) for number in rows[way].split()]
        for way in (
            "blocking take in a thread",
            "timer, 100 ms",
            "fixed rate, 10 ms, pool",
        )
    )
    for p50, p99, longest, requests, commands, _ in (take, timer, rate):
        assert 0 <= p50 <= p99 <= longest
        assert 0 <= requests <= commands
    # Who looks more often asks more often.
    assert rate[3] > timer[3]
    # One in the hand at most; but a pool's whole queue.
    assert take[-1] <= 1
    assert timer[-1] <= 1
    assert rate[-1] > 10

"""What a warm job enters does not grow unnoticed: `tests.walk.entered` counts it."""

import json
import subprocess
import sys

from tests.pages import ROOT

#: The most functions that each may enter. Lower it when a path becomes simpler.
MOST_TO_SCHEDULE = 29
#: Two more than counted: some jobs take another way to claim.
MOST_IN_WORKER = 124


def test_warm_job_enters_no_more_functions_than_before():
    # In a process of its own: it has settings of its own.
    told = subprocess.run(
        [sys.executable, "-m", "tests.walk.entered", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    counts = {what: len(found) for what, found in json.loads(told.stdout).items()}

    assert counts["schedule"] <= MOST_TO_SCHEDULE
    assert counts["worker"] <= MOST_IN_WORKER

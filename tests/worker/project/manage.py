"""What ``manage.py`` is in any project."""

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    # The package, and tests, lie above; this folder itself must not shadow anything.
    sys.path[0] = str(Path(__file__).parents[3])
    os.environ["DJANGO_SETTINGS_MODULE"] = os.environ.get(
        "WORKER_TEST_SETTINGS", "tests.worker.project.settings"
    )
    execute_from_command_line(sys.argv)

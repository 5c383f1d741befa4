"""``make demo``: the site and a worker, a tour over HTTP, and then they are yours.

Starts both on the embedded server, waits until they answer, does what a visitor would do,
and reports the results and how late each was. A minute lasts a second here, so an order is to
be paid within 15 seconds. After the tour, other visitors come and go, and the site opens in
your browser.

DEMO_EXIT=1              end after the tour: status 0 if every step held, else 1
EXAMPLE_MINUTE_SECONDS   how long a minute is, 1 unless set
EXAMPLE_DATA_DIR         where the data and the logs are, beside manage.py unless set
"""

import os
import signal
import sys
import time
import webbrowser
from pathlib import Path

from browser import Browser
from failure import Failure
from processes import Child, manage, start_site, start_worker, stop
from report import Report
from tour import Tour

MANAGE = Path(__file__).resolve().parent.parent / "manage.py"


def run(children: list[Child], report: Report) -> None:
    """Start, show around, and stay until something ends.

    Raises:
        Failure: something did not come up, a step did not hold, or a process has ended.
    """
    data = Path(os.environ.get("EXAMPLE_DATA_DIR", MANAGE.parent)).resolve()
    logs = data / ".demo"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / ".gitignore").write_text("*\n")
    minute_s = float(os.environ["EXAMPLE_MINUTE_SECONDS"])
    print("django-delayq: a site, a worker, and a tour")

    manage(MANAGE, "migrate", "--verbosity", "0")
    manage(MANAGE, "demo_admin", "--verbosity", "0")
    browser = Browser(start_site(MANAGE, logs, children))
    start_worker(MANAGE, logs, children, browser)
    print(f"\n  site      {browser.url}/")
    print(f"  admin     {browser.url}/admin/, user demo, password demo")
    print(f"  logs      {logs}{os.sep}")
    print(f"  a minute  {minute_s:g} s", flush=True)

    Tour(browser, children, report, minute_s).run()
    report.conclude()
    if os.environ.get("DEMO_EXIT") == "1":
        return
    children.append(Child("visitors", logs, MANAGE, "sample_data"))
    print(
        f"\nThe site stays up at {browser.url}/, with visitors who order, trade and pay."
    )
    print(f"The admin is {browser.url}/admin/, user demo, password demo (DEBUG is on).")
    print("Ctrl-C ends all of it.", flush=True)
    if has_screen():
        webbrowser.open(browser.url)
    while True:
        for child in children:
            child.check()
        time.sleep(0.2)


def has_screen() -> bool:
    """Whether a person sits here who can see a window; without one, a browser would take the terminal."""
    displays = {"DISPLAY", "WAYLAND_DISPLAY"}
    return sys.stdin.isatty() and (
        sys.platform == "darwin" or not displays.isdisjoint(os.environ)
    )


def main() -> int:
    os.environ.setdefault("EXAMPLE_MINUTE_SECONDS", "1")
    # The shell may have settings of another project.
    os.environ["DJANGO_SETTINGS_MODULE"] = "example.settings"
    os.environ["PYTHONUNBUFFERED"] = "1"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    children: list[Child] = []
    report = Report()
    has_failed = False
    try:
        run(children, report)
    except KeyboardInterrupt:
        print("\nStopping.", flush=True)
    except (Failure, OSError) as error:
        has_failed = True
        print(f"\n\nFAILED: {error}", flush=True)
        for child in children:
            print(f"\n--- the end of {child.log}\n{child.tail()}", flush=True)
    finally:
        stop(children)
    return 0 if report.is_complete and not has_failed else 1


if __name__ == "__main__":
    sys.exit(main())

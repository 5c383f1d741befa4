"""Debian's Prometheus reads a live site: each panel of the dashboard has data, and each alert can fire."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_delayq import schedule_many
from django_delayq.features.statistics import worker as statistics_worker
from tests.jobs.hand import Hand
from tests.metrics.conftest import TOKEN
from tests.metrics.prometheus import Prometheus, promtool
from tests.metrics.reading import Scrape
from tests.metrics.test_exposition import note
from tests.polling import wait_until
from tests.worker.project import tasks

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "django-delayq.json").read_text("utf-8"))
RULES = DOCS / "prometheus" / "django-delayq.yml"
#: What Grafana puts in the place of its variables.
VARIABLES = {"$__rate_interval": "10s", "$job": ".*", "$queue": ".*"}
EXPRESSIONS = [
    target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
]
#: An hour, minute by minute, as promtool writes it, in which no alert fires.
HEALTHY = {
    "delayq_up": "1x60",
    'delayq_node_up{node="h1:7000"}': "1x60",
    'delayq_node_up{node="h2:7000"}': "1x60",
    'delayq_queue_up{queue="a"}': "1x60",
    'delayq_oldest_due_seconds{queue="a"}': "1x60",
    'delayq_queue_workers{queue="a"}': "1x60",
    'delayq_queue_paused{queue="a"}': "0x60",
    'delayq_lateness_seconds_bucket{queue="a",le="16.777216"}': "0+9x60",
    'delayq_lateness_seconds_bucket{queue="a",le="268.435456"}': "0+9x60",
    'delayq_lateness_seconds_bucket{queue="a",le="+Inf"}': "0+9x60",
    'delayq_attempts_total{queue="a",outcome="dead"}': "3x60",
    'delayq_attempts_total{queue="a",outcome="quarantined"}': "3x60",
    'delayq_task_attempts_total{queue="a",task="t",outcome="succeeded"}': "0+9x60",
    'delayq_task_attempts_total{queue="a",task="t",outcome="retrying"}': "0+1x60",
    'delayq_problems{level="error"}': "0x60",
}
#: What differs from `HEALTHY` when an alert fires.
FIRING = {
    "DelayqNotScraped": {"delayq_up": "_x60"},
    "DelayqServerDown": {"delayq_up": "0x60"},
    "DelayqNodeDown": {'delayq_node_up{node="h2:7000"}': "0x60"},
    "DelayqQueueUnreadable": {'delayq_queue_up{queue="a"}': "0x60"},
    "DelayqNoWorker": {
        'delayq_oldest_due_seconds{queue="a"}': "0+60x60",
        'delayq_queue_workers{queue="a"}': "0x60",
    },
    "DelayqLate": {'delayq_oldest_due_seconds{queue="a"}': "0+60x60"},
    "DelayqOftenLate": {
        'delayq_lateness_seconds_bucket{queue="a",le="16.777216"}': "0x60",
        'delayq_lateness_seconds_bucket{queue="a",le="268.435456"}': "0+9x60",
    },
    "DelayqFailing": {
        'delayq_task_attempts_total{queue="a",task="t",outcome="retrying"}': "0+9x60"
    },
    "DelayqDead": {
        'delayq_attempts_total{queue="a",outcome="dead"}': "0x59 1",
    },
    "DelayqQuarantined": {
        'delayq_attempts_total{queue="a",outcome="quarantined"}': "0x59 1",
    },
    "DelayqProblem": {'delayq_problems{level="error"}': "1x60"},
}


def filled(expression: str) -> str:
    """Return an expression as Grafana sends it."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def check_alerts(
    path: Path, series: dict[str, str], expression: str, count: int | None
) -> None:
    """Have promtool say what an expression is after an hour of some series; it fails if that is not as expected."""
    unit = {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": "1h",
                "exp_samples": []
                if count is None
                else [{"labels": "{}", "value": count}],
            }
        ],
    }
    test = path / "test.yml"
    test.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [unit]}))
    promtool("test", "rules", str(test))


def test_each_alert_of_the_example_has_a_test_here() -> None:
    names = re.findall(r"- alert: (\w+)", RULES.read_text("utf-8"))

    assert names == list(FIRING)


def test_promtool_accepts_the_rules_and_the_metrics(
    queue: str, hand: Hand, get: Callable[..., Any]
) -> None:
    note(hand, 1_000, 70_000)
    note(hand, 1_000, task='a"b\\c\nd')

    assert f"SUCCESS: {len(FIRING)} rules" in promtool("check", "rules", str(RULES))
    assert promtool("check", "metrics", told=get("metrics").content.decode()) == ""


@pytest.mark.parametrize("alert", FIRING)
def test_alert_fires(tmp_path: Path, alert: str) -> None:
    fires = f'count(ALERTS{{alertstate="firing",alertname="{alert}"}})'

    check_alerts(tmp_path, HEALTHY | FIRING[alert], fires, 1)


def test_no_alert_fires_while_all_is_well(tmp_path: Path) -> None:
    check_alerts(tmp_path, HEALTHY, "count(ALERTS)", None)


def test_dashboard_asks_only_for_what_there_is(
    queue: str, hand: Hand, scrape: Callable[[], Scrape]
) -> None:
    note(hand, 1_000)
    found = scrape()
    there = {name for name, _ in found.values}
    asked = set(re.findall(r"\bdelayq_\w+", " ".join(EXPRESSIONS)))
    # The rules also name a command.
    alarmed = set(re.findall(r"\bdelayq_(?!status)\w+", RULES.read_text("utf-8")))

    # A single server has no nodes.
    assert (asked | alarmed) - {"delayq_node_up"} <= there


@pytest.mark.slow
@pytest.mark.usefixtures("records")
def test_each_panel_of_the_dashboard_has_data(
    configure: Callable[..., dict[str, Any]],
    work: Callable[..., Any],
    queue_name: str,
    settings: Any,
    live_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics_worker, "COUNT_AFTER_MS", 50.0)
    settings.DELAYQ = {**configure(), "METRICS_TOKENS": [TOKEN]}
    target = live_server.url.removeprefix("http://")
    work()
    missing = dict.fromkeys(EXPRESSIONS)
    note_ = tasks.note.using(queue=queue_name)
    fail = tasks.fail.using(queue=queue_name, max_attempts=2, backoff=tasks.AT_ONCE)

    with Prometheus(tmp_path, target, TOKEN, RULES) as prometheus:

        def have_all_data() -> bool:
            schedule_many([note_.prepare(0, 1), note_.prepare(0, 2), fail.prepare(0)])
            for expression in list(missing):
                values = prometheus.values(filled(expression))
                if any(map(math.isfinite, values)):
                    del missing[expression]
            return not missing

        try:
            wait_until(have_all_data, description="each panel has data")
        except AssertionError:
            pytest.fail(f"no data, or not a number: {list(missing)}")
        wait_until(
            lambda: prometheus.values('ALERTS{alertname="DelayqDead"}'),
            description="the alert of dead letters fires",
        )
        rules = prometheus.ask("rules")["groups"][0]["rules"]
        queues = prometheus.ask("label/queue/values", **{"match[]": "delayq_queue_up"})

    assert {rule["health"] for rule in rules} == {"ok"}
    assert queues == sorted(["default", queue_name])

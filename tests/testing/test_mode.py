"""Which server the jobs of a test go to, as ``DELAYQ["TEST"]`` says."""

from typing import Any

import pytest
from redis import Redis

from django_delayq import conf, pause
from django_delayq.checks import check_settings
from django_delayq.testing import mode
from django_delayq.testing.servers import (
    empty_server,
    run_server,
    running_worker,
    serving_run,
)
from django_delayq.transport.clients import own_clients
from tests.testing.samples import RAN, double

URL = "redis://localhost:1/0"


def ids() -> set[str | None]:
    return {message.id for message in check_settings()}


def test_mode_is_captured_without_a_word(settings: Any) -> None:
    settings.DELAYQ = {}

    assert mode.mode_in_force() == "captured"
    assert "django_delayq.E005" not in ids()


def test_test_that_names_a_connection_means_it(settings: Any) -> None:
    settings.DELAYQ = {"CONNECTION": URL}

    assert mode.mode_in_force() == "connection"
    assert mode.find_server().arguments["port"] == 1


def test_setting_outweighs_the_connection(settings: Any) -> None:
    settings.DELAYQ = {"CONNECTION": URL, "TEST": "captured"}

    double.schedule(60, 1)
    assert mode.mode_in_force() == "captured"


def test_setting_may_have_jobs_run_at_once(settings: Any) -> None:
    settings.DELAYQ = {"TEST": "immediate"}

    double.schedule(60, 1)

    assert RAN == [("double", 1)]


def test_connection_without_a_server_is_an_error_also_in_tests(settings: Any) -> None:
    settings.DELAYQ = {"TEST": "connection"}

    assert "django_delayq.E005" in ids()


def test_unknown_mode_is_reported(settings: Any) -> None:
    settings.DELAYQ = {"TEST": "eager"}

    (message,) = check_settings()
    assert message.id == "django_delayq.E003"
    assert "'captured', 'immediate', 'frozen', 'server', 'connection'" in (
        message.hint or ""
    )


def test_outside_of_tests_the_connection_counts(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode, "is_testing", lambda: False)
    settings.DELAYQ = {}

    assert mode.mode_in_force() == "connection"
    assert "django_delayq.E005" in ids()


def test_project_that_names_a_connection_is_captured_in_tests(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.DELAYQ = {"CONNECTION": URL}
    # As if the settings module had it.
    monkeypatch.setattr(mode, "_is_overridden", lambda: False)

    assert mode.mode_in_force() == "captured"
    assert conf.get_settings().connection == URL


def test_server_of_the_run_is_emptied(settings: Any, embedded_server: None) -> None:
    settings.DELAYQ = {"TEST": "server"}
    assert mode.is_of_run()
    double.schedule(60, 1)
    server = run_server()

    with Redis(connection_pool=server.pool()) as client:
        assert client.dbsize()
        empty_server()
        assert not client.dbsize()


def test_worker_runs_what_is_due(embedded_server: None) -> None:
    with serving_run(), running_worker() as worker:
        job = double.schedule(0, 4)
        worker.wait_until_idle()

        assert job.wait(timeout=5) == 8


def test_worker_that_stays_busy_is_an_error(embedded_server: None) -> None:

    with serving_run(), running_worker() as worker:
        pause("default")
        double.schedule(0, 4)

        with pytest.raises(TimeoutError, match="default has 1 due and 0 running"):
            worker.wait_until_idle(timeout=0.2)


def test_server_that_was_used_before_the_tests_began_is_not_used_in_them(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYQ = {"CONNECTION": URL}
    began = False
    monkeypatch.setattr(own_clients, "state", lambda: began)
    monkeypatch.setattr(mode, "is_testing", lambda: began)
    monkeypatch.setattr(mode, "_is_overridden", lambda: False)
    before = own_clients.shared()
    assert before.connection_pool.connection_kwargs["port"] == 1

    began = True

    assert own_clients.shared() is not before
    assert double.schedule(60, 1).created
    began = False
    assert own_clients.shared().connection_pool.connection_kwargs["port"] == 1

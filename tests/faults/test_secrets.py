"""No password of DELAYQ['CONNECTION'] is shown: not by pages, mails, logs, checks, banners or reprs."""

import io
import re
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.core.management.base import CommandError, SystemCheckError
from django.test import RequestFactory
from django.views.debug import ExceptionReporter, technical_500_response
from redis.asyncio.connection import Connection as AsyncConnection
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from django_delayq import DelayedQueue, aschedule, conf, schedule
from django_delayq.exceptions import DelayqError
from django_delayq.faults import describe_fault
from django_delayq.transport.clients import own_clients
from tests.jobs.samples import add


def by_schedule() -> None:
    schedule(add, 5, 1, 2)


def by_aschedule() -> None:
    async def call() -> None:
        await aschedule(add, 5, 1, 2)

    async_to_sync(call)()


def by_queue() -> None:
    with DelayedQueue("default") as queue:
        queue.offer(1, 5)


def by_queue_with_url() -> None:
    url = conf.django_settings.DELAYQ["CONNECTION"]
    with DelayedQueue("default", connection=url) as queue:
        queue.offer(1, 5)


WAYS = [by_schedule, by_aschedule, by_queue, by_queue_with_url]


def around(text: str) -> list[str]:
    """Return where a text has the secret, for the message of a test that fails."""
    return [
        " ".join(text[max(0, at.start() - 200) : at.end() + 40].split())
        for at in re.finditer(SECRET, text)
    ]


def pages_of(way: Callable[[], None]) -> str:
    """Return everything that Django can show of the error that a way ends with: pages, and the texts of mails."""
    # No secret in the names of this frame: it is shown, too.
    request = RequestFactory().get("/")
    try:
        way()
    except (RedisError, DelayqError, OSError, ValueError) as error:
        page = technical_500_response(request, *sys.exc_info()).content.decode()
        reporter = ExceptionReporter(request, *sys.exc_info(), is_email=True)
        texts = [
            page,
            reporter.get_traceback_html(),
            reporter.get_traceback_text(),
            str(error),
            repr(error),
            *getattr(error, "__notes__", ()),
            *describe_fault(error),
        ]
        assert "DELAYQ" in page  # its settings are there
        assert "CONNECTION" in page
        return "\n".join(texts)
    raise AssertionError("there was no error")


# Below, as a page of Django's shows some lines of source around those that ran.
SECRET = "hunter2"
#: Where nobody listens.
NOWHERE = [
    "redis://app:hunter2@127.0.0.1:1/0",
    "redis://:hunter2@127.0.0.1:1/0",
    "redis://127.0.0.1:1/0?password=hunter2",
    "rediss://app:hunter2@127.0.0.1:1/0?ssl_cert_reqs=none",
    "redis://:p%40ss@hunter2@127.0.0.1:1/0",
    "unix://app:hunter2@/dev/null/nothing",
    "unix:///dev/null/nothing?username=app&password=hunter2",
]
#: What redis-py does not read, or reads in another way than was meant.
GARBAGE = [
    "redis://:hunter2",
    "redis://:h#hunter2@127.0.0.1:1/0",
    "redis://:h/hunter2@127.0.0.1:1/0",
    "redis://:h?hunter2@127.0.0.1:1/0",
    "redis:/:hunter2@127.0.0.1:1/0",
    "unix://:h/hunter2@/dev/null/nothing",
    "redis://127.0.0.1:1/0?pasword=hunter2",
    "http://:hunter2@127.0.0.1:1/0",
    ":hunter2@127.0.0.1",
]


@pytest.mark.parametrize(
    "is_debug", [True, pytest.param(False, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("url", [*NOWHERE, *GARBAGE])
def test_error_of_a_connection_shows_no_password(
    settings: Any, url: str, way: Callable[[], None], is_debug: bool
) -> None:
    settings.DEBUG = is_debug
    settings.DELAYQ = {"CONNECTION": url}

    assert around(pages_of(way)) == []


@pytest.mark.parametrize("is_debug", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"SECRET_KEY_FALLBACKS": ["hunter2-fallback", ""]},
        {"SECRET_KEY_FALLBACKS": ["hunter2-fallback", 5]},
        {"SECRET_KEY_FALLBACKS": ["hunter2-\udcff"]},
        {"SECRET_KEY_FALLBACKS": "hunter2-fallback"},
        {"KEYS": ["hunter2-hunter2-hunter2"]},
        {"KEYS": [b"hunter2-hunter2-hunter2"]},
        {"KEYS": ["hunter2-\udcff-hunter2-hunter2"]},
        {"KEYS": ("hunter2-hunter2-hunter2", "")},
        {"KEYS": "hunter2-hunter2-hunter2"},
        {"KEYS": ["hunter2"]},
        {"KEY": ["hunter2-hunter2-hunter2"]},
        {"SECRETS": "hunter2-hunter2-hunter2"},
    ],
)
def test_error_shows_no_key_that_jobs_are_signed_with(
    settings: Any, changes: dict[str, Any], is_debug: bool
) -> None:
    settings.DEBUG = is_debug
    settings.SECRET_KEY = "hunter2-hunter2"
    delayq: dict[str, Any] = {"CONNECTION": "redis://127.0.0.1:1/0"}
    for name, value in changes.items():
        if name.startswith("SECRET_KEY"):
            setattr(settings, name, value)
        else:
            delayq[name] = value
    settings.DELAYQ = delayq

    assert around(pages_of(by_schedule)) == []


def test_keys_that_show_themselves_to_nobody_are_what_they_were(settings: Any) -> None:
    keys = ["hunter2-hunter2-hunter2", b"hunter2-hunter2-hunter3"]
    settings.DELAYQ = {"KEYS": keys}

    shown = settings.DELAYQ["KEYS"]

    assert shown == keys
    assert f"{shown[0]}" == keys[0]
    assert repr(shown) == "['***', '***']"


@pytest.mark.parametrize(
    "value",
    [
        "redis://:hunter2@h",
        ["redis://:hunter2@h"],
        {"CONECTION": "redis://:hunter2@h"},
        {"CONNECTION": {"URL": "redis://:hunter2@h", "PASSWORD": "hunter2"}},
        {"CONNECTION": b"redis://:hunter2@h"},
        {"redis://:hunter2@h": 1},
        {"QUEUES": "redis://:hunter2@h"},
        {"QUEUES": {"default": "redis://:hunter2@h"}},
        {"QUEUES": {"default": {"CODEC": "redis://:hunter2@h"}}},
        {"QUEUES": {"default": {"redis://:hunter2@h": 1}}},
        {"QUEUES": {"redis://:hunter2@{h}}": {}}},
        {"WORKER": {"GRACE": {"PASSWORD": "hunter2"}}},
        *({"CONNECTION": url} for url in GARBAGE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_check_of_wrong_settings_shows_no_password(settings: Any, value: Any) -> None:
    settings.DELAYQ = value
    told = io.StringIO()

    with pytest.raises(SystemCheckError) as refused:
        call_command("check", stdout=told, stderr=told)

    assert SECRET not in str(refused.value) + told.getvalue()
    assert "django_delayq.E00" in str(refused.value)


@pytest.mark.parametrize("url", NOWHERE)
def test_check_of_a_server_that_is_away_shows_no_password(
    settings: Any, url: str
) -> None:
    settings.DELAYQ = {"CONNECTION": url}

    with pytest.raises(SystemCheckError) as refused:
        call_command("check", "--deploy", "--tag", "delayq")

    assert "django_delayq.E009" in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("url", NOWHERE)
def test_settings_and_clients_show_no_password(settings: Any, url: str) -> None:
    settings.DELAYQ = {"CONNECTION": url}

    read = conf.get_settings()
    shown = f"{read!r} {read} {settings.DELAYQ!r} {own_clients.make()!r}"
    shown += repr(own_clients.make().connection_pool.connection_kwargs)

    assert SECRET not in shown
    # The value itself is what it was, for whoever connects with it.
    assert settings.DELAYQ["CONNECTION"] == url


@pytest.mark.parametrize(
    "location",
    ["redis://:hunter2@127.0.0.1:1/0", "redis://:h/hunter2@h", "redis://:hunter2"],
)
def test_alias_shows_no_password(settings: Any, location: str) -> None:
    settings.DEBUG = True
    settings.CACHES = {
        "jobs": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": location,
            "OPTIONS": {"PASSWORD": "hunter2"},
        }
    }
    settings.DELAYQ = {"CONNECTION": "jobs"}

    with pytest.raises((RedisError, DelayqError)) as refused:
        by_schedule()

    shown = [*describe_fault(refused.value), str(refused.value)]
    assert SECRET not in "\n".join(shown)
    assert refused.value.__cause__ is None or SECRET not in str(refused.value.__cause__)


@pytest.mark.parametrize("way", WAYS)
def test_connection_that_dies_at_its_greeting_shows_no_password(
    settings: Any, monkeypatch: pytest.MonkeyPatch, way: Callable[[], None]
) -> None:
    """A debug page shows the variables of each frame, and one of redis-py's is the command with the password."""

    def dying_at(self: Any, command: Any, *args: Any, **kwargs: Any) -> None:
        raise RedisConnectionError("Broken pipe")

    async def adying_at(self: Any, command: Any, *args: Any, **kwargs: Any) -> None:
        raise RedisConnectionError("Broken pipe")

    settings.DEBUG = True
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    settings.DELAYQ = {"CONNECTION": f"redis://:hunter2@{address}/0"}
    monkeypatch.setattr(Connection, "send_packed_command", dying_at)
    monkeypatch.setattr(AsyncConnection, "send_packed_command", adying_at)

    with listening:
        shown = pages_of(way)

    assert "Broken pipe" in shown
    assert "dying_at" not in shown
    assert SECRET not in shown


@pytest.mark.parametrize("url", NOWHERE)
def test_admin_shows_no_password(settings: Any, admin_client: Any, url: str) -> None:
    settings.DELAYQ = {"CONNECTION": url}

    response = admin_client.get("/admin/django_delayq/job/")

    assert response.status_code == 503
    assert SECRET not in response.content.decode()


@pytest.mark.parametrize("url", [*NOWHERE, *GARBAGE])
def test_commands_show_no_password(
    settings: Any,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
) -> None:
    settings.DELAYQ = {"CONNECTION": url}
    caplog.set_level("DEBUG", "django_delayq")
    # Its processes would wait for the server.
    monkeypatch.setattr(
        "django_delayq.management.commands.delayq_worker.Supervisor.run", lambda self: 0
    )
    said = []

    for command in (["delayq_worker"], ["delayq_frames", "default"]):
        with pytest.raises((CommandError, SystemExit)) as ended:
            call_command(*command, skip_checks=True)
        said.append(str(ended.value))

    out, err = capsys.readouterr()
    assert SECRET not in "\n".join([*said, out, err, caplog.text])
    if url in NOWHERE:
        assert "django-delayq" in out
        assert "the server cannot be checked yet" in caplog.text


def test_password_that_shows_itself_to_nobody_is_what_the_server_is_told(
    settings: Any, private_server: Callable[..., Any]
) -> None:
    server = private_server(requirepass=SECRET)
    settings.DELAYQ = {"CONNECTION": f"redis://:{SECRET}@127.0.0.1:{server.port}/0"}

    first = schedule(add, 5, 1, 2)
    second = async_to_sync(aschedule)(add, 5, 1, 2)
    by_queue_with_url()

    assert {first.state, second.state} == {"scheduled"}


def test_wrong_password_is_shown_to_nobody(
    settings: Any, private_server: Callable[..., Any]
) -> None:
    server = private_server(requirepass="another")
    settings.DEBUG = True

    for protocol in (2, 3):
        settings.DELAYQ = {
            "CONNECTION": f"redis://:{SECRET}@127.0.0.1:{server.port}/0?protocol={protocol}"
        }
        for way in WAYS:
            assert around(pages_of(way)) == []

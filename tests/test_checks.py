"""``manage.py check``: every mistake in ``DELAYQ`` by its number, its words and its hint."""

from typing import Any

import pytest
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings
from django_redis.cache import RedisCache

from django_delayq.checks import check_settings
from django_delayq.jobs.decorator import delayed_task, queue_handler

LOCMEM = "django.core.cache.backends.locmem.LocMemCache"
URL = "redis://localhost:6379/0"


class OwnCache(RedisCache):
    """A project's own cache, on top of django-redis."""


def found(**settings: Any) -> list[tuple[str, str, str]]:
    with override_settings(**settings):
        return [(str(m.id), m.msg, m.hint or "") for m in check_settings()]


def test_good_settings_have_no_mistakes() -> None:
    assert found(DELAYQ={"CONNECTION": URL, "QUEUES": {"a": {}}}) == []


def test_checks_run_with_manage_py(capsys: pytest.CaptureFixture[str]) -> None:
    with override_settings(DELAYQ={"CONNECTION": URL}):
        call_command("check", "--tag", "delayq", "--fail-level", "DEBUG")
        call_command("check")
    assert "no issues" in capsys.readouterr().out

    with override_settings(DELAYQ={"CONNECTIONS": URL}):
        with pytest.raises(SystemCheckError) as caught:
            call_command("check")
    assert "(django_delayq.E002) DELAYQ has an unknown key 'CONNECTIONS'." in str(
        caught.value
    )
    assert "HINT: Did you mean 'CONNECTION'?" in str(caught.value)


def test_checks_need_no_server() -> None:
    nobody = {"CONNECTION": "unix:///dev/null/nobody"}

    assert found(DELAYQ=nobody) == []


@pytest.mark.parametrize(
    ("delayq", "id_", "message", "hint"),
    [
        (
            [],
            "E001",
            "DELAYQ is [], of type list.",
            "Make it a dict, as docs/settings.m",
        ),
        (
            {"CONNECTION": URL, "QUEUE": {}},
            "E002",
            "DELAYQ has an unknown key 'QUEUE'.",
            "Did you mean 'QUEUES'?",
        ),
        (
            {"CONNECTION": URL, "WORKER": {"THREADS": "8"}},
            "E003",
            "DELAYQ['WORKER']['THREADS'] is '8'.",
            "Give a number of threads, 1 to 1,000.",
        ),
        (
            {"CONNECTION": URL, "QUEUES": {"x}y": {}}},
            "E004",
            "DELAYQ['QUEUES']['x}y']: queue name 'x}y': its keys",
            "Rename the queue.",
        ),
        (
            {},
            "E005",
            "DELAYQ['CONNECTION'] is not set, and the embedded server serves DEBUG only.",
            "Name a django-redis cache, or a URL such as 'redis://localhost:6379/0'.",
        ),
        (
            {"CONNECTION": "jobs"},
            "E006",
            "DELAYQ['CONNECTION'] is 'jobs', which is neither a URL nor an alias of CACHES.",
            "Give a URL with its scheme, such as 'redis://localhost:6379/0', or add the",
        ),
    ],
)
def test_mistake_is_told(delayq: Any, id_: str, message: str, hint: str) -> None:
    ((its_id, its_message, its_hint),) = found(DELAYQ=delayq)

    assert its_id == f"django_delayq.{id_}"
    assert its_message.startswith(message)
    assert its_hint.startswith(hint)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"SECRET_KEY": ""},
            "SECRET_KEY is empty, and jobs are signed with it. Set it",
        ),
        ({"SECRET_KEY_FALLBACKS": [""]}, "secret 2 of 2 is empty."),
        ({"SECRET_KEY_FALLBACKS": "old"}, "SECRET_KEY_FALLBACKS is no list; write"),
    ],
)
def test_secrets_that_nothing_can_be_signed_with_are_told(
    settings: dict[str, Any], message: str
) -> None:
    @delayed_task(name="tests.checks.shared", queue="shared")
    def task() -> None: ...

    # No codec is blamed for it.
    shared = {"default": {}, "shared": {"REDISSON": "3.27.2", "CODEC": "StringCodec"}}
    delayq = {"CONNECTION": URL, "QUEUES": shared}
    ((its_id, its_message, its_hint),) = found(DELAYQ=delayq, **settings)

    assert its_id == "django_delayq.E011"
    assert its_message.startswith("Jobs cannot be signed: ")
    assert message in its_message
    assert its_hint.startswith("Workers run signed jobs only")


def test_all_mistakes_are_told_at_once() -> None:
    delayq = {"WORKR": {}, "MAX_PAYLOAD_BYTES": 0, "QUEUES": {"": {"WEIGHT": 0}}}

    assert sorted(id_[-4:] for id_, _, _ in found(DELAYQ=delayq)) == [
        "E002",
        "E003",
        "E003",
        "E004",
    ]


def test_every_mistake_is_an_error() -> None:
    with override_settings(DELAYQ={"CONNECTION": "jobs"}):
        assert all(isinstance(message, checks.Error) for message in check_settings())


def test_embedded_server_is_no_mistake_in_debug() -> None:
    assert found(DELAYQ={}, DEBUG=True) == []


# The alias


@pytest.mark.parametrize(
    "backend",
    ["django_redis.cache.RedisCache", "tests.test_checks.OwnCache"],
)
def test_alias_of_django_redis_is_no_mistake(backend: str) -> None:
    caches = {"default": {"BACKEND": LOCMEM}, "jobs": {"BACKEND": backend}}

    assert found(DELAYQ={"CONNECTION": "jobs"}, CACHES=caches) == []


@pytest.mark.parametrize(
    "backend",
    [
        LOCMEM,
        "django.core.cache.backends.redis.RedisCache",
        "no.such.Backend",
        "django_redis.cache.omit_exception",
    ],
)
def test_alias_of_another_cache_is_told(backend: str) -> None:
    caches = {"default": {"BACKEND": backend}}

    (mistake,) = found(DELAYQ={"CONNECTION": "default"}, CACHES=caches)

    assert mistake == (
        "django_delayq.E006",
        f"DELAYQ['CONNECTION'] is 'default', a cache with the backend {backend!r}.",
        "Use a cache with 'django_redis.cache.RedisCache', or give a URL.",
    )


# Tasks


def test_task_on_a_queue_that_is_not_there_is_told() -> None:
    @delayed_task(name="tests.checks.lost", queue="emials")
    def lost() -> None: ...

    @delayed_task(name="tests.checks.fine", queue="emails")
    def fine() -> None: ...

    delayq = {"CONNECTION": URL, "QUEUES": {"emails": {}}}

    assert found(DELAYQ=delayq) == [
        (
            "django_delayq.E007",
            "Task 'tests.checks.lost' goes to queue 'emials', which is not in DELAYQ['QUEUES'].",
            "Add 'emials': {} to DELAYQ['QUEUES'], or correct the task's queue.",
        )
    ]


def test_handler_of_a_queue_that_is_not_there_is_told() -> None:
    @queue_handler("orders", name="tests.checks.orders")
    def orders(value: object) -> None: ...

    (mistake,) = found(DELAYQ={"CONNECTION": URL})

    assert mistake[0] == "django_delayq.E007"
    assert "'orders'" in mistake[1]


def test_on_commit_of_a_database_that_is_not_there_is_told() -> None:
    @delayed_task(name="tests.checks.nodb", on_commit="nodb")
    def nodb() -> None: ...

    @delayed_task(name="tests.checks.other", on_commit="other")
    def other() -> None: ...

    @delayed_task(name="tests.checks.any", on_commit=True)
    def any_() -> None: ...

    assert found(DELAYQ={"CONNECTION": URL}) == [
        (
            "django_delayq.E012",
            "on_commit of task 'tests.checks.nodb' is 'nodb', which is not in DATABASES.",
            "Give True, for the default database, or one of 'default', 'other'.",
        )
    ]


class TestServer:
    def test_an_ordinary_check_does_not_ask_the_server(self, settings: Any) -> None:
        settings.DELAYQ = {"CONNECTION": "redis://127.0.0.1:1/0"}

        assert ids_of(checks.run_checks(tags=["delayq"])) == []

    def test_deploy_says_that_the_server_does_not_answer(self, settings: Any) -> None:
        settings.DELAYQ = {"CONNECTION": "redis://127.0.0.1:1/0"}

        found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)

        assert ids_of(found) == ["django_delayq.E009"]
        assert not found[0].msg.endswith("..")

    @pytest.mark.redis
    def test_deploy_says_what_to_correct_where_the_server_does_not_let_us_in(
        self, settings: Any, private_server: Any
    ) -> None:
        server = private_server(requirepass="secret")
        settings.DELAYQ = {"CONNECTION": f"{server.socket_url}&password=wrong"}

        found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)

        assert ids_of(found) == ["django_delayq.E009"]
        assert "Check user and password" in str(found[0].hint)

    def test_deploy_blames_the_secrets_and_not_the_server(
        self, settings: Any, private_server: Any
    ) -> None:
        settings.DELAYQ = {"CONNECTION": private_server().socket_url}
        settings.SECRET_KEY_FALLBACKS = [""]

        found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)

        assert "django_delayq.E011" in ids_of(found)
        assert "django_delayq.E009" not in ids_of(found)

    def test_deploy_says_what_the_server_lacks(
        self, settings: Any, private_server: Any
    ) -> None:
        server = private_server(
            **{"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
        )
        settings.DELAYQ = {"CONNECTION": server.socket_url}

        found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)

        assert "django_delayq.E010" in ids_of(found)
        assert any("allkeys-lru" in item.msg for item in found)


def ids_of(found: list[Any]) -> list[str]:
    return [item.id for item in found]


@pytest.mark.parametrize("listed", [None, True])
def test_queue_without_the_list_that_java_needs_is_warned_of(listed: Any) -> None:
    redisson = {"REDISSON": "4.7.0", "CODEC": "StringCodec"}
    queues = {"a b": redisson | {"INSERTION_LIST": False}}
    [(id_, message, hint)] = found(DELAYQ={"CONNECTION": URL, "QUEUES": queues})

    assert id_ == "django_delayq.W003"
    assert "'a b' is shared with Redisson" in message
    assert "manage.py delayq_frames 'a b' --list on" in hint
    for options in ({}, redisson):
        queues = {"a b": options | {"INSERTION_LIST": listed}}
        assert not found(DELAYQ={"CONNECTION": URL, "QUEUES": queues})


@pytest.mark.parametrize(
    ("codec", "hint"),
    [
        ("FstCodec", "Set a codec that both sides have"),
        ("LZ4Codec", "It compresses what another codec writes"),
        ("CompositeCodec", "The elements of a queue are written by the third codec"),
    ],
)
def test_handler_on_a_queue_whose_codec_is_not_read_is_warned_of(
    codec: str, hint: str
) -> None:
    @queue_handler("orders", name="tests.checks.orders")
    def handle(value: object) -> None: ...

    queues = {"orders": {"REDISSON": "4.7.0", "CODEC": codec}}
    [(id_, message, told)] = found(DELAYQ={"CONNECTION": URL, "QUEUES": queues})

    assert id_ == "django_delayq.W002"
    assert f"queue 'orders': {codec} is not supported" in message
    assert told.startswith(hint)
    assert told.endswith(".")
    queues["orders"]["CODEC"] = "ByteArrayCodec"
    assert found(DELAYQ={"CONNECTION": URL, "QUEUES": queues}) == []


@pytest.mark.parametrize(
    ("key", "path", "number", "text"),
    [
        ("MIDDLEWARE", "shop.missing.timed", "E015", "cannot be imported: ModuleNot"),
        ("MIDDLEWARE", "tests.test_checks.URL", "E015", "name a function"),
        ("CONTEXT", "shop.missing.Tenant", "E016", "cannot be imported: ModuleNot"),
        ("CONTEXT", "tests.test_checks.URL", "E016", "has no capture()"),
    ],
)
def test_path_that_leads_to_nothing_of_use_is_an_error(
    key: str, path: str, number: str, text: str
) -> None:
    (problem,) = found(DELAYQ={"CONNECTION": URL, key: [path]})

    assert problem[0] == f"django_delayq.{number}"
    assert problem[1].startswith(f"DELAYQ[{key!r}] names {path!r}, which ")
    assert text in problem[1]
    assert "docs/howto/" in problem[2]


def test_shipped_contexts_have_no_mistakes() -> None:
    paths = ["Locale", "otel.OpenTelemetry", "sentry.Sentry"]
    context = [f"django_delayq.context.{path}" for path in paths]

    assert found(DELAYQ={"CONNECTION": URL, "CONTEXT": context}) == []

"""``manage.py check``: every mistake in ``DELAYQ`` by its number, its words and its hint."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import Parameter, Signature
from typing import Annotated, Any, Optional, TypeVar
from unittest.mock import patch

import pytest
from django.contrib.auth.models import Group, User
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.test import override_settings
from django_redis.cache import RedisCache

from django_delayq import schedule
from django_delayq.checks import check_settings
from django_delayq.core.worker_registry import (
    RegistryKeys,
    WorkerInfo,
    register,
    unregister,
)
from django_delayq.database_checks import check_room
from django_delayq.features.schedules.periodic import periodic
from django_delayq.jobs.decorator import delayed_task, queue_handler
from django_delayq.jobs.limit import Limit
from django_delayq.jobs.occurrences import cron
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat, pack
from django_delayq.wire.queue_keys import QueueKeys
from tests.databases import added
from tests.sentinels import Watched

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
            "Make it a dict, as in docs/settings.m",
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
            {"TEST": "connection"},
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
        ({"SECRET_KEY_FALLBACKS": "old"}, "SECRET_KEY_FALLBACKS is not a list; write"),
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
    assert its_hint.startswith("Workers run only jobs")


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
            "Task 'tests.checks.lost' goes to queue 'emials', which is not in DELAYQ['QUEUES']."
            " Did you mean 'emails'?",
            "Add 'emials': {} to DELAYQ['QUEUES'], or correct the task's queue.",
        )
    ]


def test_task_with_a_priority_on_a_queue_shared_with_java_is_told() -> None:
    @delayed_task(name="tests.checks.urgent", queue="java", priority=5)
    def urgent() -> None: ...

    @delayed_task(name="tests.checks.plain", queue="java")
    def plain() -> None: ...

    java = {"REDISSON": "3.27.2", "CODEC": "StringCodec"}

    assert found(DELAYQ={"CONNECTION": URL, "QUEUES": {"java": java}}) == [
        (
            "django_delayq.E008",
            "Task 'tests.checks.urgent' goes to queue 'java' with priority=5, and Redisson has no priorities.",
            "Use a queue without REDISSON, or priority=0.",
        )
    ]


def test_schedule_of_a_queue_that_is_not_there_is_told_once() -> None:
    @periodic(cron("0 9 * * *"))
    @delayed_task(name="tests.checks.daily", queue="emials")
    def daily() -> None: ...

    (mistake,) = found(DELAYQ={"CONNECTION": URL, "QUEUES": {"emails": {}}})

    assert mistake[0] == "django_delayq.E007"


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


@pytest.mark.django_db  # for the tables of the outbox
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

    @pytest.mark.parametrize(
        ("change", "message", "hint"),
        [
            (("mymaster", "nobody"), "no primary named 'nobody'", "Correct the name"),
            (("127.0.0.1", "127.0.0.2"), "no Sentinel of 'mymaster' answers", "Are"),
        ],
    )
    def test_deploy_says_what_is_wrong_with_sentinels(
        self,
        settings: Any,
        watched: Watched,
        change: tuple[str, str],
        message: str,
        hint: str,
    ) -> None:
        url = watched.url.replace(*change).replace("://", "://app:hunter2@")
        settings.DELAYQ = {"CONNECTION": url}

        found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)

        assert ids_of(found) == ["django_delayq.E009"]
        assert message in found[0].msg
        assert str(found[0].hint).startswith(hint)
        assert "hunter2" not in str(found[0])

    def test_deploy_asks_the_primary_of_sentinels(
        self, settings: Any, watched: Watched
    ) -> None:
        settings.DELAYQ = {"CONNECTION": watched.url}

        found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)

        # It has no append-only file, which only its own configuration says.
        assert ids_of(found) == ["django_delayq.W001"]
        assert "append-only" in found[0].msg

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

    @pytest.mark.redis
    def test_deploy_warns_of_what_the_overview_warns_of(
        self, settings: Any, client: Any, server: Any, queue_name: str
    ) -> None:
        @delayed_task(name="tests.checks.late", queue=queue_name)
        def late() -> None: ...

        shared = f"{queue_name}-java"
        settings.DELAYQ = {
            "CONNECTION": server.socket_url,
            "QUEUES": {
                queue_name: {},
                shared: {"REDISSON": "3.16.6", "CODEC": "StringCodec"},
            },
        }
        schedule(late, 0)
        timeout_set = QueueKeys.of(queue_name).timeout_set
        client.zadd(timeout_set, dict.fromkeys(client.zrange(timeout_set, 0, -1), 1e12))
        frame = pack(b"java1234", b"x", FrameFormat.BC0LC0)
        client.zadd(QueueKeys.of(shared).timeout_set, {frame: 1e15})
        info = WorkerInfo("web1", 4711, "0.0.1", queues=[shared])
        run(client, register(RegistryKeys.of(), queue_name, info))

        found = checks.run_checks(tags=["delayq"], include_deployment_checks=True)

        run(client, unregister(RegistryKeys.of(), queue_name))
        told = {item.msg: item.id for item in found if queue_name in item.msg}
        assert [
            id
            for message, id in told.items()
            if message.endswith("and no worker serves it.")
        ] == ["django_delayq.W001"]
        assert [
            id
            for message, id in told.items()
            if f"queue {shared!r}, 1 has a format" in message
        ] == ["django_delayq.E010"]
        assert ("django_delayq.W001", "Worker web1:4711 runs django-delayq 0.0.1") in {
            (item.id, item.msg.partition(",")[0]) for item in found
        }


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


# Models in annotations


def params(**annotations: Any) -> Any:
    """Return a function whose parameters have these annotations."""

    def function(*args: Any, **kwargs: Any) -> None: ...

    function.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
            for name, annotation in annotations.items()
        ]
    )
    return function


@pytest.mark.parametrize(
    "annotation",
    [
        Group,
        "Group",
        Group | None,
        Optional["Group"],
        "Group | None",
        list[Group],
        "list[Group] | None",
        dict[str, Group],
        Annotated[Group, "the group"],
        Group | User,
    ],
    ids=str,
)
def test_model_in_an_annotation_is_warned_of(annotation: Any) -> None:
    delayed_task(name="tests.checks.model")(params(pk=int, group=annotation))

    [(id_, message, hint)] = found(DELAYQ={"CONNECTION": URL})

    assert id_ == "django_delayq.W005"
    assert message.startswith(
        "Parameter 'group' of task 'tests.checks.model' is annotated with the model Group,"
    )
    assert hint.startswith("Pass the primary key")


@pytest.mark.parametrize(
    "annotation",
    [
        int,
        "int",
        Parameter.empty,
        None,
        5,
        Group | int,
        "Group | int",
        "list[Group | int]",
        "NotImportedHere",
        "1 / 0",
        "((",
        type[Group],
        Callable[[Group], None],
        Any,
        "Any",
        TypeVar("T"),
    ],
    ids=str,
)
def test_annotation_without_a_model_or_one_that_cannot_be_told_is_none(
    annotation: Any,
) -> None:
    delayed_task(name="tests.checks.plain")(params(value=annotation))

    assert found(DELAYQ={"CONNECTION": URL}) == []


# Databases


@contextmanager
def databases(**changes: dict[str, Any]) -> Iterator[None]:
    """Change what Django knows of its databases; nothing connects to them."""
    with ExitStack() as stack:
        for alias, change in changes.items():
            stack.enter_context(patch.dict(connections.settings[alias], change))
        yield


def test_atomic_requests_of_the_default_database_need_nothing() -> None:
    delayed_task(name="tests.checks.a")(params())

    with databases(default={"ATOMIC_REQUESTS": True}):
        assert found(DELAYQ={"CONNECTION": URL}) == []


def test_atomic_requests_of_another_database_need_its_alias() -> None:
    delayed_task(name="tests.checks.a", on_commit=False)(params())
    delayed_task(name="tests.checks.b", on_commit=True)(params())
    delayed_task(name="tests.checks.c", on_commit="other")(params())
    delayed_task(name="tests.checks.d", outbox=True)(params())
    for number in range(5):
        delayed_task(name=f"tests.checks.{number}")(params())

    @queue_handler("orders", name="tests.checks.handler")
    def handler(value: object) -> None: ...

    delayq = {"CONNECTION": URL, "QUEUES": {"default": {}, "orders": {}}}
    with databases(other={"ATOMIC_REQUESTS": True}):
        [(id_, message, hint)] = found(DELAYQ=delayq)
        at_once = found(DELAYQ=delayq | {"ON_COMMIT": False})

    assert id_ == "django_delayq.W008"
    assert "of database 'other' (ATOMIC_REQUESTS)" in message
    assert "wait only for the commit of database 'default'" in message
    assert (
        "jobs of tests.checks.0, tests.checks.1, tests.checks.2 and 3 more wait"
        in message
    )
    assert "Give on_commit='other'" in hint
    [(_, message, _)] = at_once
    assert "the jobs of tests.checks.d wait" in message


def test_atomic_requests_without_a_task_that_leaves_it_open_are_no_mistake() -> None:
    with databases(default={"ATOMIC_REQUESTS": True}):
        assert found(DELAYQ={"CONNECTION": URL}) == []


@pytest.mark.parametrize(
    ("pool", "threads", "size"),
    [
        (True, 5, 4),
        ({"max_size": 7}, 8, 7),
        ({"min_size": 2}, 3, 2),
        ({"min_size": 2, "max_size": None}, 3, 2),
        ({"timeout": 5}, 5, 4),
    ],
)
def test_pool_that_is_smaller_than_the_threads_is_warned_of(
    pool: Any, threads: int, size: int
) -> None:
    def told(threads: int) -> list[tuple[str, str, str]]:
        delayq = {"CONNECTION": URL, "WORKER": {"THREADS": threads}}
        return found(DELAYQ=delayq)

    with databases(default={"OPTIONS": {"pool": pool}}):
        [(id_, message, hint)] = told(threads)
        assert told(size) == []

    assert id_ == "django_delayq.W006"
    assert f"has a pool of {size} connections" in message
    assert f"to {threads} or more, or THREADS to {size} or less." in hint


def test_pool_is_compared_with_the_coroutines_if_a_task_is_async() -> None:
    async def query() -> None:
        """Each of these has a connection of its own while it runs."""

    delayed_task(name="tests.checks.query")(query)
    worker = {"THREADS": 3, "COROUTINES": 20}

    def told(size: int) -> list[tuple[str, str, str]]:
        with databases(default={"OPTIONS": {"pool": {"max_size": size}}}):
            return found(DELAYQ={"CONNECTION": URL, "WORKER": worker})

    [(id_, message, hint)] = told(22)

    assert told(23) == []
    assert id_ == "django_delayq.W006"
    assert "and 23 jobs may need one at once" in message
    assert "to 23 or more, or THREADS and COROUTINES together to 22 or less." in hint


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"OPTIONS": {"pool": False}},
        {"OPTIONS": {"pool": None}},
        {"OPTIONS": {"pool": {"max_size": "7"}}},
        {"OPTIONS": {"pool": 7}},
        {"OPTIONS": {"pool": True}, "ENGINE": "django.db.backends.oracle"},
        {"CONN_MAX_AGE": None},
    ],
    ids=str,
)
def test_database_without_a_pool_that_is_too_small_is_no_mistake(change: Any) -> None:
    with databases(default=change):
        assert found(DELAYQ={"CONNECTION": URL}) == []


def test_pool_with_conn_max_age_is_warned_of() -> None:
    pool = {"OPTIONS": {"pool": {"max_size": 8}}, "CONN_MAX_AGE": 60}
    with databases(default=pool):
        [(id_, message, _)] = found(DELAYQ={"CONNECTION": URL})

    assert id_ == "django_delayq.W006"
    assert "a pool and CONN_MAX_AGE, 60: Django refuses" in message


def test_a_database_is_asked_only_if_it_is_named(
    django_assert_num_queries: Any, db: None
) -> None:
    many = {"CONNECTION": URL, "WORKER": {"PROCESSES": 512, "THREADS": 1000}}
    with override_settings(DELAYQ=many), django_assert_num_queries(0):
        # Django 6.1 names all where nobody names any.
        found = checks.run_checks(
            tags=["delayq"], include_deployment_checks=True, databases=[]
        )
        # SQLite counts no connections.
        assert check_room(databases=["default"]) == []

    assert "django_delayq.W007" not in ids_of(found)


class TestRoom:
    """On a PostgreSQL; see `tests.databases`."""

    @pytest.fixture
    def alias(
        self, request: pytest.FixtureRequest, django_db_blocker: Any
    ) -> Iterator[str]:
        cluster = request.getfixturevalue("postgres")
        entry = cluster.make_database()
        with django_db_blocker.unblock(), added("of_room", entry) as alias:
            self.execute = partial(cluster.execute, database=entry["NAME"])
            self.name, self.settings = entry["NAME"], connections.settings[alias]
            yield alias

    def told(self, alias: str, processes: int, threads: int, **more: int) -> list[str]:
        worker = {"PROCESSES": processes, "THREADS": threads, **more}
        with override_settings(DELAYQ={"CONNECTION": URL, "WORKER": worker}):
            found = checks.run_checks(
                tags=["delayq"], include_deployment_checks=True, databases=[alias]
            )
        return [item.msg for item in found if item.id == "django_delayq.W007"]

    def test_worker_that_needs_more_than_the_server_admits_is_warned_of(
        self, alias: str
    ) -> None:
        [[most]] = self.execute("show max_connections")

        assert self.told(alias, 1, int(most)) == []
        [message] = self.told(alias, 2, int(most))

        assert message.endswith(f"admits {most}: max_connections is {most}.")
        assert f"needs {2 * int(most)} of them" in message

    def test_coroutines_count_if_a_task_is_async(self, alias: str) -> None:
        [[most]] = self.execute("show max_connections")
        worker = {"COROUTINES": int(most)}
        assert self.told(alias, 1, 1, **worker) == []

        async def query() -> None:
            """It has a connection of its own while it runs."""

        delayed_task(name="tests.checks.query")(query)

        [message] = self.told(alias, 1, 1, **worker)
        assert f"needs {int(most) + 1} of them" in message

    def test_limits_of_role_and_database_count(self, alias: str) -> None:
        role = f"r_{self.name}"
        self.execute(f"create role {role} login")
        self.settings["USER"] = role
        [[most]] = self.execute("show max_connections")

        [message] = self.told(alias, 1, int(most))
        assert message.endswith("and 3 are reserved.")
        self.execute(f"alter database {self.name} connection limit 9")
        [message] = self.told(alias, 2, 5)
        assert message.endswith("admits 9: the connection limit of the database.")
        self.execute(f"alter role {role} connection limit 8")
        [message] = self.told(alias, 3, 3)
        assert message.endswith("admits 8: the connection limit of its role.")
        assert self.told(alias, 2, 4) == []

    def test_pool_bounds_what_a_process_needs(self, alias: str) -> None:
        self.execute(f"create role r_{self.name} login connection limit 8")
        self.settings["USER"] = f"r_{self.name}"

        assert len(self.told(alias, 2, 8)) == 1
        # A pool needs a package of its own: the connection stays the one that is open.
        with (
            patch.object(type(connections[alias]), "pool", None),
            databases(**{alias: {"OPTIONS": {"pool": {"max_size": 4}}}}),
        ):
            assert self.told(alias, 2, 8) == []
            assert len(self.told(alias, 3, 8)) == 1

    def test_behind_a_pooler_nothing_is_said(self, alias: str) -> None:
        connections[alias].ensure_connection()
        info = connections[alias].connection.info
        # A pooler tells its clients of a process that the server does not have.
        with patch.object(type(info), "backend_pid", 1):
            assert self.told(alias, 512, 1000) == []

    def test_database_that_cannot_be_asked_is_left_to_others(self, alias: str) -> None:
        connections[alias].close()
        self.settings["USER"] = "nobody_of_this_name"

        assert self.told(alias, 512, 1000) == []


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


# Shards


def test_task_on_a_queue_with_shards_is_fine() -> None:
    @delayed_task(name="tests.checks.sharded", queue="sharded", unique=("text",))
    def sharded(text: str) -> None: ...

    assert found(DELAYQ={"CONNECTION": URL, "QUEUES": QUEUES_WITH_SHARDS}) == []


QUEUES_WITH_SHARDS = {"default": {}, "sharded": {"SHARDS": 2}}


def test_task_whose_keys_may_part_is_reported() -> None:
    @delayed_task(
        name="tests.checks.parted",
        queue="sharded",
        unique=("text",),
        limit=Limit("checks-parted", concurrency=1, key=lambda account, text: account),
    )
    def parted(account: int, text: str) -> None: ...

    (mistake,) = found(DELAYQ={"CONNECTION": URL, "QUEUES": QUEUES_WITH_SHARDS})

    assert mistake[0] == "django_delayq.E028"
    assert mistake[1].startswith(
        "Task 'tests.checks.parted' has a limit by a key, and a unique key of its own,"
    )


def test_handler_of_a_queue_with_shards_is_reported() -> None:
    @queue_handler("sharded", name="tests.checks.handler_of_shards")
    def handler(value: object) -> None: ...

    (mistake,) = found(DELAYQ={"CONNECTION": URL, "QUEUES": QUEUES_WITH_SHARDS})

    assert mistake[0] == "django_delayq.E028"
    assert "such as 'sharded:0'" in mistake[2]

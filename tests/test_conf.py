"""``DELAYQ``: what is read, what is refused and with which words, and where the clients lead."""

import os
import subprocess
import sys
import traceback
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_delayq import conf, delayed_task
from django_delayq.backoff import Backoff
from django_delayq.codecs import get_codec
from django_delayq.conf import (
    QueueSettings,
    Settings,
    WorkerSettings,
    find_problems,
    get_keyring,
    get_settings,
    override_worker,
    read_settings,
)
from django_delayq.core.shards import shard_of
from django_delayq.exceptions import InvalidSettings, NotSigned, QueueNotFound
from django_delayq.redaction import hide
from django_delayq.setting_fields import settings_of
from django_delayq.testing import captured
from django_delayq.wire.frame import FrameFormat

URL = "redis://localhost:6379/0"


def problems(value: Any) -> str:
    return "\n".join(f"{p.id} {p.message} {p.hint}" for p in find_problems(value))


# Reading


def test_nothing_set_means_the_defaults() -> None:
    settings = read_settings({})

    assert settings == Settings(queues={"default": QueueSettings(name="default")})
    assert settings.connection is None
    assert settings.worker == WorkerSettings()
    assert settings.worker.lease_ms == 30_000


def test_everything_can_be_set() -> None:
    settings = read_settings(
        {
            "CONNECTION": URL,
            "KEYS": ["sixteen or more,", b"or as many bytes"],
            "EMBEDDED_DIR": "/srv/data",
            "QUEUES": {
                "bulk": {"INSERTION_LIST": False},
                "java": {
                    "REDISSON": "3.16.6",
                    "FRAME": "Bc0Lc0",
                    "CODEC": "StringCodec",
                    "MAX_ATTEMPTS": 3,
                    "RETRY": {"BASE": 1, "FACTOR": 2, "MAX": 10, "JITTER": 0},
                    "TIME_LIMIT": 1.5,
                    "WEIGHT": 7,
                    "MAX_JOBS": 1_000_000,
                    "DEAD_TTL": 86_400,
                    "MAX_DEAD": 10_000,
                    "QUARANTINE_TTL": None,
                    "QUARANTINED_JOBS_TTL": 7_200.5,
                },
            },
            "WORKER": {
                "PROCESSES": 2,
                "THREADS": 4,
                "COROUTINES": 50,
                "LEASE": 12.5,
                "GRACE": 0,
                "HOLD_UNKNOWN": 0,
                "MAX_KILLS": 0,
            },
            "MAX_PAYLOAD_BYTES": 500,
            "MAX_FOREIGN_BYTES": 600,
            "ON_COMMIT": True,
            "METRICS_TOKENS": ["sixteen-or-more!"],
            "MIDDLEWARE": ["shop.middleware.timed"],
            "CONTEXT": ("shop.tenants.Tenant",),
        }
    )

    assert settings == Settings(
        connection=URL,
        keys=["sixteen or more,", b"or as many bytes"],
        embedded_dir=Path("/srv/data"),
        queues={
            "bulk": QueueSettings(name="bulk", insertion_list=False),
            "java": QueueSettings(
                name="java",
                redisson="3.16.6",
                frame="Bc0Lc0",
                codec="StringCodec",
                max_attempts=3,
                retry=Backoff(base=1, factor=2, max=10, jitter=0),
                time_limit_s=1.5,
                weight=7,
                max_jobs=1_000_000,
                dead_ttl_s=86_400,
                max_dead=10_000,
                quarantine_ttl_s=None,
                quarantined_jobs_ttl_s=7_200.5,
            ),
        },
        worker=WorkerSettings(
            processes=2,
            threads=4,
            coroutines=50,
            lease_s=12.5,
            grace_s=0,
            max_kills=0,
            hold_unknown_s=0,
        ),
        max_payload_bytes=500,
        max_foreign_bytes=600,
        metrics_tokens=["sixteen-or-more!"],
        middleware=("shop.middleware.timed",),
        context=("shop.tenants.Tenant",),
        on_commit=True,
    )
    assert settings.worker.lease_ms == 12_500


def test_default_queue_is_there_without_any_other_and_may_have_options() -> None:
    assert set(read_settings({"QUEUES": {}}).queues) == {"default"}
    settings = read_settings({"QUEUES": {"default": {"MAX_ATTEMPTS": 1}}})
    assert settings.queue("default").max_attempts == 1


def test_default_queue_can_be_left_out() -> None:
    settings = read_settings({"QUEUES": {"a": {}}})

    assert set(settings.queues) == {"a"}
    with pytest.raises(QueueNotFound, match="'default' is not configured"):
        settings.queue("default")


def test_backoff_may_be_passed_as_it_is() -> None:
    backoff = Backoff(base=2)

    settings = read_settings({"QUEUES": {"default": {"RETRY": backoff}}})

    assert settings.queue("default").retry is backoff


def test_version_of_redisson_chooses_frame_and_codec() -> None:
    settings = read_settings(
        {
            "QUEUES": {
                "old": {"REDISSON": "3.9.1"},
                "new": {"REDISSON": "3.27.2", "CODEC": "LongCodec"},
                "ours": {},
            }
        }
    )
    old, new, ours = (settings.queue(name) for name in ("old", "new", "ours"))

    assert old.is_shared
    assert old.frame_format is FrameFormat.DLC0
    assert old.payload_codec.name == "JsonJacksonCodec"
    assert new.frame_format is FrameFormat.BC0LC0
    assert new.payload_codec.name == "LongCodec"
    assert not ours.is_shared
    assert ours.frame_format is FrameFormat.BC0LC0
    assert ours.payload_codec.name == "json"


def test_codec_may_be_an_object() -> None:
    codec = get_codec("StringCodec")

    queue = read_settings({"QUEUES": {"a": {"CODEC": codec}}}).queue("a")

    assert queue.payload_codec is codec


def test_unknown_queue_is_told_with_what_there_is() -> None:
    settings = read_settings({"QUEUES": {"emails": {}, "orders": {}}})

    with pytest.raises(QueueNotFound) as caught:
        settings.queue("email")

    assert str(caught.value) == (
        "queue 'email' is not configured; DELAYQ['QUEUES'] has 'emails', 'orders'."
        " Did you mean 'emails'? Add 'email': {} to DELAYQ['QUEUES'], or correct"
        " the name."
    )


def test_every_setting_is_read_into_a_field() -> None:
    assert settings_of(Settings)["CONNECTION"].field == "connection"
    assert settings_of(QueueSettings)["TIME_LIMIT"].field == "time_limit_s"
    assert settings_of(WorkerSettings)["LEASE"].field == "lease_s"


#: Values of any type, most of them wrong wherever they stand.
ODD: list[Any] = [
    *(None, True, 0, -1, 1.5, 10**400, float("nan"), float("inf"), timedelta(1)),
    *(
        "",
        "x",
        "\ud800",
        b"x",
        object(),
        Path("x"),
        int,
        [],
        [None],
        [[]],
        {},
        {"x": {}},
    ),
]


@pytest.mark.parametrize(
    ("place", "cls"),
    [
        (lambda options: options, Settings),
        (lambda options: {"QUEUES": {"a": options}}, QueueSettings),
        (lambda options: {"QUEUES": {"a": {"RETRY": options}}}, Backoff),
        (lambda options: {"WORKER": options}, WorkerSettings),
    ],
    ids=["DELAYQ", "QUEUES", "RETRY", "WORKER"],
)
def test_any_value_is_read_or_refused_with_advice(place: Any, cls: Any) -> None:
    for key in settings_of(cls):
        for value in ODD:
            delayq = place({key: value})
            found = list(find_problems(delayq))
            if found:
                assert key in found[0].message
                assert found[0].hint
            else:
                assert isinstance(read_settings(delayq), Settings)


@pytest.mark.parametrize("cls", [Settings, QueueSettings, WorkerSettings, Backoff])
def test_every_default_could_be_given(cls: Any) -> None:
    defaults = {each.name: each.default for each in fields(cls)} | {"queues": {}}
    for each in settings_of(cls).values():
        default = defaults[each.field]
        assert each.is_fit({} if each.key == "WORKER" else default), each.key


@pytest.mark.parametrize("cls", [Settings, QueueSettings, WorkerSettings, Backoff])
def test_setting_says_what_none_means_if_its_type_has_it(cls: Any) -> None:
    types = {each.name: each.type for each in fields(cls)}
    for each in settings_of(cls).values():
        assert (NoneType in get_args(types[each.field])) is bool(each.none), each.key


# Refusing


@pytest.mark.parametrize("value", [None, [], "redis://", 5])
def test_setting_that_is_no_dict_is_refused(value: Any) -> None:
    text = problems(value)

    assert text.startswith(f"E001 DELAYQ is {value!r}, of type {type(value).__name__}.")
    with pytest.raises(InvalidSettings):
        read_settings(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"CONNECTIONS": URL},
            "DELAYQ has an unknown key 'CONNECTIONS'. Did you mean 'CON",
        ),
        ({"queues": {}}, "DELAYQ has an unknown key 'queues'. Did you mean 'QUEUES'?"),
        ({"XYZ": 1}, "unknown key 'XYZ'. Known are CONNECTION, KEYS, EMBEDDED_DI"),
        ({5: 1}, "DELAYQ has an unknown key 5."),
        (
            {"QUEUES": {"a": {"MAX_ATTEMTPS": 1}}},
            "DELAYQ['QUEUES']['a'] has an unknown key 'MAX_ATTEMTPS'. Did you mean 'MAX_A",
        ),
        (
            {"WORKER": {"THREAD": 1}},
            "DELAYQ['WORKER'] has an unknown key 'THREAD'. Did you mean 'THREADS'?",
        ),
        ({"THREADS": 4}, "unknown key 'THREADS'. It belongs in DELAYQ['WORKER']."),
        (
            {"MAX_ATTEMPTS": 4},
            "unknown key 'MAX_ATTEMPTS'. It belongs in DELAYQ['QUEUES'][name].",
        ),
        (
            {"WORKER": {"OUTBOX": True}},
            "DELAYQ['WORKER'] has an unknown key 'OUTBOX'. It belongs in DELAYQ.",
        ),
        (
            {"QUEUES": {"a": {"BACKOFF": {}}}},
            "DELAYQ['QUEUES']['a'] has an unknown key 'BACKOFF'. Here it is called RETRY.",
        ),
        (
            {"BACKOFF": {}},
            "key 'BACKOFF'. It belongs in DELAYQ['QUEUES'][name] as RETRY.",
        ),
    ],
)
def test_misspelt_key_is_told_with_a_suggestion(value: Any, text: str) -> None:
    assert problems(value).startswith("E002 ")
    assert text in problems(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"CONNECTION": 5},
            "DELAYQ['CONNECTION'] is 5. Give the alias of a django-red",
        ),
        ({"CONNECTION": ""}, "DELAYQ['CONNECTION'] is ''."),
        ({"CONNECTION": "http://x"}, "DELAYQ['CONNECTION'] is 'http://x'. Give the"),
        ({"CONNECTION": "redis://h:port/0"}, "is 'redis://h:***/0'."),
        ({"EMBEDDED_DIR": 5}, "DELAYQ['EMBEDDED_DIR'] is 5. Give the path of a"),
        ({"QUEUES": ["a"]}, "DELAYQ['QUEUES'] is ['a']. Give a dict of queue names to"),
        (
            {"QUEUES": {"a": None}},
            "DELAYQ['QUEUES']['a'] is None. Give a dict of",
        ),
        ({"WORKER": 2}, "DELAYQ['WORKER'] is 2. Give a dict of options."),
        ({"MAX_PAYLOAD_BYTES": 0}, "is 0. Give a number of bytes, 128 to 67,108,864."),
        ({"MAX_PAYLOAD_BYTES": True}, "is True. Give a number of bytes"),
        ({"ON_COMMIT": "default"}, "is 'default'. Give True or False."),
        ({"MIDDLEWARE": "shop.timed"}, "is 'shop.timed'. Give a list of dotted paths"),
        ({"MIDDLEWARE": ["timed"]}, "is ['timed']. Give a list of dotted paths"),
        ({"CONTEXT": [None]}, "is [None]. Give a list of dotted paths"),
    ],
)
def test_wrong_value_is_told_with_what_is_wanted(value: Any, text: str) -> None:
    assert problems(value).startswith("E003 ")
    assert text in problems(value)


HUNTER = "hunter2-hunter2-hunter2"


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ([], "an empty list"),
        ({}, "of type dict (not shown)"),
        (5, "of type int (not shown)"),
        (HUNTER, "a single secret (not shown), not a list"),
        (HUNTER.encode(), "a single secret (not shown), not a list"),
        (hide(HUNTER), "a single secret (not shown), not a list"),
        (["hunter2-hunter"], "a list whose secret 1 has 14 characters"),
        ([HUNTER, ""], "a list whose secret 2 has 0 characters"),
        ((HUNTER, None), "a list whose secret 2 is of type NoneType"),
        ([[HUNTER]], "a list whose secret 1 is of type list"),
        ({HUNTER: HUNTER}, "of type dict (not shown)"),
    ],
)
def test_wrong_keys_are_told_and_not_shown(keys: Any, what: str) -> None:
    text = problems({"KEYS": keys})

    assert text.startswith(f"E003 DELAYQ['KEYS'] is {what}. Give a list of secrets")
    assert "each a string of at least 16 characters" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("token", "what"),
    [
        (["hunter2"], "a list whose secret 1 has 7 characters"),
        (
            [HUNTER, "hunter2 hunter2 hunter2"],
            "a list with a secret that has characters that are not allowed",
        ),
        (
            ["hunter2-hunter2-hünter2"],
            "a list with a secret that has characters that are not allowed",
        ),
        (
            [HUNTER.encode()],
            "a list with a secret that has characters that are not allowed",
        ),
        (HUNTER, "a single secret (not shown), not a list"),
        (None, "of type NoneType (not shown)"),
    ],
)
def test_wrong_token_is_told_and_not_shown(token: Any, what: str) -> None:
    text = problems({"METRICS_TOKENS": token})

    assert text.startswith(
        f"E003 DELAYQ['METRICS_TOKENS'] is {what}. Give a list of strings of at least 16"
    )
    assert "hunter2" not in text
    assert HUNTER not in repr(read_settings({"METRICS_TOKENS": [HUNTER]}))


def test_secrets_that_stand_under_another_name_are_not_shown() -> None:
    for name in ("KEY", "SECRET_KEY", "SECRETS"):
        text = problems({name: ["hunter2-hunter2-hunter2"]})

        assert text.startswith(f"E002 DELAYQ has an unknown key {name!r}.")
        assert "hunter2" not in text


# Keys to sign with

OLD, NEW = "an old secret of this test", "a new secret of this test"


def signature(queue: str = "q") -> str:
    return get_keyring().signer.sign(queue, "t" * 22, b"{}")


def is_accepted(said: str) -> bool:
    try:
        get_keyring().check(said, "q", "t" * 22, b"{}")
    except NotSigned:
        return False
    return True


def test_secret_key_signs_and_fallbacks_are_accepted(settings: Any) -> None:
    settings.SECRET_KEY = OLD
    before = signature()
    assert is_accepted(before)

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = NEW, [OLD]
    assert signature()[1:5] != before[1:5]
    assert is_accepted(signature())
    assert is_accepted(before)

    settings.SECRET_KEY_FALLBACKS = []
    assert not is_accepted(before)


def test_keys_take_the_place_of_the_secret_key(settings: Any) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = OLD, [NEW]
    before = signature()

    settings.DELAYQ = {"KEYS": [NEW, OLD]}
    assert len(get_keyring().ids) == 2
    assert signature() != before
    assert is_accepted(before)

    settings.DELAYQ = {"KEYS": (NEW.encode(),)}
    assert is_accepted(signature())
    assert not is_accepted(before)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SECRET_KEY": ""}, "SECRET_KEY is empty, and jobs are signed with it. Set"),
        ({"SECRET_KEY_FALLBACKS": [""]}, "FALLBACKS: secret 2 of 2 is empty"),
        ({"SECRET_KEY_FALLBACKS": [None]}, "secret 2 of 2 is of type NoneType, and"),
        ({"SECRET_KEY_FALLBACKS": [5]}, "secret 2 of 2 is of type int, and has"),
        (
            {"SECRET_KEY_FALLBACKS": ["hunter2\udcff"]},
            "secret 2 of 2 is not valid Unicode",
        ),
        # Each of its characters would be a secret.
        ({"SECRET_KEY_FALLBACKS": "hunter2"}, "SECRET_KEY_FALLBACKS is not a list"),
        (
            {"DELAYQ": {"KEYS": ["secret number 06917", "secret number 09631"]}},
            "DELAYQ['KEYS']: two different secrets have keys with the id '2hDA'",
        ),
    ],
)
def test_secrets_that_nothing_can_be_signed_with_are_told_and_not_shown(
    settings: Any, changes: dict[str, Any], said: str
) -> None:
    for name, value in changes.items():
        setattr(settings, name, value)

    with pytest.raises(InvalidSettings) as refused:
        get_keyring()

    shown = "".join(traceback.format_exception(refused.value))
    assert said in str(refused.value)
    assert "hunter2" not in shown
    assert "secret number" not in shown


def test_secret_that_is_there_twice_is_one(settings: Any) -> None:
    settings.DELAYQ = {"KEYS": [OLD, OLD, OLD.encode()]}

    assert len(get_keyring().ids) == 1


def test_secrets_are_shown_nowhere(settings: Any) -> None:
    settings.DELAYQ = {"KEYS": ["hunter2-hunter2-hunter2"]}

    shown = repr(get_settings()) + repr(get_keyring()) + repr(vars(get_keyring()))

    assert f"<Keyring {get_keyring().ids[0]}>" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        ({}, False),
        ({"INSERTION_LIST": None}, False),
        ({"INSERTION_LIST": True}, True),
        ({"REDISSON": "3.16.6"}, True),
        ({"REDISSON": "3.16.6", "INSERTION_LIST": None}, True),
        ({"REDISSON": "3.16.6", "INSERTION_LIST": False}, False),
    ],
)
def test_list_follows_redisson_unless_it_is_said(
    settings: Any, options: dict[str, Any], keeps: bool
) -> None:
    settings.DELAYQ = {"CONNECTION": URL, "QUEUES": {"q": options}}

    assert get_settings().queue("q").keeps_list is keeps
    found = conf.queue_options("q")
    assert found is not None
    assert found.insertion_list is keeps
    assert conf.queue_options("another") is None


@pytest.mark.parametrize(
    "options",
    [
        {"INSERTION_LIST": 1},
        {"REDISSON": "3"},
        {"REDISSON": "3.1.0"},
        {"REDISSON": "3.21"},
        {"REDISSON": 3.16},
        {"FRAME": "dLc1"},
        {"FRAME": ["dLc0"]},
        {"CODEC": "NoCodec"},
        {"CODEC": object()},
        {"CODEC": ["json"]},
        {"MAX_ATTEMPTS": 0},
        {"MAX_ATTEMPTS": 2.5},
        {"RETRY": 5},
        {"TIME_LIMIT": 0},
        {"TIME_LIMIT": timedelta(seconds=5)},
        {"TIME_LIMIT": float("nan")},
        {"WEIGHT": 0},
        {"WEIGHT": "2"},
        {"WEIGHT": 1_001},
        {"MAX_ATTEMPTS": 1_000_001},
        {"TIME_LIMIT": 2 * 10**9},
        {"DEAD_TTL": 180},
        {"DEAD_TTL": timedelta(days=180)},
        {"MAX_JOBS": 0},
        {"MAX_JOBS": -1},
        {"MAX_JOBS": 1_000.0},
        {"MAX_JOBS": True},
        {"MAX_JOBS": "1000"},
        {"MAX_JOBS": 10**9 + 1},
        {"MAX_DEAD": 0},
        {"MAX_DEAD": 1e6},
        {"QUARANTINE_TTL": -1},
        {"QUARANTINED_JOBS_TTL": float("nan")},
    ],
)
def test_wrong_option_of_a_queue_is_told(options: dict[str, Any]) -> None:
    (key,) = options

    text = problems({"QUEUES": {"a": options}})

    assert text.startswith(f"E003 DELAYQ['QUEUES']['a'][{key!r}] is ")
    assert " Give " in text


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("BASE", -1, "Give a number of seconds, 0 to 1,000,000,000."),
        ("BASE", True, "Give a number of seconds, 0 to 1,000,000,000."),
        ("FACTOR", "x", "Give a number, 1 to 1,000,000,000; below 1 the waits would"),
        ("FACTOR", 0.5, "Give a number, 1 to 1,000,000,000; below 1 the waits would"),
        ("JITTER", 2, "Give a share, 0 to 1."),
        ("MAX", float("inf"), "Give a number of seconds, 0 to 1,000,000,000."),
    ],
)
def test_wrong_part_of_retry_is_named(key: str, value: Any, hint: str) -> None:
    for written in (key, key.lower()):
        text = problems({"QUEUES": {"a": {"RETRY": {"MAX": 9, written: value}}}})

        said = f"E003 DELAYQ['QUEUES']['a']['RETRY'][{key!r}] is {value!r}. {hint}"
        assert text.startswith(said)
        assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("MAXX", "Did you mean 'MAX'?"),
        ("bases", "Did you mean 'BASE'?"),
        (1, "Known are BASE, FACTOR, MAX, JITTER."),
    ],
)
def test_unknown_key_of_retry_is_named(key: Any, hint: str) -> None:
    text = problems({"QUEUES": {"a": {"RETRY": {key: 1}}}})

    said = f"DELAYQ['QUEUES']['a']['RETRY'] has an unknown key {key!r}"
    assert text == f"E002 {said}. {hint}"


def test_all_that_is_wrong_in_retry_is_told_at_once() -> None:
    retry = {"BASE": -1, "FACTOR": "x", "MAXX": 3}

    text = problems({"QUEUES": {"mail": {"RETRY": retry}}})

    assert [line[:4] for line in text.splitlines()] == ["E003", "E003", "E002"]


@pytest.mark.parametrize("key", ["BASE", "base", "Base"])
def test_key_of_retry_may_be_written_as_in_a_backoff(key: str) -> None:
    settings = read_settings({"QUEUES": {"a": {"RETRY": {key: 2}}}})

    assert settings.queue("a").retry == Backoff(base=2)


@pytest.mark.parametrize(
    "options",
    [
        {"PROCESSES": 0},
        {"THREADS": None},
        {"COROUTINES": -1},
        {"LEASE": 0},
        {"LEASE": 0.1},
        {"LEASE": 1.9},
        {"LEASE": float("inf")},
        {"LEASE": 86_401},
        {"PROCESSES": 513},
        {"THREADS": 1_001},
        {"COROUTINES": 10_001},
        {"GRACE": -1},
        {"GRACE": float("inf")},
        {"MAX_KILLS": 1_001},
        {"GRACE": "25"},
        {"HOLD_UNKNOWN": -1},
        {"HOLD_UNKNOWN": float("inf")},
        {"HOLD_UNKNOWN": float("nan")},
        {"HOLD_UNKNOWN": 30 * 86_400 + 1},
        {"MAX_KILLS": -1},
    ],
)
def test_wrong_option_of_the_worker_is_told(options: dict[str, Any]) -> None:
    (key,) = options

    assert f"E003 DELAYQ['WORKER'][{key!r}] is " in problems({"WORKER": options})


@pytest.mark.parametrize("name", ["", "a{b}c}{", "x}y", 5, None, "\ud800"])
def test_name_that_no_queue_can_have_is_told(name: Any) -> None:
    value = {"QUEUES": {name: {}}}
    found = list(find_problems(value))

    if name == "a{b}c}{":
        assert found == []
    else:
        assert [problem.id for problem in found] == ["E004"]
        assert found[0].hint == "Rename the queue."


def test_all_that_is_wrong_is_told_at_once() -> None:
    value = {"CONNECTION": 5, "WORKR": {}, "QUEUES": {"a": {"WEIGHT": 0}, "": {}}}

    with pytest.raises(InvalidSettings) as caught:
        read_settings(value)

    assert isinstance(caught.value, ImproperlyConfigured)
    assert len(str(caught.value).splitlines()) == 4
    assert sorted(p.id for p in find_problems(value)) == [
        "E002",
        "E003",
        "E003",
        "E004",
    ]


def test_password_of_a_url_is_not_told() -> None:
    text = problems({"CONNECTION": "redis://app:secret@localhost:port/0"})

    assert "secret" not in text
    assert "localhost:port" in text


def test_backoff_refuses_what_it_cannot_wait() -> None:
    for options in ({"base": "5"}, {"max": True}, {"factor": float("nan")}):
        with pytest.raises(InvalidSettings):
            Backoff(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failures", "random", "delay_ms"),
    [
        (1, 0.5, 5000),
        (2, 0.5, 15_000),
        (1, 0, 3750),
        (1, 1, 6250),
        (10**6, 0.5, 3_600_000),
    ],
)
def test_backoff_grows_to_its_limit(
    failures: int, random: float, delay_ms: int
) -> None:
    assert Backoff().delay_ms(failures, random) == delay_ms


@pytest.mark.parametrize("random", [0.0, 0.5, 1.0])
def test_default_attempts_outlast_a_failure_of_two_hours(random: float) -> None:
    queue = QueueSettings(name="q")
    waits = [queue.retry.delay_ms(n, random) for n in range(1, queue.max_attempts)]

    assert queue.max_attempts == 10
    # docs/settings.md tells both.
    assert 2.6 * 3_600_000 < sum(waits) < 3.7 * 3_600_000


def test_bounds_hold_for_the_command_line_too() -> None:
    worker = WorkerSettings()

    assert override_worker(worker, {"THREADS": 3}) == replace(worker, threads=3)
    assert override_worker(worker, {}) == worker
    with pytest.raises(
        InvalidSettings, match=r"the command line.*'PROCESSES'.* is 513\. Give a number"
    ):
        override_worker(worker, {"PROCESSES": 513})


# The settings of this process


def test_settings_are_read_once_and_again_after_a_change() -> None:
    with override_settings(DELAYQ={"MAX_PAYLOAD_BYTES": 1000}):
        first = get_settings()
        assert get_settings() is first
        with override_settings(DELAYQ={"MAX_PAYLOAD_BYTES": 2000}):
            assert get_settings().max_payload_bytes == 2000
        assert get_settings().max_payload_bytes == 1000


def test_wrong_settings_are_refused_when_they_are_used() -> None:
    with override_settings(DELAYQ={"WORKR": {}}):
        with pytest.raises(InvalidSettings, match="unknown key 'WORKR'"):
            get_settings()


def test_settings_without_the_app_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "django_delayq.apps")

    # Each reads the settings again.
    with override_settings(DELAYQ={"CONNECTION": URL}):
        with pytest.raises(InvalidSettings, match="not in INSTALLED_APPS: add it the"):
            get_settings()
    with override_settings(DELAYQ={}), captured():
        with pytest.raises(InvalidSettings, match="not in INSTALLED_APPS: add it the"):
            delayed_task(len_of).schedule(0, "")


def len_of(text: str) -> None: ...


def test_importing_the_package_reads_no_settings() -> None:
    code = "import django_delayq, django_delayq.checks, django_delayq.health.problems"
    without = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=without,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# Shards


def test_queue_with_shards_is_its_shards() -> None:
    settings = read_settings(
        {
            "QUEUES": {
                "mail": {"SHARDS": 3, "CONCURRENCY": 10, "MAX_JOBS": 4, "RATE": "9/m"},
                "a": {},
            }
        }
    )

    assert list(settings.queues) == ["mail:0", "mail:1", "mail:2", "a"]
    assert settings.names == ["mail", "a"]
    assert [each.name for each in settings.queues_of("mail")] == [
        "mail:0",
        "mail:1",
        "mail:2",
    ]
    assert [each.name for each in settings.queues_of()] == [
        "mail:0",
        "mail:1",
        "mail:2",
        "a",
    ]
    shards = list(settings.queues.values())[:3]
    assert [each.concurrency for each in shards] == [4, 3, 3]
    assert [each.max_jobs for each in shards] == [2, 1, 1]
    assert {each.rate for each in shards} == {"9/3m"}
    assert {each.whole for each in shards} == {"mail"}
    assert (settings.whole("mail:2"), settings.whole("a")) == ("mail", "a")


def test_parts_of_another_number_of_shards_are_not_configured() -> None:
    settings = read_settings({"QUEUES": {"mail": {"SHARDS": 2}, "post": {}}})

    for name in ("mail", "mail:2", "mail:x", "post:1"):
        assert settings.find(name) is None
        with pytest.raises(QueueNotFound, match="'mail'"):
            settings.queue(name)
    with pytest.raises(QueueNotFound, match=r"'mail' has shards.* as 'mail:0'"):
        settings.queue("mail")
    # What follows another job into one of them goes where it would go now.
    assert settings.home_of("mail:1", "key").name == "mail:1"
    assert settings.home_of("mail", "key").name == f"mail:{shard_of('key', 2)}"
    for name in ("mail:5", "post:1"):
        with pytest.raises(QueueNotFound):
            settings.home_of(name, "key")


@pytest.mark.parametrize("value", [0, -1, 65, True, "4", 2.0])
def test_shards_are_a_number_that_workers_can_serve(value: Any) -> None:
    text = problems({"QUEUES": {"mail": {"SHARDS": value}}})

    assert text.startswith(
        f"E003 DELAYQ['QUEUES']['mail']['SHARDS'] is {value!r}. Give a number of shards,"
        " 1 to 64"
    )


@pytest.mark.parametrize(
    ("queues", "text"),
    [
        (
            {"mail": {"SHARDS": 2, "REDISSON": "3.16.6"}},
            "E003 DELAYQ['QUEUES']['mail'] has both SHARDS and REDISSON.",
        ),
        (
            {"{mail}": {"SHARDS": 2}},
            "E004 DELAYQ['QUEUES']['{mail}'] has SHARDS, and braces in its name",
        ),
        (
            {"mail": {"SHARDS": 2}, "mail:7": {}},
            "E004 DELAYQ['QUEUES']['mail:7'] has the name of a shard of queue 'mail'.",
        ),
        (
            {"mail": {"SHARDS": 4, "CONCURRENCY": 3}},
            "E003 DELAYQ['QUEUES']['mail']['CONCURRENCY'] is 3, which 4 shards cannot share",
        ),
        (
            {"mail": {"SHARDS": 4, "MAX_JOBS": 3}},
            "E003 DELAYQ['QUEUES']['mail']['MAX_JOBS'] is 3, which 4 shards cannot share",
        ),
        (
            {"mail": {"SHARDS": 64, "RATE": "1/d"}},
            "E003 DELAYQ['QUEUES']['mail']['RATE'] is '1/d', which 64 shards cannot share",
        ),
    ],
)
def test_queue_that_cannot_have_shards_is_refused(queues: Any, text: str) -> None:
    assert problems({"QUEUES": queues}).startswith(text)
    with pytest.raises(InvalidSettings):
        read_settings({"QUEUES": queues})


def test_name_like_that_of_a_shard_is_free_beside_a_queue_without_shards() -> None:
    settings = read_settings({"QUEUES": {"mail": {}, "mail:1": {"WEIGHT": 3}}})

    assert settings.queue("mail:1").weight == 3
    assert settings.names == ["mail", "mail:1"]


@pytest.mark.parametrize("prefix", ["a b", "{a}", "a\n", "\ud800", "x" * 65, None, 7])
def test_prefix_that_no_key_could_have_is_refused(prefix: Any) -> None:
    told = problems({"PREFIX": prefix})

    assert told.startswith("E003 DELAYQ['PREFIX'] is ")
    assert "such as 'shop-'" in next(conf.find_problems({"PREFIX": prefix})).hint


@pytest.mark.parametrize(
    ("queues", "told"),
    [
        ({"mail": {}, "shop:mail": {"REDISSON": "3.27.2"}}, "'mail'] is 'shop:mail'"),
        (
            {"mail": {"SHARDS": 2}, "shop:mail:1": {"REDISSON": "3.27.2"}},
            "'mail'] is 'shop:mail'",
        ),
        ({"7": {}}, "is the name of a shard of 'shop'"),
    ],
)
def test_prefix_that_makes_one_name_of_two_is_refused(queues: Any, told: str) -> None:
    value = {"PREFIX": "shop:", "QUEUES": queues}

    assert problems(value).startswith("E004 ")
    assert told in problems(value)
    assert not problems({**value, "PREFIX": "shop-"})


def test_prefix_goes_before_all_queues_but_those_of_java() -> None:
    queues = {"a": {}, "b": {"SHARDS": 2}, "java": {"REDISSON": "3.27.2"}}
    read = conf.read_settings({"PREFIX": "shop:", "QUEUES": queues})

    there = {queue.name: queue.keys.queue.destination for queue in read.queues_of()}

    assert there == {
        "a": "shop:a",
        "b:0": "shop:b:0",
        "b:1": "shop:b:1",
        "java": "java",
    }
    assert {read.name_of(name) for name in there.values()} == set(there)
    assert read.name_of("shop:b") == "b"
    assert read.name_of("shop:java") == "shop:java"

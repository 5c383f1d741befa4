"""What is encrypted stays so on the server, from the call to the end, and comes back for those who have the key."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.management import call_command
from redis.exceptions import NoPermissionError

from django_delayq import (
    Batch,
    Cancel,
    InvalidSettings,
    InvalidTask,
    JobFailed,
    Retry,
    current_job,
    delayed_task,
    ended_jobs,
    every,
    find_jobs,
    get_job,
    get_schedules,
    queue_handler,
    schedule,
    store_schedule,
)
from django_delayq.backoff import Backoff
from django_delayq.conf import get_keyring, get_settings, read_settings
from django_delayq.core.hold import HeldNames
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.exceptions import NotSigned
from django_delayq.health.held_problems import find_held
from django_delayq.health.queue_facts import QueueFacts
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import stored_results
from django_delayq.jobs.envelope import Envelope, Follow, Follower
from django_delayq.redaction import ENCRYPTED
from django_delayq.signals import job_scheduled
from django_delayq.testing import captured, frozen_queue
from django_delayq.tools.resign import Resigning
from django_delayq.wire.signatures import Keyring
from tests.polling import wait_until
from tests.worker.conftest import every_server
from tests.worker.project import tasks

CANARY = "c4nary"
ARGUMENT, RESULT, ERROR, PROGRESS = (f"{CANARY}-{n}" for n in range(4))
OLD, NEW = "the secret of before", "the secret of today"
LATER = 3_600
GATE = threading.Event()
AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)


@delayed_task(encrypt=True, keep_result=60, max_attempts=2, backoff=AT_ONCE)
def guarded(what: str = "return", *, text: str = "") -> str:
    current_job().progress(1, 2, PROGRESS)
    match what:
        case "return":
            return f"{RESULT} {text}"
        case "hold":
            GATE.wait(60)
        case "cancel":
            raise Cancel(ERROR)
        case "retry":
            raise Retry(0, ERROR)
    raise ValueError(f"{ERROR} {text}")


@delayed_task(encrypt=True, max_attempts=1, sensitive=("token",))
def masked(token: str, text: str) -> None:
    raise ValueError(f"{token} and {text}")


@delayed_task(max_attempts=1)
def plain(text: str = "") -> str:
    return text


def all_bytes(client: redis.Redis, name: str) -> bytes:
    """Return all that a server has in keys with a name, or in those of no queue."""
    found = b""
    for key in client.scan_iter(count=1_000):
        if name.encode() in key or b"{delayq}" in key:
            found += key + (client.dump(key) or b"") + _texts_of(client, key)
    return found


def _texts_of(client: redis.Redis, key: bytes) -> bytes:
    # What `dump` compresses.
    match client.type(key):
        case b"hash":
            return repr(client.hgetall(key)).encode()
        case b"list":
            return repr(client.lrange(key, 0, -1)).encode()
        case b"zset":
            return repr(client.zrange(key, 0, -1)).encode()
    return repr(client.get(key)).encode() if client.type(key) == b"string" else b""


@pytest.fixture
def q() -> Iterator[Any]:
    with frozen_queue() as q:
        yield q


# The call, its result, its errors.


def test_job_runs_with_what_was_encrypted_and_its_result_comes_back(q):
    job = guarded.schedule(0, "return", text=ARGUMENT)

    assert CANARY.encode() not in job.draft.new.payload
    found = get_job(job.id)
    assert (found.args, found.kwargs) == (["return"], {"text": ARGUMENT})
    assert found.is_encrypted
    q.run_due()

    assert job.wait(1) == f"{RESULT} {ARGUMENT}"
    assert get_job(job.id).kept["result"] == f"{RESULT} {ARGUMENT}"


def test_errors_come_back_for_code_and_stay_out_of_the_list_of_ended_jobs(q):
    job = guarded.schedule(0, "fail", text=ARGUMENT)
    q.run_due()
    q.advance(minutes=1)

    assert job.refresh() is State.DEAD
    assert job.error["error"] == f"ValueError: {ERROR} {ARGUMENT}"
    assert ERROR in job.error["traceback"]
    assert job.error["kind"] == "failed"
    assert [ERROR in each["error"] for each in job.history] == [True, True]
    assert [each.error for each in ended_jobs()] == [ENCRYPTED]
    with pytest.raises(JobFailed, match=ERROR):
        job.wait(1)


def test_reason_of_a_cancelled_job_is_encrypted(q):
    job = guarded.schedule(0, "cancel")
    q.run_due()

    with pytest.raises(JobFailed, match=ERROR):
        job.wait(1)


def test_log_has_the_error_as_that_of_any_task(q, caplog):
    guarded.schedule(0, "fail")
    q.run_due()

    assert ERROR in caplog.text


def test_sensitive_values_are_masked_inside_of_what_is_encrypted(q):
    job = masked.schedule(0, "the token", ARGUMENT)
    q.run_due()
    job.refresh()

    assert job.error["error"] == f"ValueError: *** and {ARGUMENT}"


def test_queue_encrypts_the_jobs_of_all_tasks(settings):
    settings.DELAYQ = {"QUEUES": {"safe": {"ENCRYPT": True}, "default": {}}}
    with frozen_queue() as q:
        job = plain.using(queue="safe", keep_result=60).schedule(0, ARGUMENT)
        other = plain.schedule(0, ARGUMENT)
        q.run_due()

        assert CANARY.encode() not in job.draft.new.payload
        assert CANARY.encode() in other.draft.new.payload
        assert job.wait(1) == ARGUMENT


def test_encrypted_context_and_clear_names_of_schedules_come_back_together():
    keyring, token = Keyring([NEW]), "t" * 22
    headers = {"schedule": "nightly", "occurrence": "1", "locale.language": CANARY}
    call = Envelope("shop.tasks.send", [1], headers=headers, flags=1)

    payload = envelopes.encode(call, token, "mail", keyring)

    assert CANARY.encode() not in payload
    assert b"nightly" in payload
    assert envelopes.claimed_call(payload).headers.keys() == {"schedule", "occurrence"}
    found = envelopes.open_payload(payload, "mail", keyring)
    assert (found.args, found.headers) == ([1], headers)


def test_replaced_arguments_are_encrypted_for_the_job_that_gets_them(q):
    of = delayed_task(
        name="tests.encryption.unique",
        encrypt=True,
        keep_result=60,
        unique=lambda text: "one",
        on_duplicate="replace",
    )(lambda text: text)
    first = of.schedule(60, "first")
    second = of.schedule(60, ARGUMENT)

    assert first.id == second.id
    assert get_job(first.id).args == [ARGUMENT]
    q.advance(seconds=61)
    assert first.wait(1) == ARGUMENT


def test_followers_are_encrypted_inside_of_a_job_that_is_not(q):
    job = plain.prepare(0, "first")
    job.then(guarded.prepare(0, "return", text=ARGUMENT))
    told = []

    def listen(sender: Any, job: Any, **named: Any) -> None:
        told.append(job.kwargs)

    job_scheduled.connect(listen)
    try:
        schedule(job)
        assert CANARY.encode() not in job.draft.new.payload
        ran = q.run_due()
    finally:
        job_scheduled.disconnect(listen)

    assert [each.task for each in ran] == [plain.name, guarded.name]
    assert get_job(ran[1].id).wait(1) == f"{RESULT} {ARGUMENT}"
    assert {"text": ARGUMENT} in told


def test_callback_of_a_batch_runs_with_its_encrypted_arguments(q):
    callback = guarded.prepare(0, "return", text=ARGUMENT)
    Batch(callback).schedule([guarded.prepare(0, text=f"{n}") for n in range(2)])
    q.run_due()

    assert callback.wait(1) == f"{RESULT} {ARGUMENT}"


def test_captured_jobs_have_their_arguments(settings):
    with captured() as jobs:
        schedule(plain.prepare(0).then(guarded.prepare(0, text=ARGUMENT)))
        guarded.schedule(0, text=ARGUMENT)

    assert [job.kwargs for job in jobs if job.task == guarded.name] == [
        {"text": ARGUMENT}
    ]
    assert jobs[0].then[0].kwargs == {"text": ARGUMENT}


# All that is on the server.


@every_server
def test_server_never_has_what_is_encrypted(
    configure, work, records, client, queue_name
):
    configure({"KEEP_ENDED": 100})
    on = guarded.using(queue=queue_name)
    seen = []

    def look() -> None:
        seen.append(all_bytes(client, queue_name))

    jobs = [
        schedule(on, 0, what, text=ARGUMENT)
        for what in ("return", "fail", "cancel", "retry")
    ]
    chain = plain.using(queue=queue_name).prepare(0)
    schedule(chain.then(on.prepare(0, text=ARGUMENT)))
    callback = on.prepare(0, text=ARGUMENT)
    Batch(callback).schedule([on.prepare(0, "return", text=ARGUMENT)])
    store_schedule("nightly", on, every(timedelta(days=1)), kwargs={"text": ARGUMENT})
    look()
    GATE.clear()
    held = schedule(on, 0, "hold", text=ARGUMENT)
    worker = work(threads=4)
    wait_until(lambda: held.read_progress(), description="it makes progress")
    assert held.read_progress().text == PROGRESS
    look()
    GATE.set()
    states = [State.SUCCEEDED, State.DEAD, State.CANCELLED, State.DEAD]
    wait_until(
        lambda: [job.refresh() for job in jobs] == states,
        description="all have ended",
    )
    wait_until(
        lambda: held.refresh() is State.DEAD, description="the last one has ended"
    )
    assert callback.wait(10) == f"{RESULT} {ARGUMENT}"
    look()
    worker.stop()
    look()

    assert [text for text in seen if CANARY.encode() in text] == []
    assert ERROR in get_job(jobs[1].id).error["error"]


def test_server_has_nothing_after_a_kill(
    configure, program, records, client, queue_name
):
    configure({"ENCRYPT": True}, {"LEASE": 2})
    job = schedule(tasks.hold.using(queue=queue_name), 0)
    schedule(tasks.note.using(queue=queue_name), LATER, ARGUMENT)
    worker = program("--queue", queue_name)
    wait_until(lambda: records.count("start") == 1, description="it runs")
    for pid in (worker.pid, *worker.children()):
        os.kill(pid, signal.SIGKILL)

    assert CANARY.encode() not in all_bytes(client, queue_name)
    records.let_go()
    program("--queue", queue_name)
    wait_until(lambda: job.refresh() is State.SUCCEEDED, description="it ends")
    assert CANARY.encode() not in all_bytes(client, queue_name)


# Keys.


@pytest.fixture
def keys_are(settings):
    def use(*secrets: str) -> None:
        settings.DELAYQ = {**settings.DELAYQ, "KEYS": list(secrets)}

    return use


def test_job_whose_key_is_missing_is_held_until_it_is_there(
    work, configure, queue_name, keys_are
):
    keys_are(OLD)
    job = schedule(guarded.using(queue=queue_name), 0, text=ARGUMENT)
    keys_are(NEW)
    worker = work()
    wait_until(lambda: job.refresh() is State.HELD, description="it is held")
    worker.stop()

    keys_are(NEW, OLD)
    work()
    assert job.wait(20) == f"{RESULT} {ARGUMENT}"


def test_resigning_encrypts_anew_all_that_is_kept(
    work, configure, queue_name, client, keys_are, capsys
):
    keys_are(OLD)
    on = guarded.using(queue=queue_name)
    dead = schedule(on, 0, "fail", text=ARGUMENT)
    done = schedule(on, 0, "return", text=ARGUMENT)
    retried = schedule(on.using(backoff=Backoff(base=LATER)), 0, "fail")
    worker = work()
    wait_until(lambda: dead.refresh() is State.DEAD, description="one is dead")
    wait_until(lambda: retried.refresh() is State.RETRYING, description="one waits")
    assert done.wait(10)
    worker.stop()
    waiting = schedule(on, LATER, text=ARGUMENT)
    chain = plain.using(queue=queue_name).prepare(LATER)
    schedule(chain.then(on.prepare(0, text=ARGUMENT)))
    store_schedule("nightly", on, every(timedelta(days=1)), kwargs={"text": ARGUMENT})

    keys_are(NEW, OLD)
    worker = work()
    schedules = get_settings().queue(queue_name).keys.schedules
    first = get_keyring().ids[0].encode()
    wait_until(
        lambda: client.hget(schedules, "stored nightly").startswith(first),
        description="a worker has signed the schedule anew",
    )
    worker.stop()
    call_command("delayq_resign", queue_name)

    keys_are(NEW)
    out = capsys.readouterr().out
    assert "errors and results encrypted again" in out
    assert "You can remove" in out
    assert get_job(dead.id).error["error"] == f"ValueError: {ERROR} {ARGUMENT}"
    assert [ERROR in each["error"] for each in get_job(dead.id).history] == [True] * 2
    assert get_job(retried.id).error["error"].startswith(f"ValueError: {ERROR}")
    assert done.wait(1) == f"{RESULT} {ARGUMENT}"
    assert get_job(waiting.id).kwargs == {"text": ARGUMENT}
    (nightly,) = get_schedules(queue_name)
    assert nightly.kwargs == {"text": ARGUMENT}
    old = Keyring([OLD]).ids[0].encode()
    assert b"1" + old not in all_bytes(client, queue_name)
    assert chain.run_now()
    work()
    wait_until(
        lambda: find_jobs(queue=queue_name, state="scheduled").count() == 2,
        description="what follows has run",
    )
    assert not find_jobs(queue=queue_name, state=["held", "quarantined"]).count()


def test_resigning_says_that_it_could_not_look_for_results(
    configure, queue_name, keys_are, capsys, monkeypatch
):
    keys_are(NEW, OLD)

    def refuse(self: Resigning, pattern: str) -> Any:
        raise NoPermissionError("no permissions to run the 'scan' command")

    monkeypatch.setattr(Resigning, "_names", refuse)

    with pytest.raises(SystemExit):
        call_command("delayq_resign", queue_name)

    out = capsys.readouterr().out
    assert "this account may not use SCAN" in out
    assert "You can remove" not in out


def test_what_follows_is_encrypted_with_the_key_that_signs_it():
    old, both, new = Keyring([OLD]), Keyring([NEW, OLD]), Keyring([NEW])
    first, second = "f" * 22, "s" * 22
    follower = envelopes.encode(Envelope("b", [CANARY], flags=1), second, "q", old)
    call = envelopes.claimed_call(follower)
    follow = Follow([Follower(second, "q", "+0", call)])
    payload = envelopes.encode(Envelope("a", follow=follow), first, "q", old)

    found = envelopes.open_payload(payload, "q", both)
    anew = envelopes.encode(found, first, "q", both)
    carried = envelopes.open_payload(anew, "q", new).follow.then[0].call

    assert envelopes.decrypted(carried, second, new).args == [CANARY]
    alone = envelopes.encode(call, second, "q", both)
    assert envelopes.open_payload(alone, "q", new).args == [CANARY]


# Attacks.


def test_encrypted_schedule_that_was_replaced_cannot_be_written_back(
    configure, queue_name, client, keys_are
):
    keys_are(OLD)
    on = guarded.using(queue=queue_name)
    keys = get_settings().queue(queue_name).keys
    when = every(timedelta(days=1))
    store_schedule("nightly", on, when, kwargs={"text": "before"})
    before = client.hget(keys.schedules, "stored nightly")
    store_schedule("nightly", on, when, kwargs={"text": "after"}, replace=True)
    assert get_schedules(queue_name)[0].kwargs == {"text": "after"}

    client.hset(keys.schedules, "stored nightly", before)

    assert get_schedules(queue_name) == []


def _changed(job: Any, change: Any) -> bytes:
    """Return a job's payload with another encrypted part, signed again."""
    call = envelopes.claimed_call(job.draft.new.payload)
    call.encrypted = change(call.encrypted)
    body = envelopes._encoder.encode(call)
    mac = get_keyring().encrypted_signer.sign(job.queue, job.token, body)
    return envelopes._encoder.encode(envelopes._Sealed(job.token, mac, body.decode()))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-8],
        lambda text: text[:5],
        lambda text: text[:-8] + "AAAAAAA=",
        lambda text: text + "é",
        "of another job",
    ],
)
def test_encrypted_part_that_was_changed_goes_to_quarantine(q, change):
    job, other = guarded.prepare(0, text="one"), guarded.prepare(0, text="other")
    if isinstance(change, str):
        stolen = envelopes.claimed_call(other.draft.new.payload).encrypted
        job.draft.new = job.draft.new._replace(payload=_changed(job, lambda _: stolen))
    else:
        job.draft.new = job.draft.new._replace(payload=_changed(job, change))
    schedule(job)
    q.run_due()

    assert job.refresh() is State.QUARANTINED
    assert "was changed or belongs to another job" in job.error["error"]


def test_result_and_error_of_another_job_are_not_shown(q):
    keyring = get_keyring()
    text = keyring.encrypt("error", "a" * 22, b'{"error": "mine"}')

    for use, token in (("error", "b" * 22), ("result", "a" * 22)):
        with pytest.raises(NotSigned, match="belongs to another job"):
            keyring.decrypt(use, token, text)
    found = stored_results.read_error(
        json.dumps({"encrypted": text, "kind": "failed"}).encode(), "b" * 22
    )
    assert found["error"].startswith("(cannot be decrypted: ")
    beside = {"encrypted": "1", "error": "forged", "traceback": "forged"}
    for token in ("", "b" * 22):
        shown = stored_results.read_error(json.dumps(beside).encode(), token)
        assert "forged" not in str(shown)
    for forged in ("", "1", 7, None, "1" + keyring.ids[0] + "é", "x" * 40):
        line = json.dumps({"encrypted": forged, "kind": "failed"}).encode()
        assert stored_results.read_error(line, "b" * 22)["kind"] == "failed"


def test_bit_that_no_version_knows_is_not_run():
    keyring, token = Keyring([NEW]), "t" * 22
    payload = envelopes.encode(Envelope("a", flags=4), token, "q", keyring)

    with pytest.raises(NotSigned) as caught:
        envelopes.open_payload(payload, "q", keyring)
    assert caught.value.missing == "format E.4"


def test_version_that_knows_no_encryption_holds_the_job(monkeypatch):
    keyring, token = Keyring([NEW]), "t" * 22
    call = Envelope("a", [1], flags=1)
    alone = envelopes.encode(call, token, "q", keyring)
    inside = envelopes.claimed_call(alone)
    follow = Follow([Follower("s" * 22, "q", "+0", inside)])
    carrying = envelopes.encode(Envelope("b", follow=follow), "f" * 22, "q", keyring)

    for payload in (alone, carrying):
        # It reads what begins with 2, and holds everything else for lack of that format.
        assert b'"mac":"E' in payload


# Refusals.


def test_queue_that_is_shared_with_java_refuses_it(settings):
    settings.DELAYQ = {"QUEUES": {"default": {"REDISSON": "3.27.2"}}}
    with frozen_queue():
        with pytest.raises(InvalidTask, match="shared with Redisson"):
            guarded.schedule(0)
    with pytest.raises(InvalidSettings, match="both ENCRYPT and REDISSON"):
        read_settings({"QUEUES": {"a": {"ENCRYPT": True, "REDISSON": "3.27.2"}}})
    with pytest.raises(InvalidTask, match="are not encrypted"):
        queue_handler("default", encrypt=True)
    with pytest.raises(InvalidTask, match="cannot be changed for one call"):
        guarded.using(encrypt=False)
    with pytest.raises(InvalidTask, match="give True or False"):
        delayed_task(encrypt="yes")


def test_without_the_library_the_errors_say_what_to_install(q, monkeypatch):
    job = guarded.schedule(0, text=ARGUMENT)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setitem(
        sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None
    )

    for refused in (
        lambda: delayed_task(encrypt=True),
        lambda: read_settings({"QUEUES": {"a": {"ENCRYPT": True}}}),
        lambda: guarded.schedule(0),
    ):
        with pytest.raises((InvalidTask, InvalidSettings)) as caught:
            refused()
        assert "django-delayq[encryption]" in str(caught.value)
    q.run_due()
    assert job.refresh() is State.HELD


def test_held_job_says_that_its_worker_cannot_decrypt():
    held = HeldNames({Reason(Kind.FORMAT, "E"): 2}, 0)
    (problem,) = find_held(QueueFacts(name="mail", held=held, key_ids=[]))

    assert "2 jobs are held: they are encrypted" in problem.message


# Unused, it costs nothing.


def test_unused_it_imports_nothing_and_adds_no_byte():
    code = """
import sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_delayq"], SECRET_KEY="s" * 50, USE_TZ=True)
import django; django.setup()
from django_delayq import delayed_task
from django_delayq.testing import frozen_queue
@delayed_task(name="a")
def a(text): return text
with frozen_queue() as q:
    job = a.schedule(0, "x")
    q.run_due()
print(b"flags" in job.draft.new.payload, b"encrypted" in job.draft.new.payload)
print([name for name in sys.modules if name.startswith("cryptography.hazmat")])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == "False False\n[]\n"


# Looking for it.


def test_nobody_finds_a_job_by_what_is_encrypted_of_it(q):
    job = guarded.schedule(0, "fail", text=ARGUMENT)
    plain.schedule(LATER, "another")
    q.run_due()

    found = find_jobs(text=ARGUMENT)
    assert list(found) == []
    assert found.unsearched == 1
    assert list(find_jobs(text=ERROR)) == []
    assert list(find_jobs(task=guarded)) == [job]
    others = find_jobs(text="another")
    assert [each.task for each in others] == [plain.name]


def test_encrypt_may_be_added_and_taken_away_while_jobs_wait(q):
    name = "tests.encryption.deployed"

    def task(**options: Any) -> Any:
        from django_delayq.jobs import registry

        registry._tasks.pop(name, None)
        return delayed_task(name=name, keep_result=60, **options)(lambda text: text)

    before = task().schedule(0, ARGUMENT)
    with_it = task(encrypt=True).schedule(0, ARGUMENT)
    task()
    q.run_due()

    assert [before.wait(1), with_it.wait(1)] == [ARGUMENT] * 2
    assert not get_job(before.id).is_encrypted
    assert get_job(with_it.id).kept["encrypted"] is True

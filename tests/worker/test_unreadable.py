"""What no worker here can read or run has its place, and the queue goes on."""

import json
import struct
import threading
import time

import pytest

from django_delayq import delayed_task, get_job, queue_handler, schedule
from django_delayq.conf import get_settings
from django_delayq.core import queue_reads
from django_delayq.core import store as store_calls
from django_delayq.core.states import State
from django_delayq.core.store import new_token
from django_delayq.jobs import registry
from django_delayq.transport.run import run
from django_delayq.worker import time_limit
from django_delayq.worker.process import REPLACE_ME
from tests.faults.able.tasks import ODD
from tests.polling import wait_until
from tests.signed import sealed, signed
from tests.worker.conftest import every_server
from tests.worker.project import tasks
from tests.worker.records import record
from tests.worker.workers import counts


def schedule_payload(client, queue, payload, token=None):
    """Schedule a payload as it stands, as another version of ours might."""
    keys = get_settings().queue(queue).keys
    job = store_calls.NewJob(token or new_token(), "+0", "", payload)
    run(client, store_calls.schedule(store_calls.Target(keys), [job]))
    return f"{queue}:{job.token}"


def put_frame(client, queue, frame):
    """Put a member into the timeout set, as a peer of another kind might."""
    keys = get_settings().queue(queue).keys.queue
    client.zadd(keys.timeout_set, {frame: 1_000})
    client.rpush(keys.delay_queue, frame)


def java_frame(payload, random_id=b"\x01\x02\x03\x04\x05\x06\x07\x08"):
    return struct.pack("<B", 8) + random_id + struct.pack("<Q", len(payload)) + payload


@pytest.fixture
def goes_on(work, queue_name, records):
    """Start a worker and make sure that what is scheduled now runs."""

    def check():
        job = schedule(tasks.note.using(queue=queue_name), 0, "next")
        work(threads=1)
        wait_until(
            lambda: job.id in records.jobs("run"), description="the next job has run"
        )
        # What came before it may have been given back before it began.
        wait_until(
            lambda: (told := counts(queue_name)).waiting + told.running == 0,
            description="all is settled",
        )

    return check


def quarantined(client, queue):
    page = run(
        client,
        queue_reads.page(get_settings().queue(queue).keys, State.QUARANTINED),
    )
    return page.rows


@every_server
def test_a_job_whose_task_is_registered_nowhere_is_held_and_runs_where_it_is_known(
    client, goes_on, queue_name, records
):
    task = delayed_task(name="test-forgotten", keep_result=60)(tasks.note.function)
    job = schedule(task.using(queue=queue_name), 0, "later")
    registry._tasks.pop("test-forgotten")

    goes_on()

    job = get_job(job.id)
    assert job.state is State.HELD
    assert job.error["kind"] == "task"
    assert "no task is registered as 'test-forgotten'" in job.error["error"]
    assert "a worker that has it runs its jobs" in job.error["error"]
    assert counts(queue_name).held == 1
    registry.register(task)
    wait_until(lambda: job.id in records.jobs("run"), description="it has run")
    assert job.wait(timeout=30) is None
    assert quarantined(client, queue_name) == []


@pytest.mark.parametrize("name", ["test-forgotten", "a" * 256])
def test_a_job_that_cannot_be_held_is_quarantined_and_can_be_retried(
    client, goes_on, queue_name, records, settings, name
):
    if name == "test-forgotten":
        hold = {"HOLD_UNKNOWN": 0}
        settings.DELAYQ = {**settings.DELAYQ, "WORKER": hold}
    task = delayed_task(name=name)(tasks.note.function)
    job = schedule(task.using(queue=queue_name), 0, "later")
    registry._tasks.pop(name)

    goes_on()

    job = get_job(job.id)
    assert job.state is State.QUARANTINED
    assert job.error["kind"] == "task"
    assert job.error["traceback"] == ""
    registry.register(task)
    assert job.retry()
    wait_until(lambda: job.id in records.jobs("run"), description="it has run")


@pytest.mark.parametrize(
    "body",
    [b"", b"5", b"broken", b"{}", b'{"task":1}', b'{"task":"t","args":{}}'],
)
def test_a_job_that_no_version_of_ours_writes_is_quarantined(
    client, goes_on, queue_name, handled, body
):
    token = new_token()
    payload = sealed(body, queue_name, token)
    job_id = schedule_payload(client, queue_name, payload, token)

    goes_on()

    assert get_job(job_id).state is State.QUARANTINED
    (row,) = quarantined(client, queue_name)
    assert row.payload == payload
    assert b"not a call that this version reads" in row.error
    assert handled == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace(b"the real", b"a forged"), "does not fit its"),
        (lambda text: text[:-1], "not a job"),
        (lambda text: text[:70] + b"\xff" + text[71:], "not a job"),
        (lambda text: text[:-1] + b',"body":"{}"}', "does not fit its"),
        (lambda text: text[:-1] + b',"body":5}', "not a job"),
        # The scripts read the first. It was held for the second, found signed anew, and taken at once, for ever.
        (
            lambda text: text[:-1] + b',"mac":"2none' + b"a" * 32 + b'"}',
            "is signed with the key 'none'",
        ),
    ],
    ids=[
        "another body",
        "cut",
        "no text",
        "two bodies",
        "a body that is none",
        "two signatures",
    ],
)
def test_a_job_that_was_changed_where_it_lies_is_quarantined_and_no_handler_sees_it(
    client, goes_on, queue_name, handled, records, change, reason
):
    token = new_token()
    payload = change(signed(tasks.note.name, queue_name, "the real", token=token))
    job_id = schedule_payload(client, queue_name, payload, token)

    goes_on()

    assert get_job(job_id).state is State.QUARANTINED
    (row,) = quarantined(client, queue_name)
    assert row.payload == payload
    assert reason in json.loads(row.error)["error"]
    assert handled == []
    assert job_id not in records.jobs("run")


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": "many"},
        {"backoff": [1, 2]},
        {"backoff": ["a", 1, 1, 0]},
        {"time_limit": -1},
    ],
)
def test_a_job_with_options_that_no_version_of_ours_writes_is_quarantined(
    client, goes_on, queue_name, options
):
    token = new_token()
    payload = signed(tasks.note.name, queue_name, token=token, options=options)
    job_id = schedule_payload(client, queue_name, payload, token)

    goes_on()

    assert get_job(job_id).state is State.QUARANTINED


@every_server
@pytest.mark.parametrize("frame", [b"", b"x", b"\x08\x01\x02", b"\xff" * 40])
def test_a_member_that_is_no_frame_is_quarantined_whole(
    client, goes_on, queue_name, frame
):
    put_frame(client, queue_name, frame)

    goes_on()

    (row,) = quarantined(client, queue_name)
    assert row.payload == frame


@pytest.mark.parametrize(("hold_s", "state"), [(900, State.HELD), (0, "quarantined")])
def test_a_foreign_payload_without_a_handler_waits_for_a_worker_that_has_one(
    client, goes_on, queue_name, records, settings, hold_s, state
):
    settings.DELAYQ = {**settings.DELAYQ, "WORKER": {"HOLD_UNKNOWN": hold_s}}
    client.rpush(queue_name, b'"from somebody"')
    put_frame(client, queue_name, java_frame(b'"from somebody, delayed"'))

    goes_on()

    keys = get_settings().queue(queue_name).keys
    rows = run(client, queue_reads.page(keys, State(state))).rows
    assert {row.payload for row in rows} == {
        b'"from somebody"',
        b'"from somebody, delayed"',
    }
    assert all(b"which has no handler" in row.error for row in rows)
    if state == "quarantined":
        return
    queue_handler(queue_name)(tasks.note.function)
    wait_until(
        lambda: (
            {"from somebody", "from somebody, delayed"}
            <= {line["text"] for line in records.all("run")}
        ),
        description="the handler has run",
    )


def test_a_foreign_payload_beyond_the_limit_is_quarantined_undecoded(
    client, goes_on, queue_name, settings
):
    settings.DELAYQ = {**settings.DELAYQ, "MAX_FOREIGN_BYTES": 100}
    queue_handler(queue_name)(tasks.note.function)
    fits, too_large = b'"%s"' % (b"x" * 98), b'"%s"' % (b"x" * 99)
    client.rpush(queue_name, too_large, fits)

    goes_on()

    (row,) = quarantined(client, queue_name)
    assert row.payload == too_large
    assert b"101 bytes" in row.error
    assert b"DELAYQ['MAX_FOREIGN_BYTES'], 100" in row.error
    assert b'"kind":"payload"' in row.error
    assert client.zcard(get_settings().queue(queue_name).keys.quarantine) == 1


@pytest.mark.parametrize(
    ("limit", "is_ours", "reason"),
    [
        (
            "MAX_FOREIGN_BYTES",
            True,
            b"DELAYQ['MAX_PAYLOAD_BYTES'], was not decoded",
        ),
        (
            "MAX_PAYLOAD_BYTES",
            True,
            b"DELAYQ['MAX_PAYLOAD_BYTES'], was not decoded",
        ),
        ("MAX_FOREIGN_BYTES", False, b"DELAYQ['MAX_FOREIGN_BYTES'], 30,000, was not"),
        ("MAX_PAYLOAD_BYTES", False, b"DELAYQ['MAX_FOREIGN_BYTES'], 20,000, was not"),
    ],
)
def test_a_payload_that_only_looks_like_a_job_is_not_decoded_beyond_the_limits(
    client, configure, goes_on, queue_name, settings, limit, is_ours, reason
):
    class Codec:
        name = "never asked"

        def encode(self, value):
            raise NotImplementedError

        def decode(self, payload):
            raise SystemExit("asked all the same")

    configure({"CODEC": Codec()})
    queue_handler(queue_name)(tasks.note.function)
    most = {"MAX_FOREIGN_BYTES": 20_000, "MAX_PAYLOAD_BYTES": 20_000, limit: 30_000}
    settings.DELAYQ = {**settings.DELAYQ, **most}
    token = new_token()
    looks = b"some codec " + signed(tasks.note.name, queue_name, token=token)
    looks += b"x" * 30_000
    if is_ours:
        schedule_payload(client, queue_name, looks, token)
    else:
        client.rpush(queue_name, looks)

    goes_on()

    (row,) = quarantined(client, queue_name)
    assert (row.token == token) is is_ours
    assert reason in row.error


@pytest.fixture
def handled(queue_name):
    """Register a handler for the test's queue; return what it was called with."""
    values = []

    def handle(value):
        values.append(value)
        if value == "bad":
            raise tasks.Wrong("a bad value")

    options = {"backoff": tasks.AT_ONCE, "max_attempts": 2}
    queue_handler(queue_name, name=f"handler of {queue_name}", **options)(handle)
    return values


def test_a_foreign_payload_goes_to_the_handler_and_a_bad_one_is_repeated_and_buried(
    client, work, queue_name, handled
):
    client.rpush(queue_name, b'"good"')
    client.rpush(queue_name, b'"bad"')
    put_frame(client, queue_name, java_frame(b'{"delayed":[1,2]}'))

    work()

    wait_until(lambda: counts(queue_name).dead == 1, description="one is dead")
    wait_until(lambda: len(handled) == 4, description="all were handled")
    assert sorted(map(str, handled)) == ["bad", "bad", "good", "{'delayed': [1, 2]}"]
    page = run(
        client, queue_reads.page(get_settings().queue(queue_name).keys, State.DEAD)
    )
    (row,) = page.rows
    assert row.payload == b'"bad"'
    assert row.attempts == 2
    assert b"Wrong: a bad value" in row.error


def test_a_foreign_payload_that_the_codec_cannot_read_is_quarantined(
    client, goes_on, queue_name, handled
):
    client.rpush(queue_name, b"{ broken")

    goes_on()

    (row,) = quarantined(client, queue_name)
    assert row.payload == b"{ broken"
    assert handled == []


def test_a_foreign_payload_of_another_codec_is_quarantined_with_the_setting_to_change(
    client, configure, goes_on, queue_name, handled
):
    configure({"CODEC": "StringCodec"})
    client.rpush(queue_name, b"\x03hell\xef")

    goes_on()

    (row,) = quarantined(client, queue_name)
    assert row.payload == b"\x03hell\xef"
    reason = json.loads(row.error)["error"]
    assert "it looks like Kryo5Codec, and is read with StringCodec" in reason
    assert f"see DELAYQ['QUEUES']['{queue_name}']['CODEC']" in reason
    assert handled == []


def test_a_foreign_payload_of_a_codec_that_is_not_supported_is_quarantined_with_advice(
    client, configure, goes_on, queue_name, handled
):
    configure({"CODEC": "FstCodec"})
    client.rpush(queue_name, b"\xfc\x05hello")

    goes_on()

    (row,) = quarantined(client, queue_name)
    assert row.payload == b"\xfc\x05hello"
    assert b"the 7 raw bytes are kept; set a codec that both sides have" in row.error


@pytest.mark.parametrize("name", ODD)
def test_nothing_the_exception_of_a_codec_does_ends_more_than_its_job(
    client, configure, goes_on, queue_name, handled, name
):
    class Codec:
        name = "odd"

        def encode(self, value):
            raise NotImplementedError

        def decode(self, payload):
            raise ODD[name]

    configure({"CODEC": Codec()})
    client.rpush(queue_name, b"anything")

    goes_on()

    (row,) = quarantined(client, queue_name)
    assert json.loads(row.error)["error"].startswith(f"{name}: ")


def test_a_codec_that_raises_what_it_likes_does_not_end_the_worker(
    client, configure, goes_on, queue_name, handled
):
    class Codec:
        name = "moody"

        def encode(self, value):
            raise NotImplementedError

        def decode(self, payload):
            raise ZeroDivisionError("not today")

    configure({"CODEC": Codec()})
    client.rpush(queue_name, b"anything")

    goes_on()

    (row,) = quarantined(client, queue_name)
    assert b"ZeroDivisionError: not today" in row.error


def test_a_codec_of_ones_own_reads_what_the_handler_gets(
    client, configure, goes_on, queue_name, handled
):
    class Backwards:
        name = "Backwards"

        def encode(self, value):
            return str(value).encode()[::-1]

        def decode(self, payload):
            return payload[::-1].decode()

    configure({"CODEC": Backwards()})
    client.rpush(queue_name, b"olleh")

    goes_on()

    wait_until(lambda: handled == ["hello"], description="the handler was called")
    assert quarantined(client, queue_name) == []


@every_server
def test_a_payload_whose_token_is_no_text_does_not_stop_the_queue(
    client, goes_on, queue_name
):
    payload = b'{"delayq":"' + b"\xff" * 22 + b'","task":"t","queue":"q"}'
    put_frame(client, queue_name, java_frame(payload))

    goes_on()

    keys = get_settings().queue(queue_name).keys
    (row,) = run(client, queue_reads.page(keys, State.HELD)).rows
    assert row.payload == payload


# Where payloads are read.


class Gated:
    """A codec of the project's own that takes as long as the test likes."""

    name = "gated"

    def __init__(self):
        self.is_decoding = threading.Event()
        self.gate = threading.Event()

    def encode(self, value):
        return value.encode()

    def decode(self, payload):
        self.is_decoding.set()
        assert self.gate.wait(120)
        return payload.decode()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_payload_is_read_where_it_holds_up_nobody(
    configure, work, records, queue_name, client, kind
):
    codec = Gated()
    configure(java={"CODEC": codec})
    java = f"{queue_name}-java"
    if kind == "sync":

        @queue_handler(java, name="gated.handler")
        def handler(value):
            record("handled", text=value)

    else:

        @queue_handler(java, name="gated.handler")
        async def handler(value):
            record("handled", text=value)

    work([java, queue_name], threads=2)
    client.rpush(java, "slow")
    assert codec.is_decoding.wait(60)

    schedule(tasks.note.using(queue=queue_name), 0)
    schedule(tasks.note_async.using(queue=queue_name), 0)

    wait_until(lambda: records.count("run") == 2, description="the others have run")
    assert records.count("handled") == 0
    codec.gate.set()
    wait_until(lambda: records.count("handled") == 1, description="it has run")
    assert [line["text"] for line in records.all("handled")] == ["slow"]


def never_ends(payload):
    while True:
        time.sleep(0.005)


def never_ends_whatever_comes(payload):
    while not _is_test_over.is_set():
        try:
            time.sleep(0.005)
        except BaseException:
            continue
    return "too late"


#: Python waits at its end for what a pool of threads still does.
_is_test_over = threading.Event()


@pytest.fixture
def hang(client, configure, queue_name, monkeypatch):
    """Put a foreign payload into the test's queue, whose codec hangs."""

    def put(kind, decode):
        class Codec:
            name = "hanging"

            def encode(self, value):
                raise NotImplementedError

        Codec.decode = lambda self, payload: decode(payload)
        configure({"CODEC": Codec()})
        handler = tasks.note if kind == "sync" else tasks.note_async
        queue_handler(queue_name)(handler.function)
        monkeypatch.setattr(time_limit, "READING_LIMIT_S", 0.2)
        client.rpush(queue_name, b"anything")

    _is_test_over.clear()
    yield put
    _is_test_over.set()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_codec_that_hangs_costs_its_payload_and_no_thread(
    client, hang, goes_on, queue_name, kind
):
    hang(kind, never_ends)

    goes_on()

    (row,) = quarantined(client, queue_name)
    assert json.loads(row.error)["error"] == (
        "TimeLimitExceeded: decoding its payload ran longer than its time limit of 0.2 s"
    )


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_codec_that_hangs_for_good_costs_its_process_once(
    client, hang, work, goes_on, queue_name, kind, monkeypatch
):
    monkeypatch.setattr(time_limit, "STUCK_AFTER_S", 0.2)
    hang(kind, never_ends_whatever_comes)

    assert work(threads=1).join() == REPLACE_ME

    (row,) = quarantined(client, queue_name)
    assert "decoding its payload" in json.loads(row.error)["error"]
    _is_test_over.set()
    goes_on()


@pytest.mark.parametrize("names", ["sync last", "async last"])
def test_a_job_that_names_two_tasks_never_runs_a_sync_one_on_the_event_loop(
    work, records, queue_name, client, names
):
    first, last = tasks.note_async.name, tasks.note.name
    if names == "async last":
        first, last = last, first
    token = new_token()
    body = f'{{"task":"{first}","task":"{last}"}}'.encode()
    schedule_payload(client, queue_name, sealed(body, queue_name, token), token)

    work()

    if names == "async last":
        wait_until(lambda: records.count("run") == 1, description="it has run")
    else:
        wait_until(lambda: quarantined(client, queue_name), description="it is aside")
        assert records.count("run") == 0


@pytest.mark.parametrize("kind", ["order", "deep", "large"])
def test_an_async_job_is_found_to_be_one_wherever_its_name_stands(
    work, records, queue_name, client, kind
):
    token = new_token()
    task = f'"task":"{tasks.note_async.name}"'
    body = {
        "order": f'{{"flags":0,{task}}}',
        "deep": f"{{{' ' * 1_000}{task}}}",
        # Read off the event loop.
        "large": f'{{{task},"args":["{"x" * 100_000}"]}}',
    }[kind].encode()
    schedule_payload(client, queue_name, sealed(body, queue_name, token), token)

    work(threads=1)

    wait_until(lambda: records.count("run") == 1, description="it has run")
    assert records.jobs("run") == [f"{queue_name}:{token}"]
    wait_until(lambda: counts(queue_name).running == 0, description="it is settled")
    assert counts(queue_name).quarantined == 0


def test_a_job_that_never_begins_within_its_lease_becomes_a_dead_letter(
    work, records, queue_name, monkeypatch
):
    """Each look finds the lease over, as that of a process that is suspended again and again."""
    for module in ("attempt", "leased_job"):
        monkeypatch.setattr(f"django_delayq.worker.{module}.boottime_ms", lambda: 1e12)
    job = schedule(tasks.note.using(queue=queue_name), 0)

    work(max_kills=1)

    wait_until(lambda: job.refresh() is State.DEAD, description="a dead letter")
    assert records.count("run") == 0
    assert job.kills == 2


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"body": "\ud800"}, "it holds text that is not Unicode"),
        ({"mac": "2\ud800key" + "A" * 32}, "it is signed with the key '\\ud800key'"),
        ({"mac": "2\0key" + "A" * 32}, "it is signed with the key '\\x00key'"),
        ({"mac": "\ud800abcd" + "A" * 32}, "it is written in format '\\ud800'"),
    ],
)
def test_a_name_that_cannot_be_sent_goes_to_quarantine_and_ends_no_process(
    client, configure, queue_name, goes_on, more, reason
):
    """A codec can bring half a surrogate pair. Nothing of ours could write that to the server, to hold its job."""
    token = new_token()
    payload = b"some codec " + signed(tasks.note.name, queue_name, token=token)

    class Codec:
        name = "strange"

        def encode(self, value):
            raise NotImplementedError

        def decode(self, data):
            return json.loads(data.removeprefix(b"some codec ")) | more

    configure({"CODEC": Codec()})
    schedule_payload(client, queue_name, payload, token)

    goes_on()

    assert get_job(f"{queue_name}:{token}").state is State.QUARANTINED
    (row,) = quarantined(client, queue_name)
    assert reason in json.loads(row.error)["error"]

"""Jobs in every state, made by the same calls that workers make, for the pages to show."""

import secrets
from typing import Any

import redis

from django_delayq.clock import epoch_ms
from django_delayq.conf import get_keyring
from django_delayq.core import claim as claim_calls
from django_delayq.core import hold as hold_calls
from django_delayq.core import lease_ends, queue_reads
from django_delayq.core import store as store_calls
from django_delayq.core.claim import Leased
from django_delayq.core.hold import Held, Hold
from django_delayq.core.keys import DeliveryKeys
from django_delayq.core.lease_ends import Failed, Rejected
from django_delayq.core.reasons import Kind, Reason
from django_delayq.core.states import State
from django_delayq.core.store import NewJob
from django_delayq.jobs import envelope as envelopes
from django_delayq.jobs import stored_results
from django_delayq.jobs.envelope import Envelope
from django_delayq.transport.run import run
from django_delayq.wire.frame import FrameFormat, pack
from tests.polling import wait_until
from tests.signed import signed

#: Registered by no process, like a task that was renamed.
TASK = "shop.tasks.send_reminder"
OWNER = b"OWNER-01"


class Queue:
    """One queue on the server under test, to be filled."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.client = client
        self.name = name
        self.keys = DeliveryKeys.of(name)

    def payload(
        self,
        token: str,
        task: str = TASK,
        *args: Any,
        options: Any = None,
        **kwargs: Any,
    ) -> bytes:
        return signed(task, self.name, *args, token=token, options=options, **kwargs)

    def schedule(
        self,
        delay_ms: int = 60_000,
        *args: Any,
        task: str = TASK,
        unique: str = "",
        options: Any = None,
        insertion_list: bool = True,
        **kwargs: Any,
    ) -> str:
        """Store a job of ours; returns its token."""
        token = store_calls.new_token()
        payload = self.payload(token, task, *args, options=options, **kwargs)
        job = NewJob(token, f"+{delay_ms}", unique, payload)
        run(
            self.client,
            store_calls.schedule(
                store_calls.Target(self.keys, insertion_list=insertion_list), [job]
            ),
        )
        return token

    def schedule_call(self, call: Envelope, delay_ms: int = 60_000) -> str:
        """Store a job of ours with whatever its envelope has; returns its token."""
        token = store_calls.new_token()
        payload = envelopes.encode(call, token, self.name, get_keyring())
        job = NewJob(token, f"+{delay_ms}", "", payload)
        run(
            self.client,
            store_calls.schedule(
                store_calls.Target(self.keys, insertion_list=True), [job]
            ),
        )
        return token

    def offer(self, payload: bytes, delay_ms: int = 60_000) -> None:
        """Store a foreign element, as Java does."""
        seconds, micros = self.client.time()
        frame = pack(secrets.token_bytes(8), payload, FrameFormat.BC0LC0)
        due_ms = seconds * 1000 + micros // 1000 + delay_ms
        self.add_member(frame, due_ms)

    def add_member(self, member: bytes, due_ms: float) -> None:
        self.client.zadd(self.keys.queue.timeout_set, {member: due_ms})

    def push(self, *payloads: bytes) -> None:
        """Put payloads into the destination queue, as Java's transfer does."""
        self.client.rpush(self.keys.queue.destination, *payloads)

    def transfer(self) -> None:
        """Move what is due to the destination queue."""
        call = claim_calls.transfer(self.keys, batch=100)
        wait_until(lambda: run(self.client, call).moved, description="a due job")

    def claim(self, limit: int = 1, lease_ms: int = 30_000) -> list[Leased]:
        return run(
            self.client,
            claim_calls.claim(
                self.keys,
                owner=OWNER,
                request=secrets.token_bytes(8),
                limit=limit,
                lease_ms=lease_ms,
            ),
        ).jobs

    def running(self, *args: Any, lease_ms: int = 30_000, **kwargs: Any) -> Leased:
        token = self.schedule(0, *args, **kwargs)
        return self.take(token, lease_ms)

    def take(self, token: str, lease_ms: int = 30_000) -> Leased:
        # A delay of 0 is rounded up to the next millisecond, too.
        (job,) = wait_until(lambda: self.claim(1, lease_ms), description="a due job")
        assert job.token == token
        return job

    def die(self) -> None:
        """End what is leased as the supervisor of a dead process does."""
        run(self.client, claim_calls.recover(self.keys, owner=OWNER))

    def retrying(
        self,
        *args: Any,
        delay_ms: int = 60_000,
        error_text: bytes | None = None,
        **kwargs: Any,
    ) -> str:
        job = self.running(*args, **kwargs)
        failed = Failed(job.token, job.fence, f"+{delay_ms}", _stamped(error_text))
        assert run(self.client, lease_ends.retry(self.keys, [failed])) == []
        return job.token

    def held_for_key(
        self, *args: Any, reason: Reason | None = None, **kwargs: Any
    ) -> str:
        """Have a job held for the key that signs now; or for something else."""
        job = self.running(*args, **kwargs)
        reason = reason or Reason(Kind.KEY, get_keyring().ids[0])
        why = f"NotSigned: it is signed with the {reason.kind} {reason.name}."
        held = Held(job.token, job.fence, Hold(reason, why))
        assert run(self.client, hold_calls.hold(self.keys, [held])) == []
        return job.token

    def held(self, *args: Any, **kwargs: Any) -> str:
        job = self.running(*args, **kwargs)
        held = Held(
            job.token,
            job.fence,
            Hold(Reason(Kind.TASK, TASK), "it broke", 900_000),
        )
        call = hold_calls.hold(self.keys, [held])
        assert run(self.client, call) == []
        return job.token

    def dead(self, *args: Any, error_text: bytes | None = None, **kwargs: Any) -> str:
        job = self.running(*args, **kwargs)
        return self.bury(job, State.DEAD, error_text)

    def quarantined(self, payload: bytes, error_text: bytes | None = None) -> str:
        self.push(payload)
        (job,) = self.claim()
        return self.bury(job, State.QUARANTINED, error_text)

    def bury(self, job: Leased, state: State, error_text: bytes | None = None) -> str:
        rejected = Rejected(job.token, job.fence, _stamped(error_text))
        call = lease_ends.bury(self.keys, [rejected], state=state)
        assert run(self.client, call) == []
        return job.token

    def state(self, token: str) -> State:
        return run(self.client, queue_reads.inspect(self.keys, token)).state


def error(
    text: str,
    traceback: str = "",
    kind: str = "builtins.ValueError",
    at_ms: int = 0,
) -> bytes:
    """Return why an attempt failed; ``at_ms`` 0: at the moment at which the job's end is stored."""
    return stored_results.error_text(text, kind=kind, traceback=traceback, at_ms=at_ms)


def _stamped(text: bytes | None) -> bytes:
    text = text or error("it broke")
    unstamped, stamped = b',"at":0}', f',"at":{epoch_ms()}}}'.encode()
    return text.removesuffix(unstamped) + stamped if text.endswith(unstamped) else text

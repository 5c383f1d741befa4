"""What a task raises to decide about the job that it runs: `Retry`, `Snooze` or `Cancel`.

They are decisions and no errors, so they derive from BaseException, as `asyncio.CancelledError` does: an
``except Exception`` on their way, in the task or in a library, does not take a decision for a failure.
"""

from django_delayq.redaction import show
from django_delayq.wire.delay import Delay, parse_delay


class Decision(BaseException):
    """Ends the attempt that raises it, and says what becomes of the job."""

    #: Why, in the words of the task.
    reason: str = ""

    def __str__(self) -> str:
        return self.reason

    def _give(self, reason: str) -> None:
        if not isinstance(reason, str):
            raise TypeError(
                f"the reason of a {type(self).__name__} is text; got {show(reason)}."
                f" To keep an exception, say: raise {type(self).__name__}(…) from error"
            )
        self.reason = reason


class Retry(Decision):
    """Raised by a task to fail its attempt and run again after ``delay``.

    It counts as a failed attempt, and ignores ``retry_on``. After the last attempt, the job becomes a dead letter.
    Without a delay, the task's backoff applies.

    Example::

        @delayed_task
        def fetch(url):
            response = requests.get(url)
            if response.status_code == 429:
                raise Retry(int(response.headers["Retry-After"]), "rate limit")

    Raises:
        InvalidDelay: see `parse_delay`.
    """

    #: When to try again, as `parse_delay` writes it; empty: the backoff decides.
    when: str = ""

    def __init__(self, delay: Delay | None = None, reason: str = "") -> None:
        # The arguments make the exception again where it is copied or pickled.
        super().__init__(delay, reason)
        self._give(reason)
        if delay is not None:
            self.when = parse_delay(delay)


class Snooze(Decision):
    """Raised by a task to run its job again after ``delay``. This counts neither as an attempt nor as a kill.

    Example::

        @delayed_task
        def remind(order_id):
            if is_night():
                raise Snooze(timedelta(hours=8), "nobody reads it at night")

    Raises:
        InvalidDelay: see `parse_delay`.
    """

    #: When to run again, as `parse_delay` writes it; empty if a subclass did not say it.
    when: str = ""

    def __init__(self, delay: Delay, reason: str = "") -> None:
        super().__init__(delay, reason)
        self._give(reason)
        self.when = parse_delay(delay)


class Cancel(Decision):
    """Raised by a task to cancel its own job. `Job.wait` raises `JobCancelled` with the reason.

    Example::

        @delayed_task
        def remind(order_id):
            if Order.objects.get(pk=order_id).is_paid:
                raise Cancel("the order is paid")
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self._give(reason)

"""Tasks that the tests of this folder schedule; nobody runs them but by hand."""

from typing import Any

from django_delayq import delayed_task


@delayed_task
def add(a: int, b: int = 0, *, note: str = "") -> int:
    return a + b


@delayed_task
def anything(*args: Any, **kwargs: Any) -> None: ...


@delayed_task
async def fetch(url: str) -> str:
    return url


@delayed_task(keep_result=60)
def double(n: int) -> int:
    return 2 * n


@delayed_task(unique=True)
def once(user: int, *, kind: str = "mail") -> None: ...


@delayed_task(unique=("user",), unique_until="start")
def once_for_user(user: int, text: str = "") -> None: ...


@delayed_task(sensitive=("token",))
def secretive(user: int, token: str) -> None: ...

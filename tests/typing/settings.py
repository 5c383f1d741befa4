"""What a type checker knows of the declaration of a setting: its field holds the default, or what a value is read into."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django_delayq.setting_fields import (
    BOOLEAN,
    Values,
    count,
    dict_of,
    list_of,
    setting,
)
from django_delayq.setting_values import ATTEMPTS, DIRECTORY, SECRETS, TTL


@dataclass(frozen=True, kw_only=True)
class Right:
    attempts: int = setting(1, ATTEMPTS)
    ttl_s: float | None = setting(None, TTL, "ever")
    heartbeat: Path | None = setting(None, DIRECTORY, "no files")
    keys: Sequence[str | bytes] = setting((), SECRETS)
    modules: tuple[str, ...] = setting((), list_of(bool, "modules"))
    options: int = setting(0, dict_of("options", len))
    lines: float | str = setting(1, Values[str](bool, "a text"))


@dataclass(frozen=True, kw_only=True)
class Wrong:
    attempts: int = setting(None, ATTEMPTS)  # E: assignment
    jobs: str = setting("1", count(1, 9))  # E: assignment
    ttl_s: int = setting(1, TTL)  # E: assignment
    encrypt: str = setting("", BOOLEAN)  # E: assignment
    heartbeat: str | None = setting(None, DIRECTORY, "no files")  # E: assignment
    keys: tuple[str, ...] = setting((), SECRETS)  # E: arg-type
    modules: tuple[int, ...] = setting((), list_of(bool, "modules"))  # E: arg-type
    options: str = setting("", dict_of("options", len))  # E: assignment
    lines: int = setting(1, Values[str](bool, "a text"))  # E: assignment

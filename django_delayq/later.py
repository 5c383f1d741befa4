"""Imports names of a package when they are first used: most projects need only some of them."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def import_later(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package, given the module of each name to import later."""

    def __getattr__(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__

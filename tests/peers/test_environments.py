"""Environments are made once, made again when what they are made from changes, and say what is missing."""

import sys
from pathlib import Path

import pytest

from benchmarks.peers import environments
from benchmarks.peers.environments import (
    Environment,
    EnvironmentUnavailable,
    Node,
    Venv,
    python_of,
)


class Folder(Environment):
    """Counts how often it was made."""

    def __init__(self, name: str, source: Path) -> None:
        super().__init__(name)
        self.sources = [source]
        self.made = 0

    def _make(self) -> None:
        self.made += 1
        (self.folder / f"made-{self.made}").touch()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(environments, "CACHE", tmp_path / "cache")
    source = tmp_path / "requirements.txt"
    source.write_text("one==1")
    return Folder("peer", source)


def test_environment_is_made_once(folder: Folder) -> None:
    folder.make()
    folder.make()

    assert folder.made == 1
    assert folder.is_made


def test_environment_is_made_again_when_its_requirements_change(folder: Folder) -> None:
    folder.make()
    [source] = folder.sources
    source.write_text("one==2")

    assert not folder.is_made
    folder.make()
    assert folder.made == 2
    assert not (folder.folder / "made-1").exists()


def test_environment_whose_making_failed_is_not_made(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise EnvironmentUnavailable("no such package")

    monkeypatch.setattr(folder, "_make", fail)

    with pytest.raises(EnvironmentUnavailable, match="no such package"):
        folder.make()
    assert not folder.is_made


def test_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(
        EnvironmentUnavailable, match="no npm on this machine, which Node brings"
    ):
        Node("bullmq").make()


def test_failed_command_is_told_with_what_it_said() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such version')"]

    with pytest.raises(EnvironmentUnavailable, match="no such version"):
        environments._run(command)


def test_python_of_a_version_that_we_are_is_ours() -> None:
    assert python_of((3, 8)) == Path(sys.executable)


def test_python_that_nobody_has_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))

    with pytest.raises(EnvironmentUnavailable, match=r"no Python 3\.90"):
        python_of((3, 90))


def test_all_requirements_are_pinned() -> None:
    for file in (environments.HERE / "requirements").glob("*.txt"):
        lines = [
            line
            for line in file.read_text("utf-8").splitlines()
            if not line.startswith("#")
        ]
        assert lines
        assert [line for line in lines if "==" not in line] == [], file.name
        assert Venv(file.stem).python.is_relative_to(environments.CACHE)

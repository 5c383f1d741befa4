"""All features of jobs in one model; see `world`."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from django_delayq.jobs import outbox
from django_delayq.outbox.part import OutboxPart
from tests.pairs.occurring import OCCURRED
from tests.pairs.stage import LiveStage, Stage, staged
from tests.pairs.world import World

STEPS = 120
#: Those of each test; the first few run without ``--all``.
SEEDS = int(os.environ.get("DELAYQ_TEST_PAIRS", 50))
FEW = 2
#: Where the story of a seed that failed is written.
STORIES = Path(__file__).parents[2] / "build" / "pairs"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Have the outbox there, and tokens and random waits that a seed makes again."""
    monkeypatch.setattr(outbox, "_installed", OutboxPart())
    chance = random.Random(seed)
    monkeypatch.setattr(os, "urandom", chance.randbytes)
    monkeypatch.setattr(random, "_urandom", chance.randbytes)


seeds = pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if seed >= FEW else [])
        for seed in range(SEEDS)
    ],
)


@pytest.mark.django_db(transaction=True)
@seeds
def test_in_memory(seed: int, settings: Any, record_property: Any) -> None:
    record_property(OCCURRED, play(seed, Stage(), settings))


@pytest.mark.django_db(transaction=True)
@seeds
def test_on_a_server(
    seed: int, settings: Any, server_kind: str, tmp_path: Path, record_property: Any
) -> None:
    record_property(OCCURRED, play(seed, LiveStage("valkey", tmp_path), settings))


def play(seed: int, stage: Stage, settings: Any) -> dict[str, int]:
    """Play a seed; return how often each pair of features occurred."""

    def apply(delayq: dict[str, Any]) -> None:
        settings.DELAYQ = delayq

    apply({"QUEUES": {"default": {}}})
    world = World(seed, stage, apply)
    with staged(stage):
        world.begin()
        try:
            world.run(STEPS, moves=isinstance(stage, LiveStage))
        except BaseException as error:
            STORIES.mkdir(parents=True, exist_ok=True)
            story = STORIES / f"{type(stage).__name__}-{seed}.txt"
            story.write_text("\n".join(world.story))
            error.add_note(f"What was done is in {story}")
            raise
    return {"; ".join(sorted(pair)): count for pair, count in world.occurred.items()}

"""How often each pair of features occurred in the model, over all processes of a run."""

from collections import Counter
from collections.abc import Mapping

from tests.pairs.features import MODELLED

#: The property of a test's report that says it.
OCCURRED = "pairs"
#: So often each pair that the model answers occurs at least, in a run of as many seeds.
LEAST = 20
SEEDS = 80

_counted: Counter[str] = Counter()
_seeds = 0


def note(occurred: Mapping[str, int]) -> None:
    """Add the pairs of a seed."""
    global _seeds
    _seeds += 1
    _counted.update(occurred)


def is_whole() -> bool:
    """Whether enough seeds were played to ask for each pair."""
    return _seeds >= SEEDS


def missing() -> dict[str, int]:
    """Return the pairs that occurred too seldom, and how often each did."""
    wanted = sorted("; ".join(sorted(pair)) for pair in MODELLED)
    return {pair: _counted[pair] for pair in wanted if _counted[pair] < LEAST}

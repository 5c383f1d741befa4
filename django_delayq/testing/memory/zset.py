"""A sorted set as a server keeps it: members by score, and by their bytes where scores are equal."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable

from redis.exceptions import ResponseError


class ZSet:
    """Members with their scores, in order."""

    __slots__ = ("ordered", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.ordered: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.ordered)

    def add(self, member: bytes, score: float) -> bool:
        """Give a member a score; return whether it is new."""
        before = self.scores.get(member)
        if before is not None:
            if before == score:
                return False
            self._take_out(member, before)
        self.scores[member] = score
        insort(self.ordered, (score, member))
        return before is None

    def remove(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        self._take_out(member, score)
        return True

    def _take_out(self, member: bytes, score: float) -> None:
        del self.ordered[bisect_left(self.ordered, (score, member))]

    def rank(self, member: bytes) -> int | None:
        score = self.scores.get(member)
        return None if score is None else bisect_left(self.ordered, (score, member))

    def by_score(self, low: bytes, high: bytes) -> range:
        """Return the ranks of the members between two scores; ``(`` before a score leaves that score out."""
        first, last = read_bound(low), read_bound(high)
        begin = _side(self.ordered, first, bisect_right if low[:1] == b"(" else _left)
        end = _side(self.ordered, last, _left if high[:1] == b"(" else bisect_right)
        return range(begin, max(begin, end))

    def by_bytes(self, low: bytes, high: bytes) -> range:
        """Return the ranks of the members between two texts, where all scores are equal."""
        members = [member for _, member in self.ordered]
        begin, end = _place(members, low, -1), _place(members, high, 1)
        return range(begin, max(begin, end))


_Bisect = Callable[[list[float], float], int]
_left: _Bisect = bisect_left


def _side(
    ordered: list[tuple[float, bytes]], score: float, bisect: Callable[..., int]
) -> int:
    return bisect(ordered, score, key=lambda item: item[0])


def _place(members: list[bytes], bound: bytes, side: int) -> int:
    if bound in (b"-", b"+"):
        return 0 if bound == b"-" else len(members)
    is_with = bound[:1] == b"["
    if not is_with and bound[:1] != b"(":
        raise ResponseError("min or max not valid string range item")
    find = bisect_left if is_with == (side < 0) else bisect_right
    return find(members, bound[1:])


def read_bound(text: bytes) -> float:
    return read_score(text[1:] if text[:1] == b"(" else text)


def read_score(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        raise ResponseError("value is not a valid float") from None


def score_text(score: float) -> bytes:
    """Write a score as a server does."""
    return b"%d" % score if score.is_integer() else b"%.17g" % score

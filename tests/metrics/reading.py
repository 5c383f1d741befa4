"""Reads Prometheus's text format strictly: every sample stands under the HELP and TYPE of its family."""

import re
from typing import NamedTuple

_SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SUFFIXES = {
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
    "gauge": ("",),
    "counter": ("",),
}
_UNESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}

Labels = frozenset[tuple[str, str]]


class Scrape(NamedTuple):
    """What a text says."""

    kinds: dict[str, str]
    values: dict[tuple[str, Labels], float]

    @classmethod
    def of(cls, text: str) -> "Scrape":
        """Read a text; an error of form is an AssertionError."""
        assert text.endswith("\n")
        kinds: dict[str, str] = {}
        values: dict[tuple[str, Labels], float] = {}
        family = helped = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                helped = line.split(" ")[2]
                assert helped not in kinds, f"two families of one name: {line}"
            elif line.startswith("# TYPE "):
                family, kind = line.split(" ")[2:]
                assert family == helped
                assert family.endswith("_total") == (kind == "counter")
                kinds[family] = kind
            elif not line.startswith("#"):
                found = _SAMPLE.fullmatch(line)
                assert found, line
                name, labels, number = found.groups()
                assert name.removeprefix(family) in _SUFFIXES[kinds[family]], line
                key = (name, frozenset(_labels(labels or "")))
                assert key not in values, f"twice: {line}"
                values[key] = float(number)
        return cls(kinds, values)

    def __call__(self, name: str, **labels: str) -> float:
        """Return the value of one sample."""
        return self.values[name, frozenset(labels.items())]

    def of_name(self, name: str, **labels: str) -> dict[Labels, float]:
        """Return the samples of a name that have some labels, by all of their labels."""
        wanted = frozenset(labels.items())
        return {
            found: value
            for (each, found), value in self.values.items()
            if each == name and wanted <= found
        }

    @property
    def counted(self) -> dict[tuple[str, Labels], float]:
        """Whatever may never fall."""
        return {
            key: value
            for key, value in self.values.items()
            if self.kinds.get(key[0]) == "counter"
            or key[0].endswith(("_bucket", "_sum", "_count"))
        }


def _labels(text: str) -> list[tuple[str, str]]:
    return [
        (name, re.sub(r"\\.", lambda found: _UNESCAPED[found[0]], value))
        for name, value in _LABEL.findall(text)
    ]

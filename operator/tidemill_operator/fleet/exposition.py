"""The Prometheus text format, as far as the autoscaler reads it: samples of wanted names.

Pure. Knows lines, labels, escapes and histograms. Refuses to know what a name means. A line that is not
well-formed is skipped and counted; a value that is no number (NaN) is given as None: nobody can add it up.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
_ESCAPE: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One series at one moment; `value` is None where the exporter said NaN."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposition:
    """The wanted samples of one scrape, and how many lines made no sense."""

    samples: tuple[Sample, ...] = ()
    num_malformed: int = 0

    def total(self, *names: str) -> float | None:
        """Add up the first of the names that has a series; None without any number under any of them."""
        for name in names:
            values = [s.value for s in self.samples if s.name == name and s.value is not None]
            if values:
                return sum(values)
        return None

    def largest(self, *names: str) -> float | None:
        """Give the greatest value of the first of the names that has one."""
        for name in names:
            values = [s.value for s in self.samples if s.name == name and s.value is not None]
            if values:
                return max(values)
        return None

    def buckets(self, *names: str) -> tuple[tuple[float, float], ...]:
        """Give a histogram's upper bounds with their cumulative counts, added up over its series."""
        for name in names:
            counts: dict[float, float] = {}
            for sample in self.samples:
                if sample.name == f"{name}_bucket" and sample.value is not None:
                    bound = number(sample.labels.get("le", ""))
                    if bound is not None:
                        counts[bound] = counts.get(bound, 0.0) + sample.value
            if counts:
                return tuple(sorted(counts.items()))
        return ()


def parse(text: str, wanted: Collection[str]) -> Exposition:
    """Read the samples whose names are wanted."""
    samples: list[Sample] = []
    num_malformed = 0
    for line in _relevant(text, wanted):
        sample = _parse_line(line)
        if sample is None:
            num_malformed += 1
        elif sample.name in wanted:
            samples.append(sample)
    return Exposition(samples=tuple(samples), num_malformed=num_malformed)


def number(text: str) -> float | None:
    """Read a number; None for NaN and for what is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _relevant(text: str, wanted: Collection[str]) -> Iterable[str]:
    """Leave out comments and, cheaply, names that nobody wants."""
    for line in text.split("\n"):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _NAME.match(stripped)
        if found is None or found.group() in wanted:
            yield stripped


def _parse_line(line: str) -> Sample | None:
    found = _NAME.match(line)
    if found is None:
        return None
    rest = line[found.end() :].lstrip()
    labels: Mapping[str, str] = {}
    if rest.startswith("{"):
        parsed = _parse_labels(rest)
        if parsed is None:
            return None
        labels, rest = parsed
    words = rest.split()
    if not words or len(words) > 2 or not _is_value(words[0]):
        return None
    return Sample(name=found.group(), labels=labels, value=number(words[0]))


def _parse_labels(text: str) -> tuple[dict[str, str], str] | None:
    """Read a label set from its opening brace; give it with what follows the closing one."""
    labels: dict[str, str] = {}
    position = 1
    while not text[position:].lstrip().startswith("}"):
        found = _LABEL.match(text, position)
        if found is None:
            return None
        labels[found.group(1)] = _ESCAPE.sub(_unescape, found.group(2))
        position = found.end()
    return labels, text[text.index("}", position) + 1 :]


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found.group(1) == "n" else found.group(1)


def _is_value(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

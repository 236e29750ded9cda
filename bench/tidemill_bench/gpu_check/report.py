"""The check's findings as plain values, and as Markdown for docs/benchmarks.md. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill_bench.gpu_check.correctness import Checked
    from tidemill_bench.gpu_check.engine_run import Served, StepSplit
    from tidemill_bench.gpu_check.kernel_tests import Tested
    from tidemill_bench.gpu_check.peers import PeerServed
    from tidemill_bench.gpu_check.speed import Timed


@dataclass(kw_only=True)
class Findings:
    """Everything that was asked for and found on one device; what was not asked for stays empty."""

    device: str
    is_rehearsal: bool
    copy_bytes_per_second: float
    product_flops: float
    facts: dict[str, str]
    checks: list[Checked] = field(default_factory=list)
    tests: Tested | None = None
    kernels: list[Timed] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    splits: list[StepSplit] = field(default_factory=list)
    peers: list[PeerServed] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Say whether every kernel that was checked computes what it should."""
        return all(check.is_right for check in self.checks) and (self.tests is None or self.tests.is_right)

    def as_json(self) -> dict[str, object]:
        """Return plain values."""
        return {**asdict(self), "is_right": self.is_right}

    def as_markdown(self) -> str:
        """Return one table after another."""
        return "\n\n".join(part for part in (self._head(), *self._tables()) if part)

    def _head(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self.facts.items())
        peaks = (
            f"copies at {self.copy_bytes_per_second / 1e12:.2f} TB/s (bytes read and written), products at "
        )
        peaks += f"{self.product_flops / 1e12:.0f} TFLOP/s"
        if self.is_rehearsal:
            return f"**A rehearsal on the CPU: no figure below means anything.** ({facts})"
        return f"{self.device} ({facts}); measured peaks: {peaks}."

    def _tables(self) -> list[str]:
        return [
            self._checked(),
            self._tested(),
            self._timed(),
            self._served(),
            *(_split(split) for split in self.splits),
            self._peers(),
        ]

    def _checked(self) -> str:
        rows = [
            (c.name, f"{c.worst:.1e}", f"{c.tolerance:.0e}", "yes" if c.is_right else f"**no** {c.error}")
            for c in self.checks
        ]
        return _table(("kernel", "largest difference", "allowed", "right"), rows)

    def _tested(self) -> str:
        tests = self.tests
        if tests is None:
            return ""
        if tests.why_not:
            return f"The tests of the kernels were not run: {tests.why_not}."
        counts = f"{tests.num_passed} pass, {len(tests.failed)} fail, {tests.num_skipped} skip"
        said = f"The tests of the kernels on this device: {counts}."
        return "\n".join([said, *(f"- {failure}" for failure in tests.failed)])

    def _timed(self) -> str:
        rows = [
            (
                t.name,
                _microseconds(t.seconds),
                f"{t.fraction:.0%} of {t.bound}",
                "" if t.peer_seconds is None else f"{t.peer}: {_microseconds(t.peer_seconds)}",
            )
            for t in self.kernels
        ]
        return _table(("kernel", "time", "of the measured peak", "beside it"), rows)

    def _served(self) -> str:
        rows = [
            (
                str(s.workload.num_requests),
                f"{s.output_tokens_per_second:.0f}",
                _microseconds(s.decode_seconds),
                f"{s.limit_fraction:.0%}",
            )
            for s in self.served
        ]
        return _table(
            ("requests", "output tokens/s", "decode step", "of the limit by reading the weights"), rows
        )

    def _peers(self) -> str:
        rows = [
            (
                str(p.workload.num_requests),
                p.error if p.output_tokens_per_second is None else f"{p.output_tokens_per_second:.0f}",
            )
            for p in self.peers
        ]
        return _table(("requests", "transformers, continuous batching: output tokens/s"), rows)


def _split(split: StepSplit) -> str:
    """Return the table of one step's parts."""
    rows = [
        *((name, _microseconds(seconds)) for name, seconds in split.parts.items()),
        ("whole step", _microseconds(split.step_seconds)),
        ("no kernel runs", f"{split.idle_share:.1%}"),
    ]
    return _table((f"part of a decode step of {split.num_rows} rows", "time"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out; no rows, no table."""
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"

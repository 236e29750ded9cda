"""The same measurement on vLLM's own scheduler, in a Python where vLLM is installed.

Knows how to ask that Python; `vllm_probe.py` is what runs in it. Where there is no vLLM, says so.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill_bench.scheduler_cost import CostOptions

_TIMEOUT_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class PeerCost:
    """vLLM's figures by number of running requests, empty where there are none, and a sentence about them."""

    note: str
    schedule_update_ms: dict[str, dict[str, float]] = field(default_factory=dict)


def measure_vllm(python: Path | None, options: CostOptions) -> PeerCost:
    """Time vLLM's scheduler in the given Python."""
    if python is None:
        return PeerCost(note="vLLM's scheduler was not measured: give --vllm-python a Python that has vLLM.")
    probe = resources.files("tidemill_bench") / "vllm_probe.py"
    sizes = [str(size) for size in options.sizes]
    with resources.as_file(probe) as path:
        command = [str(python), "-I", str(path), str(options.num_steps), str(options.block_size), *sizes]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return PeerCost(note=f"vLLM's scheduler was not measured: {error}")
    return read_probe(done.returncode, done.stdout, done.stderr)


def read_probe(returncode: int, stdout: str, stderr: str) -> PeerCost:
    """Understand what the probe said: its last line is JSON."""
    last = (stdout.strip().splitlines() or [""])[-1]
    if returncode or not last.startswith("{"):
        why = (stderr.strip().splitlines() or ["it said nothing"])[-1]
        return PeerCost(note=f"vLLM's scheduler was not measured: {why}")
    told = json.loads(last)
    if "missing" in told:
        return PeerCost(note=f"vLLM is not installed there: {told['missing']}")
    return PeerCost(note=f"vLLM {told['version']}", schedule_update_ms=told["schedule_update_ms"])

"""`python -m tidemill_bench.gpu_check`: check and measure on this machine's GPU.

Exits with 0 if every kernel is right, 1 if one is not or a test of them fails, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill_bench.gpu_check.place import Place
    from tidemill_bench.gpu_check.report import Findings

PARTS = ("kernels", "tests", "speed", "engine", "transformers")
EXIT_WRONG = 1
EXIT_NO_GPU = 2


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tidemill_bench.gpu_check", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="this part; may be given again (default: all)"
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="the same on the CPU, tiny and interpreted: figures mean nothing",
    )
    parser.add_argument("--json", type=Path, help="write the findings here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    arguments = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if arguments.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, which is later
    place = _find_place(is_rehearsal=arguments.rehearse)
    if place is None:
        print("no GPU here: torch sees none, so nothing was measured. --rehearse runs this on the CPU.")
        sys.exit(EXIT_NO_GPU)
    findings = run(place, arguments.only or list(PARTS), lambda found: _write(found, arguments))
    print(findings.as_markdown())
    sys.exit(0 if findings.is_right else EXIT_WRONG)


def run(place: Place, parts: list[str], on_part: Callable[[Findings], None]) -> Findings:
    """Find out about each part; `on_part` is called after each, so that a cut run leaves something."""
    from tidemill_bench.gpu_check.report import Findings  # noqa: PLC0415 - not before triton is told how to run

    findings = Findings(
        device=place.name,
        is_rehearsal=place.is_rehearsal,
        copy_bytes_per_second=place.copy_bytes_per_second,
        product_flops=place.product_flops,
        facts=place.facts,
    )
    for part in PARTS:
        if part in parts:
            _STEPS[part](place, findings)
            on_part(findings)
    return findings


def _kernels(place: Place, findings: Findings) -> None:
    from tidemill_bench.gpu_check.correctness import check_kernels  # noqa: PLC0415

    findings.checks = check_kernels(place)


def _tests(place: Place, findings: Findings) -> None:
    from tidemill_bench.gpu_check.kernel_tests import run_kernel_tests  # noqa: PLC0415

    findings.tests = run_kernel_tests(place)


def _speed(place: Place, findings: Findings) -> None:
    from tidemill_bench.gpu_check.speed import time_kernels  # noqa: PLC0415

    findings.kernels = time_kernels(place)


def _engine(place: Place, findings: Findings) -> None:
    from tidemill_bench.gpu_check.engine_run import EngineRun, workloads_of  # noqa: PLC0415

    run = EngineRun(place)
    findings.served = [run.serve(workload) for workload in workloads_of(place)]
    num_rows, num_steps = (3, 2) if place.is_rehearsal else (256, 20)
    findings.splits = [run.split(num_rows, num_steps)]


def _transformers(place: Place, findings: Findings) -> None:
    from tidemill_bench.gpu_check.engine_run import workloads_of  # noqa: PLC0415
    from tidemill_bench.gpu_check.peers import serve_by_transformers  # noqa: PLC0415
    from tidemill_bench.gpu_check.random_model import LLAMA_8B, TINY  # noqa: PLC0415

    model = TINY if place.is_rehearsal else LLAMA_8B
    findings.peers = serve_by_transformers(place, model, workloads_of(place))


_STEPS: dict[str, Callable[[Place, Findings], None]] = {
    "kernels": _kernels,
    "tests": _tests,
    "speed": _speed,
    "engine": _engine,
    "transformers": _transformers,
}


def _find_place(*, is_rehearsal: bool) -> Place | None:
    from tidemill_bench.gpu_check.place import find_gpu, rehearsal  # noqa: PLC0415

    return rehearsal() if is_rehearsal else find_gpu()


def _write(findings: Findings, arguments: argparse.Namespace) -> None:
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(findings.as_json(), indent=1) + "\n")
    if arguments.markdown is not None:
        arguments.markdown.write_text(findings.as_markdown() + "\n")


if __name__ == "__main__":
    main()

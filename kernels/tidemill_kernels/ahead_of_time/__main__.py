"""`python -m tidemill_kernels.ahead_of_time`: compile all Triton kernels for GPUs that need not be here."""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict

from tidemill_kernels.ahead_of_time.compiler import Compiled, compile_variant
from tidemill_kernels.ahead_of_time.resources import SHARED_BYTES
from tidemill_kernels.ahead_of_time.variants import all_variants


def main() -> None:
    """Run the command line; exits with 1 when a variant takes more than it may."""
    parser = argparse.ArgumentParser(prog="python -m tidemill_kernels.ahead_of_time", description=__doc__)
    known = sorted(SHARED_BYTES)
    parser.add_argument(
        "--target", type=int, action="append", choices=known, help="80 means sm_80; default: all"
    )
    parser.add_argument("--only", default="", help="a part of the variants' names")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    wanted = [
        (variant, target)
        for target in arguments.target or known
        for variant in all_variants(target)
        if arguments.only in variant.name
    ]
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        found = list(pool.map(compile_variant, *zip(*wanted, strict=True)))
    print(json.dumps(_as_json(found)) if arguments.json else _as_table(found))
    sys.exit(1 if any(compiled.complaints for compiled in found) else 0)


def _as_json(found: list[Compiled]) -> dict[str, object]:
    return {
        f"{compiled.variant.name}/sm_{compiled.capability}": {
            **asdict(compiled.resources),
            "complaints": compiled.complaints,
        }
        for compiled in found
    }


def _as_table(found: list[Compiled]) -> str:
    lines = [f"{'kernel':42} {'target':7} {'registers':>9} {'shared':>8} {'spilled':>8}"]
    for compiled in found:
        took = compiled.resources
        line = (
            f"{compiled.variant.name:42} sm_{compiled.capability:<4} {took.registers:9} {took.shared_bytes:8}"
        )
        lines.append(f"{line} {took.spilled_bytes:8} {'; '.join(compiled.complaints)}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    main()

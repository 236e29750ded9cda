"""Runs the removal tests and the operator's kills many times, in passes, and adds up what each pass says.

`make soak` runs all passes one after the other; `--only N` runs one, so that a busy machine can take them one
at a time, and `--report` prints what is noted so far. A pass that fails ends the soak. Knows the tests by
name; what is measured, they note themselves.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTES = ROOT / ".cache" / "soak.jsonl"
NOTES_VARIABLE = "TIDEMILL_SOAK_NOTES"
TOTALS = (100, 20, 20)
"""Scale-downs, rollouts and evictions of all passes together."""
NUM_KILLS = 50
TESTS = ("tests/e2e/test_removal.py", "tests/operator/test_bad_days.py")
CHOSEN = "cut_no_stream or killed_at_any_write"


def note(
    what: str,
    seconds: list[float] | None = None,
    *,
    num_times: int = 0,
    num_streams: int = 0,
    num_cut: int = 0,
) -> None:
    """Print the figures of one disturbance and, in a soak, keep them for the sum.

    `seconds`: how long each took; where that was not measured, `num_times` says how often it happened.
    """
    measured = [round(value, 1) for value in seconds or ()]
    noted = {
        "what": what,
        "times": len(measured) or num_times,
        "seconds": measured,
        "streams": num_streams,
        "cut": num_cut,
    }
    print(told([noted]))
    path = os.environ.get(NOTES_VARIABLE)
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps(noted) + "\n")


def told(notes: list[dict[str, object]]) -> str:
    """Say in one line what notes of the same disturbance amount to."""
    seconds = sorted(value for noted in notes for value in _list_of(noted, "seconds"))
    times, streams, cut = (
        sum(_count_of(noted, key) for noted in notes) for key in ("times", "streams", "cut")
    )
    line = f"{notes[0]['what']}: {times} times"
    if streams:
        line += f", {streams} streams, {cut} cut or different"
    if len(seconds) > 1:
        half, most = statistics.median(seconds), seconds[math.ceil(0.9 * len(seconds)) - 1]
        line += f"; seconds: {half:.0f} in the median, {most:.0f} at p90, {seconds[-1]:.0f} at most"
    return line


def _list_of(noted: dict[str, object], key: str) -> list[float]:
    found = noted[key]
    return [float(value) for value in found] if isinstance(found, list) else []


def _count_of(noted: dict[str, object], key: str) -> int:
    return int(str(noted[key]))


def report() -> str:
    """Add up all notes, a line for each disturbance."""
    by_kind: dict[str, list[dict[str, object]]] = defaultdict(list)
    for line in NOTES.read_text().splitlines() if NOTES.exists() else ():
        noted = json.loads(line)
        by_kind[noted["what"]].append(noted)
    return "\n".join(told(notes) for notes in by_kind.values())


def run_pass(number: int, num_passes: int) -> int:
    """Run one pass, with places of the kills that no other pass has; give pytest's exit status."""
    shares = ",".join(str(math.ceil(total / num_passes)) for total in TOTALS)
    environment = {
        **os.environ,
        "TIDEMILL_SOAK_REPEATS": os.environ.get("TIDEMILL_SOAK_REPEATS", shares),
        "TIDEMILL_TEST_KILLS": os.environ.get("TIDEMILL_TEST_KILLS", str(math.ceil(NUM_KILLS / num_passes))),
        "TIDEMILL_TEST_SEED": str(100 + number),
        NOTES_VARIABLE: str(NOTES),
    }
    print(f"== pass {number} of {num_passes}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-x", *TESTS, "-k", CHOSEN]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    """Run passes, or one, or only say what was noted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=4, help="into how many parts the soak is cut")
    parser.add_argument("--only", type=int, help="run this pass alone, and keep the notes of others")
    parser.add_argument("--report", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    NOTES.parent.mkdir(exist_ok=True)
    if arguments.only is None and not arguments.report:
        NOTES.unlink(missing_ok=True)
    numbers = [arguments.only] if arguments.only else range(1, arguments.passes + 1)
    for number in () if arguments.report else numbers:
        status = run_pass(number, arguments.passes)
        if status != 0:
            print(f"pass {number} failed")
            return status
    print(report())
    return 0


if __name__ == "__main__":
    sys.exit(main())

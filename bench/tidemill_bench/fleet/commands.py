"""The commands `simulate` and `replay`: their arguments, and what they print."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill_bench.arguments import UsageError
from tidemill_bench.fleet.replay import advisory, as_json, replay
from tidemill_bench.fleet.replay import as_table as replay_table
from tidemill_operator.autoscaling.load_json import RecordingError, header, read, to_line
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.errors import InvalidSpec
from tidemill_operator.scaling_fields import check_scaling_fields
from tidemill_operator.scaling_spec import parse_scaling

if TYPE_CHECKING:
    from tidemill_bench.fleet.sweep import Options


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `simulate`."""
    parser.add_argument(
        "--quick", action="store_true", help="ours anew, the others as shipped: under a minute"
    )
    parser.add_argument("--loads", nargs="+", default=[], metavar="NAME", help="only these loads")
    parser.add_argument("--policies", nargs="+", default=[], metavar="NAME", help="only these of the others")
    parser.add_argument(
        "--fresh", action="store_true", help="run the others again, whatever was kept of them"
    )
    parser.add_argument("--ship", action="store_true", help="write the others' results into the package")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw attainment over GPU-hours (svg or png)"
    )
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="write ours' loads, for `replay`")
    parser.add_argument(
        "--replicas",
        choices=["quick", "scheduler", "both"],
        default="quick",
        help="quick: the same rules in leaps; scheduler: the engine's own scheduler, thirty times slower; "
        "both: ours, llm-d and KEDA with each, side by side",
    )
    parser.add_argument(
        "--account",
        action="store_true",
        help="instead: where ours' GPU-hours go on the tuning loads, beside a policy that knows the requests",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes; default 1")


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `replay`."""
    parser.add_argument("file", type=Path, help="recorded loads, one JSON object a line")
    parser.add_argument(
        "--scaling", type=Path, metavar="FILE", help="spec.scaling as JSON; default: the file's"
    )


def simulate(args: argparse.Namespace) -> dict[str, object]:
    """Run the simulator, print its tables and return its figures."""
    from tidemill_bench.fleet import account, catalogue, compare  # noqa: PLC0415 - per command
    from tidemill_bench.fleet.report import as_table, write_plot  # noqa: PLC0415
    from tidemill_bench.fleet.settings import FleetSettings  # noqa: PLC0415
    from tidemill_bench.fleet.stored import SHIPPED, Store, write_shipped  # noqa: PLC0415
    from tidemill_bench.fleet.sweep import Options, kept, quick, whole  # noqa: PLC0415

    _check_flags(args)
    with tempfile.TemporaryDirectory() as empty:
        options = Options(
            settings=FleetSettings(),
            engine="quick" if args.replicas == "both" else args.replicas,
            workers=args.workers,
            store=Store(folder=Path(empty), shipped={}) if args.fresh else Store(),
            loads=tuple(args.loads),
            policies=tuple(args.policies),
        )
        _check_names(options)
        if args.account:
            accounts = [account.account(load, options.settings) for load in catalogue.tuning()]
            print(account.as_table(accounts))
            return account.as_json(accounts)
        if args.replicas == "both":
            pairs = compare.compare(options)
            print(compare.as_table(pairs))
            return compare.as_json(pairs)
        report = (quick if args.quick else whole)(options)
        print(as_table(report))
        if args.ship:
            found = kept(options.others(), options.reported(), options)
            write_shipped([(key, point) for key, point in found if point is not None], SHIPPED)
            print(f"wrote {SHIPPED}")
    if args.plot:
        print(f"wrote {write_plot(report, args.plot)}")
    if args.record:
        for path in record(args.record, [p.load for p in report.ours]):
            print(f"wrote {path}")
    return report.as_json()


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that another one would make nothing of."""
    unused = ["quick", "ship", "plot", "record"]
    if args.account:
        mode, unused = "--account", [*unused, "loads", "policies", "fresh"]
        if args.replicas != "quick":
            raise UsageError(f"--replicas {args.replicas} does not go with {mode}")
    elif args.replicas == "both":
        mode = "--replicas both"
    else:
        return
    given = [name for name in unused if getattr(args, name)]
    if given:
        raise UsageError(f"--{given[0]} does not go with {mode}")


def _check_names(options: Options) -> None:
    """Refuse names of loads and policies that there are none of."""
    from tidemill_bench.fleet import catalogue, roster  # noqa: PLC0415 - per command

    known_loads = {load.name for load in catalogue.held_out()}
    known_policies = {candidate.policy for candidate in roster.peers()}
    for kind, given, known in (
        ("load", options.loads, known_loads),
        ("policy", options.policies, known_policies),
    ):
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(f"{kind} {unknown[0]!r} is unknown; choose of {', '.join(sorted(known))}")


def record(folder: Path, loads: list[str]) -> list[Path]:
    """Run ours on some loads and write what it saw."""
    from tidemill_bench.fleet.catalogue import held_out  # noqa: PLC0415 - per command
    from tidemill_bench.fleet.fleet import Fleet  # noqa: PLC0415
    from tidemill_bench.fleet.ours import Tidemill, policy_for  # noqa: PLC0415
    from tidemill_bench.fleet.settings import FleetSettings  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    settings, written = FleetSettings(), []
    scaling = {
        "minReplicas": settings.min_replicas,
        "maxReplicas": settings.max_replicas,
        "slo": {
            "timeToFirstToken": f"{settings.slo.ttft_seconds * 1000:.0f}ms",
            "interTokenLatency": f"{settings.slo.itl_seconds * 1000:.0f}ms",
        },
    }
    for load in held_out():
        if load.name not in loads:
            continue
        seen: list[FleetLoad] = []
        Fleet(load, Tidemill(policy_for(settings)), settings, on_load=seen.append).run()
        lines = [header(scaling), *(to_line(one) for one in seen)]
        path = folder / f"{load.name}.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        written.append(path)
    return written


def run_replay(parser: argparse.ArgumentParser, args: argparse.Namespace) -> dict[str, object]:
    """Replay a recorded load, print the decisions and return the figures."""
    try:
        recording = read(args.file.read_text(encoding="utf-8").splitlines())
        given = json.loads(args.scaling.read_text(encoding="utf-8")) if args.scaling else recording.scaling
        if given is not None:
            check_scaling_fields(given)
        policy = parse_scaling(given)
    except (OSError, RecordingError, InvalidSpec, json.JSONDecodeError, UnicodeDecodeError) as bad:
        parser.error(str(bad))
    if policy is None:
        parser.error("the file does not say spec.scaling; give it with --scaling")
    steps = replay(recording, advisory(policy))
    print(replay_table(steps))
    return as_json(steps)

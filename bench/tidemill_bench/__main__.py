"""Command line of the benchmarks: reads flags and environment, prints a table, then one JSON object."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from . import policies_command
from .arguments import UsageError, positive
from .fleet import commands as fleet_commands
from .load import command as load_command
from .load.client import LoadError


def main() -> None:
    """Run one command; exit 1 where any request failed."""
    parser = argparse.ArgumentParser(prog="tidemill-bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_load(commands)
    _add_scheduler(commands)
    _add_fit(commands)
    _add_policies(commands)
    _add_tails(commands)
    _add_timeline(commands)
    _add_fleet(commands)
    _add_race(commands)
    _add_step(commands)
    _add_gateway(commands)
    _add_scrape(commands)
    _add_accuracy(commands)
    args = parser.parse_args()
    run = {
        "load": _load,
        "scheduler": _scheduler,
        "fit": _fit,
        "policies": _policies,
        "tails": _tails,
        "timeline": _timeline,
        "simulate": _simulate,
        "replay": _replay,
        "race": _race,
        "step": _step,
        "gateway": _gateway,
        "scrape": _scrape,
        "accuracy": _accuracy,
    }[args.command]
    try:
        raise SystemExit(run(parser, args))
    except UsageError as bad:
        parser.error(str(bad))


Commands = argparse._SubParsersAction  # noqa: SLF001 - argparse has no public name for it


def _add_load(commands: Commands[argparse.ArgumentParser]) -> None:
    load = commands.add_parser("load", help="send a workload to an OpenAI server")
    load_command.add_arguments(load)
    _add_json(load)


def _add_scheduler(commands: Commands[argparse.ArgumentParser]) -> None:
    scheduler = commands.add_parser("scheduler", help="time schedule + update while every request decodes")
    scheduler.add_argument("--running", type=positive, nargs="+", default=[256, 1024, 4096], metavar="N")
    scheduler.add_argument("--steps", type=positive, default=640)
    scheduler.add_argument("--block-size", type=positive, default=32)
    scheduler.add_argument(
        "--vllm-python", type=Path, metavar="PYTHON", help="also time vLLM's scheduler, in this Python"
    )
    _add_json(scheduler)


def _add_fit(commands: Commands[argparse.ArgumentParser]) -> None:
    fit = commands.add_parser(
        "fit", help="measure steps of the CPU runner and fit the simulator's step times"
    )
    fit.add_argument("--model", default="builtin://smollm2-135m", help="URI of the model")
    fit.add_argument("--repeats", type=positive, default=3)
    fit.add_argument("--note", default="", help="what to remember about this machine")
    _add_json(fit)


def _add_policies(commands: Commands[argparse.ArgumentParser]) -> None:
    policies = commands.add_parser("policies", help="race schedulers and policies in the simulator")
    policies_command.add_arguments(policies)
    _add_json(policies)


def _add_fleet(commands: Commands[argparse.ArgumentParser]) -> None:
    simulate = commands.add_parser("simulate", help="race autoscalers over simulated fleets")
    fleet_commands.add_simulate(simulate)
    _add_json(simulate)
    replay = commands.add_parser(
        "replay", help="show what the autoscaler would have done with a recorded load"
    )
    fleet_commands.add_replay(replay)
    _add_json(replay)


def _add_tails(commands: Commands[argparse.ArgumentParser]) -> None:
    tails = commands.add_parser("tails", help="run the race's closed loops in the simulator")
    tails.add_argument(
        "--engine",
        action="store_true",
        help="on the real CPU runner, in CPU time on one core, halved: as if it were two; 10 minutes",
    )
    _add_json(tails)


def _add_timeline(commands: Commands[argparse.ArgumentParser]) -> None:
    timeline = commands.add_parser("timeline", help="draw a few steps of a real run of the scheduler")
    timeline.add_argument("--svg", type=Path, required=True, metavar="FILE")
    _add_json(timeline)


def _add_race(commands: Commands[argparse.ArgumentParser]) -> None:
    from .race.command import add_arguments  # noqa: PLC0415 - per command

    race = commands.add_parser("race", help="run other engines and ours on the same workloads, in turn")
    add_arguments(race)
    _add_json(race)


def _add_step(commands: Commands[argparse.ArgumentParser]) -> None:
    step = commands.add_parser("step", help="split one step, and print what the machine could do at best")
    step.add_argument("--model", default="builtin://smollm2-135m", help="URI of the model")
    step.add_argument(
        "--rows", type=positive, nargs="+", default=[1, 64], help="requests that decode together"
    )
    step.add_argument("--context", type=positive, default=160, help="tokens that each has computed")
    step.add_argument("--steps", type=positive, default=50)
    step.add_argument("--http", action="store_true", help="also serve over HTTP and compare with in-process")
    step.add_argument("--requests", type=positive, default=256, help="with --http")
    _add_json(step)


def _add_gateway(commands: Commands[argparse.ArgumentParser]) -> None:
    from .gateway.command import add_arguments  # noqa: PLC0415 - per command

    gateway = commands.add_parser("gateway", help="what a request and an open stream cost at the gateway")
    add_arguments(gateway)
    _add_json(gateway)


def _add_scrape(commands: Commands[argparse.ArgumentParser]) -> None:
    scrape = commands.add_parser("scrape", help="what it costs the operator to read a fleet's figures")
    scrape.add_argument("--endpoints", type=positive, default=400)
    scrape.add_argument("--interval", type=float, default=5.0, metavar="SECONDS")
    scrape.add_argument("--rounds", type=positive, default=6)
    _add_json(scrape)


def _add_accuracy(commands: Commands[argparse.ArgumentParser]) -> None:
    from .accuracy.command import TEXT  # noqa: PLC0415 - per command

    accuracy = commands.add_parser("accuracy", help="compare number formats on a text")
    accuracy.add_argument("--model", default="builtin://smollm2-135m", help="URI of the model")
    accuracy.add_argument("--text", type=Path, default=TEXT, metavar="FILE")
    accuracy.add_argument(
        "--float32",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare with torch in float32 (default), else with bfloat16",
    )
    _add_json(accuracy)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON object here")


def _load(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    try:
        figures, code = load_command.run(args)
    except LoadError as bad:
        parser.error(str(bad))
    _print_json(figures, args.json)
    return code


def _scheduler(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from .scheduler_cost import CostOptions, as_table, measure_sizes  # noqa: PLC0415 - per command
    from .vllm_cost import measure_vllm  # noqa: PLC0415

    options = CostOptions(sizes=tuple(args.running), num_steps=args.steps, block_size=args.block_size)
    costs = measure_sizes(options)
    peer = measure_vllm(args.vllm_python, options)
    print(as_table(costs, peer.schedule_update_ms))
    print(peer.note)
    figures: dict[str, object] = {
        "schedule_update_ms": {str(cost.num_running): cost.as_json() for cost in costs}
    }
    if peer.schedule_update_ms:
        figures["vllm_schedule_update_ms"] = peer.schedule_update_ms
    _print_json(figures, args.json)
    return 0


def _scrape(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from .scrape import MAX_SHARE, ScrapeOptions, measure  # noqa: PLC0415 - per command

    options = ScrapeOptions(endpoints=args.endpoints, interval_seconds=args.interval, rounds=args.rounds)
    cost = measure(options)
    print(
        f"{options.endpoints} engines every {options.interval_seconds:g} s: {100 * cost.cpu_share:.1f} % of "
        f"a core (parsing {100 * cost.parse_share:.1f} %), answers of {cost.answer_bytes} bytes in "
        f"{cost.p50_ms:.1f} ms (p99 {cost.p99_ms:.1f} ms), {cost.num_missing} of {cost.num_answers} missing"
    )
    _print_json(cost.as_json(options), args.json)
    return 0 if cost.cpu_share < MAX_SHARE and cost.num_missing == 0 else 1


def _fit(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from .fit import measure_and_fit  # noqa: PLC0415 - torch

    fitted, measurements = measure_and_fit(args.model, args.repeats, args.note)
    print(f"{'ms':>9} {'fitted':>9}  contents")
    for m in measurements:
        print(f"{m.seconds * 1e3:9.1f} {fitted.seconds(m.features) * 1e3:9.1f}  {m.features}")
    _print_json(fitted.as_json(), args.json)
    return 0


def _policies(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    _print_json(policies_command.run(args), args.json)
    return 0


def _simulate(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    _print_json(fleet_commands.simulate(args), args.json)
    return 0


def _replay(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    _print_json(fleet_commands.run_replay(parser, args), args.json)
    return 0


def _tails(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from .tails import NUM_REQUESTS, as_table, tails  # noqa: PLC0415 - per command

    if args.engine:
        from .tails_engine import tails_of_engine  # noqa: PLC0415 - the engine's kernels

        rows = list(tails_of_engine())
    else:
        rows = [tails(workload) for workload in NUM_REQUESTS]
    print(as_table(rows))
    _print_json({row.workload: asdict(row) for row in rows}, args.json)
    return 0


def _timeline(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from .timeline import draw, record  # noqa: PLC0415 - per command

    timeline = record()
    args.svg.write_text(draw(timeline), encoding="utf-8")
    print(f"wrote {args.svg}: {timeline.num_requests} requests, {len(timeline.steps)} steps")
    _print_json(timeline.as_json(), args.json)
    return 0


def _race(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from .race.command import run  # noqa: PLC0415 - per command

    _print_json(run(args), args.json)
    return 0


def _accuracy(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from .accuracy.command import run  # noqa: PLC0415 - per command

    _print_json(run(args), args.json)
    return 0


def _step(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from .step.command import run  # noqa: PLC0415 - torch

    _print_json(run(args), args.json)
    return 0


def _gateway(_parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from .gateway.command import is_within_promises, run  # noqa: PLC0415 - per command

    figures = run(args)
    _print_json(figures, args.json)
    return 0 if is_within_promises(figures) else 1


def _print_json(figures: dict[str, object], path: Path | None) -> None:
    text = json.dumps(figures)
    if path:
        path.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

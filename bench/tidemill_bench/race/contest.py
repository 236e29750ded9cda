"""Lets the contenders run in turn: a trial of each configuration, then rounds in which everyone runs once.

Knows the order of things. In a round all get the same requests; each round has its own, so that nobody finds
the last round's prompts in a cache. Everyone but the one whose turn it is stands still.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill_bench.load.workload import plan_requests
from tidemill_bench.race.contender import Result, Workload, concurrency_of, num_requests_of
from tidemill_bench.race.figures import RaceReport, Run
from tidemill_bench.race.peers import Configuration, Contender
from tidemill_bench.race.running import HttpRunning, Running, ScriptRunning
from tidemill_bench.race.server import SetupError
from tidemill_bench.smollm2 import VOCAB_SIZE

logger = logging.getLogger(__name__)

_LOWEST_PORT = 18100
_PORTS_APART = 500
_WARM_UP_SEED = 900_000
_TRIAL_SEED = 800_000
_LEAST_TRIAL = 4
_WARM_TRIAL = 8


@dataclass(frozen=True, kw_only=True)
class ContestOptions:
    """What is raced, how often, and where things are kept."""

    workloads: tuple[Workload, ...]
    rounds: int
    requests_per_slot: int
    is_quick: bool
    cache: Path
    seed: int = 1
    configurations: tuple[str, ...] = ()
    """Labels: a contender that has some of these runs in them alone, untried."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return what each round's requests are drawn from."""
        return tuple(self.seed + 1000 * number for number in range(self.rounds))

    def num_requests(self, workload: Workload) -> int:
        """Return how many requests a run has."""
        return num_requests_of(workload, self.requests_per_slot, is_quick=self.is_quick)

    def num_trial_requests(self, workload: Workload) -> int:
        """Return how many requests a configuration is tried with: a quarter, but as many as are in flight.

        With fewer, one that falls behind with all of them in flight would look as good as any. Where
        configurations are named there is nothing to find out, and a few requests end standing still.
        """
        count = self.num_requests(workload)
        if self.configurations:
            return min(_WARM_TRIAL, count)
        return max(_LEAST_TRIAL, count // 4, min(count, concurrency_of(workload)))


class Contest:
    """One race."""

    def __init__(self, contenders: Sequence[Contender], options: ContestOptions) -> None:
        self._contenders = list(contenders)
        self._options = options
        self._configurations: dict[str, tuple[Configuration, ...]] = {}
        self._running: dict[tuple[str, str], Running] = {}
        self._failures: dict[str, str] = {}
        self._runs: list[Run] = []
        self._chosen: dict[str, dict[Workload, str]] = {}

    async def run(self) -> RaceReport:
        """Race every workload and return all runs."""
        try:
            for contender in self._contenders:
                await self._set_up(contender)
            for workload in self._options.workloads:
                for contender in self._taking_part():
                    await self._choose(contender, workload)
                for number in range(self._options.rounds):
                    await self._round(workload, number)
        finally:
            for running in self._running.values():
                await running.end()
        return RaceReport(runs=tuple(self._runs), configurations=self._chosen, failures=self._failures)

    def _taking_part(self) -> list[Contender]:
        return [contender for contender in self._contenders if contender.name not in self._failures]

    async def _set_up(self, contender: Contender) -> None:
        """Install a contender and start each of its configurations."""
        try:
            configurations = self._wanted(await asyncio.to_thread(contender.prepare, self._options.cache))
            for configuration in configurations:
                running = await self._start(contender, configuration)
                self._running[contender.name, configuration.label] = running
                await self._warm_up(running)
                running.pause()
        except SetupError as error:
            await self._give_up(contender, str(error))
            return
        self._configurations[contender.name] = configurations

    def _wanted(self, configurations: tuple[Configuration, ...]) -> tuple[Configuration, ...]:
        """Return those that were asked for; all where a contender has none of these."""
        labels = self._options.configurations
        return tuple(each for each in configurations if each.label in labels) or configurations

    async def _start(self, contender: Contender, configuration: Configuration) -> Running:
        port = free_port()
        name = f"{contender.name}-{configuration.label}".replace(" ", "-").replace(",", "")
        log_path = self._options.cache / "logs" / f"{name}.log"
        _say(f"starting {contender.name} ({configuration.label})")
        command = configuration.command(port)
        if configuration.is_script:
            return await ScriptRunning.start(command, log_path)
        return await HttpRunning.start(command, port, log_path)

    async def _warm_up(self, running: Running) -> None:
        """Let a contender compile and allocate whatever it does only once."""
        requests = plan_requests("uniform", 8, VOCAB_SIZE, _WARM_UP_SEED)
        result = await running.run(requests, 8)
        if result.num_errors:
            raise SetupError(f"its first requests failed: {result.first_error}")

    async def _choose(self, contender: Contender, workload: Workload) -> None:
        """Try each configuration on a workload and keep the best.

        One that has no other runs its trial, too: else it alone would come to the round from standing still.
        """
        rates: dict[str, float] = {}
        count = self._options.num_trial_requests(workload)
        for place, configuration in enumerate(self._configurations[contender.name]):
            result = await self._turn(contender, configuration.label, workload, (count, _TRIAL_SEED + place))
            if result is None:
                return
            rates[configuration.label] = result.rate(workload)
        best = max(rates, key=lambda label: rates[label])
        self._chosen.setdefault(contender.name, {})[workload] = best
        if len(rates) > 1:
            tried = ", ".join(f"{label} {rate:.0f}" for label, rate in rates.items())
            _say(f"{workload}: {contender.name} runs with {best} (tok/s tried: {tried})")

    async def _round(self, workload: Workload, number: int) -> None:
        """Let everyone run the same requests, in an order that turns by one each round."""
        order = self._taking_part()
        shift = number % max(1, len(order))
        work = (self._options.num_requests(workload), self._options.seeds[number])
        for contender in order[shift:] + order[:shift]:
            label = self._chosen[contender.name][workload]
            result = await self._turn(contender, label, workload, work)
            if result is not None:
                self._runs.append(
                    Run(contender=contender.name, workload=workload, round=number, result=result)
                )
                _say(f"{workload} {number + 1}: {contender.name} {result.rate(workload):.1f} tok/s")

    async def _turn(
        self, contender: Contender, label: str, workload: Workload, work: tuple[int, int]
    ) -> Result | None:
        """Let one contender run so many requests drawn from a seed; None where it has given up."""
        count, seed = work
        running = self._running[contender.name, label]
        requests = plan_requests(workload, count, VOCAB_SIZE, seed)
        running.resume()
        try:
            result = await running.run(requests, concurrency_of(workload))
        except SetupError as error:
            await self._give_up(contender, f"{workload}: {error}")
            return None
        finally:
            running.pause()
        if result.num_errors:
            logger.warning(
                "%s, %s: %d errors, first: %s",
                contender.name,
                workload,
                result.num_errors,
                result.first_error,
            )
        return result

    async def _give_up(self, contender: Contender, reason: str) -> None:
        """Go on without a contender, and say why."""
        _say(f"{contender.name} does not take part: {reason}")
        self._failures[contender.name] = reason
        for key in [key for key in self._running if key[0] == contender.name]:
            await self._running.pop(key).end()


def free_port() -> int:
    """Return a port that nobody listens on, below those that the system gives out by itself."""
    for port in range(_LOWEST_PORT, _LOWEST_PORT + 2 * _PORTS_APART, 2):
        if all(_is_free(each) for each in (port, port + _PORTS_APART)):
            return port
    raise SetupError(f"no port is free from {_LOWEST_PORT} on")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _say(text: str) -> None:
    print(text, flush=True)

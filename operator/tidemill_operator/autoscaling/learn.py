"""What is learned of a service between decisions: start-up time, lengths, speeds, concurrency.

Pure: the new figures from the old ones and one load. Everything fades, so that another model or machine is
learned too; every figure is a mean or a bound that can be shown in status.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tidemill_operator.autoscaling.arrivals import ArrivalRate
from tidemill_operator.autoscaling.capacity import Capacity, Limits, Work, by_speeds, by_step_times
from tidemill_operator.autoscaling.decision import Learned
from tidemill_operator.autoscaling.fleet_view import FleetView
from tidemill_operator.autoscaling.memory import Memory
from tidemill_operator.autoscaling.model import EngineFigures, ReplicaLoad, StepTimes
from tidemill_operator.autoscaling.policy import ScalingPolicy

DEFAULT_STARTUP_SECONDS = 120.0
MIN_REQUESTS = 60.0
SMOOTH_SECONDS = 45.0


def startup_seconds(before: float | None, took: float) -> float:
    """Return the start-up time to plan with: slower pods count more than quicker ones."""
    if before is None:
        return took
    share = 0.5 if took > before else 0.1
    return before + share * (took - before)


def with_new_pods(learned: Learned, memory: Memory, view: FleetView) -> tuple[Learned, Memory]:
    """Take the start-up times of pods that have become ready since the last look."""
    first_look = memory.at is None
    alive = {r.uid for r in (*view.ready, *view.draining)}
    for pod in view.ready:
        if pod.uid in memory.known_ready or first_look or not _is_plain_start(pod):
            continue
        took = (pod.ready_since or pod.created) - pod.created
        learned = replace(learned, startup_seconds=startup_seconds(learned.startup_seconds, took))
    ready = frozenset(r.uid for r in view.ready) | (memory.known_ready & alive)
    return learned, replace(memory, known_ready=ready)


def _is_plain_start(pod: ReplicaLoad) -> bool:
    return pod.ready_since is not None and pod.ready_since >= pod.created


def smoothed(memory: Memory, elapsed: float, now: dict[str, float]) -> dict[str, float]:
    """Return means over about a minute of figures that jump."""
    share = 1.0 - math.exp(-elapsed / SMOOTH_SECONDS)
    return {
        name: value
        if name not in memory.smooth
        else memory.smooth[name] + share * (value - memory.smooth[name])
        for name, value in now.items()
    }


def work_of(learned: Learned, memory: Memory, rate: ArrivalRate | None) -> tuple[Work | None, Learned]:
    """Return the requests of late and the figures that were learned of them."""
    tokens = memory.tokens
    if tokens.ended >= MIN_REQUESTS:
        prompts = tokens.prefill + tokens.cached
        learned = replace(
            learned,
            prompt_tokens_per_request=prompts / tokens.ended,
            output_tokens_per_request=max(1.0, tokens.output / tokens.ended),
            cached_share=tokens.cached / prompts if prompts > 0 else 0.0,
        )
    prompt, output = learned.prompt_tokens_per_request, learned.output_tokens_per_request
    if rate is not None and rate.prompt_tokens_per_request is not None:
        prompt = rate.prompt_tokens_per_request
    if prompt is None or output is None:
        return None, learned
    uncached = max(1.0, prompt * (1.0 - (learned.cached_share or 0.0)))
    spread = rate.prompt_spread if rate is not None else None
    return Work(prompt=max(1.0, prompt), uncached=uncached, output=output, spread=spread), learned


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A replica as the engines describe it, on average."""

    limits: Limits
    step_times: StepTimes | None


def machine_of(known: tuple[EngineFigures, ...]) -> Machine | None:
    """Return the mean replica; None without figures."""
    if not known:
        return None
    times = [f.step_times for f in known if f.step_times is not None]
    seqs = [f.max_num_seqs for f in known if f.max_num_seqs]
    return Machine(
        limits=Limits(
            max_num_seqs=sum(seqs) / len(seqs) if seqs else math.inf,
            capacity_tokens=sum(f.capacity_tokens for f in known) / len(known),
        ),
        step_times=StepTimes(
            fixed_seconds=_mean([t.fixed_seconds for t in times]),
            token_seconds=_mean([t.token_seconds for t in times]),
            context_token_seconds=_mean([t.context_token_seconds for t in times]),
            attention_pair_seconds=_mean([t.attention_pair_seconds for t in times]),
            row_seconds=_mean([t.row_seconds for t in times]),
        )
        if times
        else None,
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def capacity_of(
    machine: Machine | None, work: Work | None, learned: Learned, policy: ScalingPolicy
) -> Capacity | None:
    """Return what a replica carries, by its own step times or else by measured speeds; None if unknown."""
    if machine is None or work is None:
        return None
    if machine.step_times is not None:
        return by_step_times(machine.step_times, work, machine.limits, policy)
    prefill, decode = learned.prefill_tokens_per_second, learned.decode_tokens_per_second
    if not prefill or not decode:
        return None
    return by_speeds(prefill, decode, work, machine.limits, policy)

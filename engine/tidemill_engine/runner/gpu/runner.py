"""A runner on a device: `launch` hands a step over and waits for nothing, `sample` waits for its tokens.

A step's tokens are chosen and put at the ends of their rows on the device, so that the next step can be
launched before the host knows them. Knows steps; the model, rows, copies and sampling live beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np
import torch

from tidemill_engine.messages import TokenLogprobs
from tidemill_engine.models.device_llama import DeviceCache
from tidemill_engine.runner.base import RunnerLost
from tidemill_engine.runner.gpu.compute import StepCompute, StepShape
from tidemill_engine.runner.gpu.rows import DeviceRows, append_places
from tidemill_engine.runner.gpu.sampling import Choice, RowSpecials, Sampling, choose
from tidemill_engine.runner.gpu.swap import BlockMover
from tidemill_engine.step import RowFailure, StepResult, int_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemill_engine.models.device_llama import CacheShape, DeviceLlama
    from tidemill_engine.runner.base import RunnerInfo
    from tidemill_engine.runner.gpu.attention import AttentionBackend
    from tidemill_engine.runner.gpu.device import Device, Mark
    from tidemill_engine.step import BoolArray, NewRow, SchedulerOutput, TokenMasks

_TRITONS_WORDS = "Triton Error [CUDA]"
Given = ParamSpec("Given")
Returned = TypeVar("Returned")


@dataclass(frozen=True, kw_only=True)
class DeviceParts:
    """A model on a device, how it attends, and what its cache is."""

    model: DeviceLlama
    device: Device
    attention: AttentionBackend
    cache_shape: CacheShape


@dataclass(frozen=True, kw_only=True)
class _HostChoice:
    """A choice on its way to the host."""

    token_ids: torch.Tensor
    likely_ids: torch.Tensor | None
    likely_logprobs: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class _LaunchedStep:
    """A step that the device may still be computing; `keeps` is memory that it still uses."""

    step_id: int
    sampling: Sampling
    choice: _HostChoice
    done: Mark
    keeps: tuple[object, ...]


def _ends_when_broken(method: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """After an error of the device itself nothing can be computed on it any more."""

    @wraps(method)
    def guarded(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        try:
            return method(*args, **kwargs)
        except torch.AcceleratorError as error:
            raise RunnerLost(f"the device has failed: {error}") from error
        except RuntimeError as error:
            # Triton's launcher tells of a broken device, too, but by no type of its own.
            if _TRITONS_WORDS not in str(error):
                raise
            raise RunnerLost(f"the device has failed: {error}") from error

    return guarded


class DeviceRunner:
    """Runs a model's steps on one device."""

    def __init__(
        self, parts: DeviceParts, info: RunnerInfo, *, num_rows: int, graph_sizes: Sequence[int] = ()
    ) -> None:
        device, model = parts.device, parts.model
        self._model = model
        self._info = info
        self._device = device
        self._cache = DeviceCache(parts.cache_shape, info.num_blocks + 1, device.torch_device)
        self._mover = BlockMover(device, self._cache, info.num_swap_blocks)
        self._tables = DeviceRows(
            num_rows=num_rows,
            max_tokens=info.max_model_len,
            block_size=info.block_size,
            padding_block=info.num_blocks,
            device=device.torch_device,
        )
        self._specials: dict[int, RowSpecials] = {}
        self._is_special = np.zeros(num_rows, dtype=np.bool_)
        self._num_prompt_tokens = np.zeros(num_rows, dtype=np.int32)
        self._launched: deque[_LaunchedStep] = deque()
        self._compute = StepCompute(model, self._cache, self._tables, device, parts.attention)
        with torch.inference_mode():
            self._compute.capture(graph_sizes)

    @property
    def info(self) -> RunnerInfo:
        """Return what was loaded."""
        return self._info

    @_ends_when_broken
    @torch.inference_mode()
    def launch(self, output: SchedulerOutput) -> None:
        """Hand a step over: its copies, its computing, the choice of its tokens and their way back."""
        if len(output.mask_rows):
            raise NotImplementedError("grammar masks are not applied yet")
        self._move(output)
        self._start_rows(output.new_rows)
        shape = StepShape.of(output)
        positions = shape.lengths - self._num_prompt_tokens[shape.sampled_rows]
        targets = append_places(shape.sampled_rows, shape.lengths, self._tables)
        logits, there = self._compute.logits(
            output, shape, [shape.sampled_rows, int_array(positions), *targets]
        )
        sampling = self._sampling(shape, there)
        choice = choose(logits, sampling, self._tables, self._device)
        token_ids = choice.token_ids
        if len(token_ids):
            token_ids = self._model.group.from_first(token_ids)
        self._tables.append(there[2], there[3], token_ids)
        host, done = self._fetch(choice, token_ids)
        self._launched.append(
            _LaunchedStep(
                step_id=output.step_id,
                sampling=sampling,
                choice=host,
                done=done,
                keeps=(choice, token_ids),
            )
        )

    @_ends_when_broken
    def sample(self, masks: TokenMasks | None) -> StepResult:
        """Wait for the tokens of the oldest launched step."""
        step = self._launched.popleft()
        if masks is not None and len(masks.rows):
            raise NotImplementedError("grammar masks are not applied yet")
        step.done.wait()
        rows, moved = step.sampling.rows, self._mover.ended()
        tokens = step.choice.token_ids.numpy().astype(np.int32)
        is_valid = tokens >= 0
        failures = tuple(
            RowFailure(row=int(row), message="the model's output is not a number (NaN)")
            for row in rows[~is_valid]
        )
        return StepResult(
            step_id=step.step_id,
            rows=rows[is_valid],
            token_ids=tokens[is_valid].reshape(-1, 1),
            num_accepted=np.ones(int(is_valid.sum()), dtype=np.int32),
            failures=failures,
            num_copied=moved.num_blocks,
            copy_seconds=moved.seconds,
            logprobs=_logprobs(step, is_valid),
        )

    def _move(self, output: SchedulerOutput) -> None:
        """Do a step's copies. Nothing repeats them, so that without one blocks would hold something else."""
        try:
            self._mover.carry_out(output)
        except Exception as error:
            raise RunnerLost(f"blocks could not be copied: {error}") from error

    def _start_rows(self, new_rows: Sequence[NewRow]) -> None:
        """Note what of new rows stays on the host."""
        for new_row in new_rows:
            params = new_row.sampling
            end_token_ids = set(params.stop_token_ids)
            if not params.ignore_eos:
                end_token_ids |= self._info.eos_token_ids
            special = RowSpecials(
                sampling=params,
                num_prompt_tokens=new_row.num_prompt_tokens,
                end_token_ids=tuple(
                    token for token in sorted(end_token_ids) if token < self._info.vocab_size
                ),
            )
            self._specials[new_row.row] = special
            self._is_special[new_row.row] = special.is_adjusting or params.num_logprobs is not None
            self._num_prompt_tokens[new_row.row] = new_row.num_prompt_tokens

    def _sampling(self, shape: StepShape, there: Sequence[torch.Tensor]) -> Sampling:
        """Say who is sampled; `there` is what `launch` sent beside the step."""
        rows = shape.sampled_rows
        special = np.flatnonzero(self._is_special[rows]).tolist()
        return Sampling(
            rows=rows,
            lengths=shape.lengths,
            specials={place: self._specials[int(rows[place])] for place in special},
            device_rows=there[0],
            output_positions=there[1],
        )

    def _fetch(self, choice: Choice, token_ids: torch.Tensor) -> tuple[_HostChoice, Mark]:
        """Let what was chosen travel to the host beside later steps."""
        device = self._device

        def fetched(tensor: torch.Tensor) -> torch.Tensor:
            host = device.host_tensor(tuple(tensor.shape), tensor.dtype)
            host.copy_(tensor, non_blocking=True)
            return host

        with device.copying("tokens"):
            ids, logprobs = choice.likely_ids, choice.likely_logprobs
            host = _HostChoice(
                token_ids=fetched(token_ids),
                likely_ids=None if ids is None else fetched(ids),
                likely_logprobs=None if logprobs is None else fetched(logprobs),
            )
            return host, device.mark()


def _logprobs(step: _LaunchedStep, is_valid: BoolArray) -> dict[int, tuple[TokenLogprobs, ...]]:
    """Return the log probabilities of the rows that asked and have numbers."""
    ids, values = step.choice.likely_ids, step.choice.likely_logprobs
    if ids is None or values is None:
        return {}
    found: dict[int, tuple[TokenLogprobs, ...]] = {}
    for index, place in enumerate(step.sampling.asking):
        if is_valid[place]:
            count = 1 + (step.sampling.specials[place].sampling.num_logprobs or 0)
            entry = TokenLogprobs(
                token_ids=ids[index, :count].tolist(), logprobs=values[index, :count].tolist()
            )
            found[int(step.sampling.rows[place])] = (entry,)
    return found

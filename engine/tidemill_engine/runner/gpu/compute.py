"""From a step's numbers to its logits on a device: eagerly, or by a captured graph for plain decoding.

Knows the model, its cache and the rows' tables. Does not choose tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tidemill_engine.models.device_llama import DeviceInputs
from tidemill_engine.runner.gpu.attention import Sequences
from tidemill_engine.runner.gpu.graphs import DecodeGraphs, DecodeRows
from tidemill_engine.runner.gpu.staging import send_together
from tidemill_engine.step import int_array
from tidemill_kernels.batch_prep.triton_kernel import prepare_batch

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidemill_engine.models.device_llama import Attend, DeviceCache, DeviceLlama
    from tidemill_engine.runner.gpu.attention import AttentionBackend
    from tidemill_engine.runner.gpu.device import Device
    from tidemill_engine.runner.gpu.rows import DeviceRows
    from tidemill_engine.step import IntArray, SchedulerOutput


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """Where a step's tokens lie in its flat batch: starts `[n + 1]`, seq_lens `[n]`; and who asks for logits.

    sampled_rows, lengths: `[m]`, the row of each logit row and its tokens before the one that is chosen.
    """

    starts: IntArray
    seq_lens: IntArray
    num_decodes: int
    sampled_rows: IntArray
    lengths: IntArray

    @staticmethod
    def of(output: SchedulerOutput) -> StepShape:
        """Lay a step out."""
        counts = output.num_scheduled_tokens
        starts = int_array(np.concatenate([[0], np.cumsum(counts)]))
        owners = np.searchsorted(starts, output.logit_rows, side="right") - 1
        is_chunk = counts != 1
        return StepShape(
            starts=starts,
            seq_lens=output.start_pos + counts,
            num_decodes=int(np.argmax(is_chunk)) if is_chunk.any() else len(counts),
            sampled_rows=output.rows[owners],
            lengths=int_array(output.start_pos[owners] + output.logit_rows - starts[owners] + 1),
        )


class StepCompute:
    """Computes one step after another."""

    def __init__(
        self,
        model: DeviceLlama,
        cache: DeviceCache,
        tables: DeviceRows,
        device: Device,
        attention: AttentionBackend,
    ) -> None:
        self._model = model
        self._cache = cache
        self._tables = tables
        self._device = device
        self._attention = attention
        self._graphs: DecodeGraphs | None = None

    def capture(self, sizes: Sequence[int]) -> None:
        """Capture decode steps of these sizes; later ones are padded to them."""
        if sizes:
            like = self._model.weights.embedding
            logits = like.new_empty((max(sizes), self._model.config.vocab_size))
            self._graphs = DecodeGraphs(self._device, sizes, self._tables.padding_row, self._decoder, logits)

    def logits(
        self, output: SchedulerOutput, shape: StepShape, riders: Sequence[npt.NDArray[np.generic]]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Compute a step: logits `[m, vocab_size]`, and the riders, sent to the device with its numbers."""
        is_plain = output.num_tokens == len(output.rows) == len(output.logit_rows)
        size = self._graphs.size_for(len(output.rows)) if self._graphs is not None and is_plain else None
        if self._graphs is None or size is None:
            return self._eager(output, shape, riders)
        step = self._graphs.arrays(output.rows, output.start_pos, size)
        changes = self._tables.arrays(output.new_rows, output.block_appends)
        (there,), changed, ridden = self._send(step, changes, riders)
        self._tables.apply(output.new_rows, changed)
        return self._graphs.run(there, size)[: len(output.rows)], ridden

    def _eager(
        self, output: SchedulerOutput, shape: StepShape, riders: Sequence[npt.NDArray[np.generic]]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Compute a step of any kind, kernel by kernel."""
        counts, tables = output.num_scheduled_tokens, self._tables
        planned = self._attention.plan(counts, shape.seq_lens, shape.num_decodes)
        step = [output.rows, output.start_pos, shape.starts, shape.seq_lens, output.logit_rows]
        changes = tables.arrays(output.new_rows, output.block_appends)
        there, changed, ridden = self._send([*step, *planned.arrays], changes, riders)
        tables.apply(output.new_rows, changed)
        rows, start_pos, starts, seq_lens, logit_rows, *tiles = there
        num_blocks = -(-int(shape.seq_lens.max()) // tables.block_size)
        sequences = Sequences(
            block_table=tables.block_table[rows.long(), :num_blocks],
            seq_lens=seq_lens,
            query_start_loc=starts,
        )
        hidden = self._forward(
            rows, start_pos, starts, (output.num_tokens, int(counts.max())), planned.bind(sequences, tiles)
        )
        return self._model.logits(hidden[logit_rows.long()]), ridden

    def _decoder(self, size: int) -> Callable[[DecodeRows], torch.Tensor]:
        """Return what computes decode steps of a size from what is on the device alone, as graphs must."""
        tables, device = self._tables, self._device.torch_device
        attend = self._attention.decode(size, tables.max_tokens, device)
        starts = torch.arange(size + 1, dtype=torch.int32, device=device)

        def decode(step: DecodeRows) -> torch.Tensor:
            table = tables.block_table[step.rows.long()]
            sequences = Sequences(block_table=table, seq_lens=step.seq_lens, query_start_loc=starts)
            hidden = self._forward(step.rows, step.start_pos, starts, (size, 1), attend(sequences))
            return self._model.logits(hidden)

        return decode

    def _forward(
        self,
        rows: torch.Tensor,
        start_pos: torch.Tensor,
        starts: torch.Tensor,
        sizes: tuple[int, int],
        attend: Attend,
    ) -> torch.Tensor:
        """Build the flat tensors and compute the last hidden states."""
        pools = (self._tables.token_pool, self._tables.block_table)
        batch = prepare_batch(rows, start_pos, starts, pools, self._tables.block_size, sizes)
        inputs = DeviceInputs(
            input_ids=batch.input_ids,
            positions=batch.positions,
            slot_mapping=batch.slot_mapping,
            attend=attend,
        )
        return self._model.forward(inputs, self._cache)

    def _send(self, *groups: Sequence[npt.NDArray[np.generic]]) -> tuple[list[torch.Tensor], ...]:
        """Send groups of arrays in one copy and return them as groups."""
        there = iter(send_together(self._device, [array for group in groups for array in group]))
        return tuple([next(there) for _ in group] for group in groups)

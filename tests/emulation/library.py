"""A stand-in for the kernels' loaded library whose functions run in an emulated program.

Each call copies what the function reads into the guest and what it writes back, by the addresses that
`NativeEngine` gives: nothing else differs from a library in this process. Knows the C interface; not kernels.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulation.guest import Guest, Memory
from tidemill_kernels.native.engine import KINDS, SECTIONS
from tidemill_kernels.native.library import Draw, ModelConfig, Step, Tensor

if TYPE_CHECKING:
    from pathlib import Path

_ROW_BYTES = {
    KINDS["float32"]: lambda inputs: 4 * inputs,
    KINDS["bf16"]: lambda inputs: 2 * inputs,
    KINDS["q4_1"]: lambda inputs: inputs // 32 * 20,
    KINDS["q8_0"]: lambda inputs: inputs // 32 * 34,
}
_NUMBER_BYTES = 4
Integers = npt.NDArray[np.int32]


class Function(IntEnum):
    """The functions that can be called, numbered as in guest.cpp."""

    NEW = 0
    SET = 1
    MEMORY = 2
    MEMORY_BYTES = 3
    BLOCK_ELEMENTS = 4
    STEP = 5
    TIMES = 6
    SET_WAY = 7
    DRAW = 8


class EmulatedEngine:
    """One engine in a program of its own."""

    def __init__(self, guest: Guest, config: ModelConfig) -> None:
        self.guest = guest
        self.config = config
        self.weights: Any = None
        with guest.memory() as memory:
            self.handle = guest.call(Function.NEW, memory.put(bytes(config)))

    def call(self, function: Function, *arguments: int) -> int:
        return self.guest.call(function, self.handle, *arguments)


class EmulatedLibrary:
    """The functions of the C interface that an engine needs, as ctypes has them."""

    def __init__(self, program: Path, cpu: str) -> None:
        self._program = program
        self._cpu = cpu
        self._engines: dict[int, EmulatedEngine] = {}
        self._handles = count(1)

    def tm_engine_new(self, config: Any) -> int | None:
        engine = EmulatedEngine(Guest(self._program, self._cpu), config._obj)
        if engine.handle == 0:
            engine.guest.close()
            return None
        handle = next(self._handles)
        self._engines[handle] = engine
        return handle

    def tm_engine_free(self, handle: int) -> None:
        self._engines.pop(handle).guest.close()

    def tm_engine_set(self, handle: int, layer: int, part: int, tensors: Any, num_tensors: int) -> int:
        engine = self._engines[handle]
        with engine.guest.memory() as memory:
            there = (Tensor * num_tensors)(*(_moved(tensor, memory) for tensor in tensors))
            return engine.call(Function.SET, layer, part, memory.put(bytes(there)), num_tensors)

    def tm_engine_memory_bytes(self, handle: int) -> int:
        return self._engines[handle].call(Function.MEMORY_BYTES)

    def tm_engine_memory(self, handle: int) -> int:
        """Return the address of a copy."""
        engine = self._engines[handle]
        size = engine.call(Function.MEMORY_BYTES)
        engine.weights = ctypes.create_string_buffer(
            engine.guest.read(engine.call(Function.MEMORY), size), size
        )
        return ctypes.addressof(engine.weights)

    def tm_engine_block_elements(self, handle: int) -> int:
        return self._engines[handle].call(Function.BLOCK_ELEMENTS)

    def tm_engine_step(self, handle: int, step: Any) -> int:
        engine = self._engines[handle]
        with engine.guest.memory() as memory:
            return EmulatedStep(engine, step._obj, memory).run()

    def tm_engine_times(self, handle: int, seconds: Any) -> None:
        engine = self._engines[handle]
        size = 8 * len(SECTIONS)
        with engine.guest.memory() as memory:
            address = memory.take(size)
            engine.call(Function.TIMES, address)
            ctypes.memmove(seconds, engine.guest.read(address, size), size)

    def tm_engine_set_way(self, handle: int, kind: int, bucket: int, way: int) -> None:
        self._engines[handle].call(Function.SET_WAY, kind, bucket, way)

    def tm_engine_draw(self, handle: int, *arguments: Any) -> None:
        logits, stride, size, num_rows, rows, draws, tokens = arguments
        engine = self._engines[handle]
        last = int(_integers(rows, num_rows).max())
        with engine.guest.memory() as memory:
            found = memory.take(num_rows * _NUMBER_BYTES)
            engine.call(
                Function.DRAW,
                memory.put(ctypes.string_at(logits, (last * stride + size) * _NUMBER_BYTES)),
                stride,
                size,
                num_rows,
                memory.put(ctypes.string_at(rows, num_rows * _NUMBER_BYTES)),
                memory.put(ctypes.string_at(draws, num_rows * ctypes.sizeof(Draw))),
                found,
            )
            ctypes.memmove(
                tokens, engine.guest.read(found, num_rows * _NUMBER_BYTES), num_rows * _NUMBER_BYTES
            )


class EmulatedStep:
    """A step with everything that it reads and writes in the guest's memory."""

    def __init__(self, engine: EmulatedEngine, step: Step, memory: Memory) -> None:
        self._engine = engine
        self._step = step
        self._memory = memory
        self._written: list[tuple[int, int, int]] = []
        """What goes back: address here, address there, bytes."""

    def run(self) -> int:
        step = self._step
        sequences = step.num_sequences
        rows = _integers(step.row_index, sequences)
        table = _integers(step.block_table, (int(rows.max()) + 1) * step.block_stride)
        there = Step(
            num_tokens=step.num_tokens,
            num_sequences=sequences,
            num_logits=step.num_logits,
            token_ids=self._read(step.token_ids, step.num_tokens),
            positions=self._read(step.positions, step.num_tokens),
            starts=self._read(step.starts, sequences + 1),
            lengths=self._read(step.lengths, sequences),
            row_index=self._read(step.row_index, sequences),
            block_table=self._read(step.block_table, len(table)),
            block_stride=step.block_stride,
            keys=self._cache(step.keys, int(table.max()) + 1),
            values=self._cache(step.values, int(table.max()) + 1),
            logit_tokens=self._read(step.logit_tokens, step.num_logits),
            logits=step.logits and self._changed(step.logits, step.num_logits * step.logit_stride * 4),
            logit_stride=step.logit_stride,
            best=self._changed(step.best, step.num_logits * 4),
            is_valid=self._changed(step.is_valid, step.num_logits),
        )
        status = self._engine.call(Function.STEP, self._memory.put(bytes(there)))
        for here, address, size in self._written:
            ctypes.memmove(here, self._engine.guest.read(address, size), size)
        return status

    def _read(self, here: int, length: int) -> int:
        return self._memory.put(ctypes.string_at(here, length * _NUMBER_BYTES))

    def _changed(self, here: int, size: int) -> int:
        address = self._memory.put(ctypes.string_at(here, size))
        self._written.append((here, address, size))
        return address

    def _cache(self, layers: int, num_blocks: int) -> int:
        num_layers = self._engine.config.num_layers
        size = num_blocks * self._engine.call(Function.BLOCK_ELEMENTS) * 2
        here = np.ctypeslib.as_array((ctypes.c_uint64 * num_layers).from_address(layers))
        there = np.array([self._changed(int(address), size) for address in here], dtype=np.uint64)
        return self._memory.put(there.tobytes())


def _integers(address: int, length: int) -> Integers:
    return np.ctypeslib.as_array((ctypes.c_int32 * length).from_address(address))


def _moved(tensor: Tensor, memory: Memory) -> Tensor:
    size = tensor.rows * _ROW_BYTES[tensor.kind](tensor.inputs)
    return Tensor(
        data=memory.put(ctypes.string_at(tensor.data, size)),
        kind=tensor.kind,
        heads=tensor.heads,
        rows=tensor.rows,
        inputs=tensor.inputs,
    )

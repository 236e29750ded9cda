"""Matrices of 8 and 4 bits as checkpoints hold them, with the numbers that they stand for.

Knows layouts and arithmetic, in numpy alone. Does not know files, names or who computes with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidemill_engine.errors import ModelLoadError

Array = npt.NDArray[np.generic]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""AWQ's word holds, from its lowest four bits on, these of eight neighbouring outputs."""
_PER_WORD = 8
_PLAIN = tuple(range(_PER_WORD))


@dataclass(frozen=True, kw_only=True)
class Int4Matrix:
    """A matrix of four bits, `(nibble - zero) * scale`, as AWQ or GPTQ checkpoints hold it.

    layout `awq`: words `[inputs, outputs / 8]` int32 in AWQ_ORDER, zeros `[groups, outputs / 8]` likewise.
    layout `gptq`: words `[inputs / 8, outputs]` int32, lowest bits first; zeros `[groups, outputs / 8]`,
    lowest bits first, each stored less one. scales: `[groups, outputs]` float16 or float32. order:
    `[inputs]`, the input that each place stands for, where they are sorted by groups (act order); None: its
    own.
    """

    words: npt.NDArray[np.int32]
    zeros: npt.NDArray[np.int32]
    scales: npt.NDArray[np.float16] | npt.NDArray[np.float32]
    group_size: int
    layout: Literal["awq", "gptq"]
    order: npt.NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Return outputs and inputs."""
        rows, columns = self.words.shape
        return (columns * _PER_WORD, rows) if self.layout == "awq" else (columns, rows * _PER_WORD)

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what two matrices must share to be joined."""
        order = None if self.order is None else self.order.tobytes()
        return self.layout, self.group_size, self.shape[1], order

    def sorted_by(self, group_of_input: npt.NDArray[np.int32]) -> Int4Matrix:
        """Return the same matrix with its inputs sorted by their groups; layout `gptq` only."""
        order = np.argsort(group_of_input, kind="stable")
        nibbles = _unpacked(np.ascontiguousarray(self.words.T), _PLAIN)[:, order]
        return replace(self, words=np.ascontiguousarray(_packed(nibbles).T), order=order)

    def part(self, outputs: slice, inputs: slice) -> Int4Matrix:
        """Return some outputs and inputs; where a group is cut, groups become smaller."""
        first, last, _ = outputs.indices(self.shape[0])
        begin, end, _ = inputs.indices(self.shape[1])
        if self.order is not None and (begin, end) != (0, self.shape[1]):
            raise ModelLoadError(
                "a matrix whose inputs are in another order than its groups (desc_act) can't be divided "
                "among ranks; take --tensor-parallel-size 1, or a checkpoint made with desc_act false",
                reason="InvalidConfig",
            )
        if any(place % _PER_WORD for place in (first, last, begin, end)):
            raise ModelLoadError(
                f"a matrix of four bits can't be cut at outputs {first}-{last} and inputs {begin}-{end}: "
                f"{_PER_WORD} numbers are one word",
                reason="InvalidConfig",
            )
        groups, group_size = _regrouped(self.group_size, begin, end, self.shape[1])
        eighths, outs = slice(first // _PER_WORD, last // _PER_WORD), slice(first, last)
        if self.layout == "awq":
            words = self.words[begin:end, eighths]
        else:
            words = self.words[begin // _PER_WORD : end // _PER_WORD, outs]
        return replace(
            self,
            words=words,
            zeros=self.zeros[groups, eighths],
            scales=self.scales[groups, outs],
            group_size=group_size,
        )

    def beside(self, others: Sequence[Int4Matrix]) -> Int4Matrix:
        """Return a matrix with the outputs of others of its kind behind its own."""
        every = (self, *others)
        return replace(
            self,
            words=np.concatenate([part.words for part in every], axis=1),
            zeros=np.concatenate([part.zeros for part in every], axis=1),
            scales=np.concatenate([part.scales for part in every], axis=1),
        )

    def values(self) -> npt.NDArray[np.float32]:
        """Return the numbers that it stands for: `[outputs, inputs]`."""
        if self.layout == "awq":
            nibbles, zeros = _unpacked(self.words, AWQ_ORDER), _unpacked(self.zeros, AWQ_ORDER)
        else:
            nibbles = _unpacked(np.ascontiguousarray(self.words.T), _PLAIN).T
            zeros = _unpacked(self.zeros, _PLAIN) + 1
        groups = np.arange(self.shape[1]) // self.group_size
        numbers = (nibbles - zeros[groups]).astype(np.float32) * self.scales.astype(np.float32)[groups]
        if self.order is not None:
            numbers[self.order] = numbers.copy()
        return np.ascontiguousarray(numbers.T)


@dataclass(frozen=True, kw_only=True)
class ScaledMatrix:
    """A matrix of 8 bits, `number * scale`.

    numbers: `[outputs, inputs]`, int8, or uint8 that holds the bits of float8 (e4m3). scales: `[groups,
    outputs]` float32, the scale of so many inputs: `group_size`.
    """

    numbers: npt.NDArray[np.int8] | npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    group_size: int

    @property
    def is_float(self) -> bool:
        """Say whether the numbers are float8."""
        return self.numbers.dtype == np.uint8

    @property
    def shape(self) -> tuple[int, int]:
        """Return outputs and inputs."""
        outputs, inputs = self.numbers.shape
        return outputs, inputs

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what two matrices must share to be joined."""
        return self.is_float, self.group_size, self.shape[1]

    def part(self, outputs: slice, inputs: slice) -> ScaledMatrix:
        """Return some outputs and inputs; where a group is cut, groups become smaller."""
        begin, end, _ = inputs.indices(self.shape[1])
        if len(self.scales) == 1:
            groups, group_size = np.zeros(1, dtype=np.int64), end - begin
        else:
            groups, group_size = _regrouped(self.group_size, begin, end, self.shape[1])
        return replace(
            self,
            numbers=self.numbers[outputs, inputs],
            scales=self.scales[:, outputs][groups],
            group_size=group_size,
        )

    def beside(self, others: Sequence[ScaledMatrix]) -> ScaledMatrix:
        """Return a matrix with the outputs of others of its kind behind its own."""
        every = (self, *others)
        return replace(
            self,
            numbers=np.concatenate([part.numbers for part in every]),
            scales=np.concatenate([part.scales for part in every], axis=1),
        )

    def values(self) -> npt.NDArray[np.float32]:
        """Return the numbers that it stands for: `[outputs, inputs]`."""
        numbers = float8_values(self.numbers) if self.is_float else self.numbers.astype(np.float32)
        groups = np.arange(self.shape[1]) // self.group_size
        return numbers * self.scales[groups].T


QuantizedMatrix = Int4Matrix | ScaledMatrix


def joined(parts: Sequence[QuantizedMatrix]) -> QuantizedMatrix | None:
    """Return matrices of one input as one, outputs one after another; None where their kinds differ."""
    if len({(type(part), part.kind) for part in parts}) != 1:
        return None
    first, *rest = parts
    if isinstance(first, Int4Matrix):
        return first.beside([part for part in rest if isinstance(part, Int4Matrix)])
    return first.beside([part for part in rest if isinstance(part, ScaledMatrix)])


def float8_values(bits: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Return what bytes of float8 e4m3 (arXiv 2209.05433, without infinities) stand for."""
    found: npt.NDArray[np.float32] = _FLOAT8[bits.view(np.uint8)]
    return found


def _float8_table() -> npt.NDArray[np.float32]:
    """Compute the 256 numbers."""
    bits = np.arange(256)
    exponents, fractions = bits >> 3 & 15, (bits & 7) / 8
    sizes = np.where(exponents == 0, fractions * 2.0**-6, (1 + fractions) * 2.0 ** (exponents - 7))
    sizes[bits & 127 == 127] = np.nan
    return np.where(bits >= 128, -sizes, sizes).astype(np.float32)


_FLOAT8 = _float8_table()


def _regrouped(group_size: int, begin: int, end: int, inputs: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the groups of some inputs, cut small enough to begin and end with them, and their size.

    The last of all inputs need not fill their group.
    """
    size = math.gcd(group_size, begin, 0 if end == inputs else end)
    return np.arange(begin, end, size) // group_size, size


def _unpacked(words: npt.NDArray[np.int32], order: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Unpack `[rows, n]` words into `[rows, 8 n]` numbers; order: the column of each four bits of a word."""
    nibbles = (words[..., None] >> (4 * np.arange(_PER_WORD, dtype=np.int32))) & 15
    unpacked = np.empty_like(nibbles)
    unpacked[..., list(order)] = nibbles
    return unpacked.reshape(words.shape[0], -1)


def _packed(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Pack `[rows, 8 n]` numbers into `[rows, n]` words, lowest bits first."""
    eights = numbers.reshape(numbers.shape[0], -1, _PER_WORD).view(np.uint32)
    words = np.bitwise_or.reduce(eights << (4 * np.arange(_PER_WORD, dtype=np.uint32)), axis=-1)
    packed: npt.NDArray[np.int32] = words.view(np.int32)
    return packed

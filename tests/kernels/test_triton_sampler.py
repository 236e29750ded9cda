"""The device's sampler in Triton's interpreter, against its reference."""

from __future__ import annotations

import pytest
import torch

from kernel_device import FLOATS, seeded
from tidemill_kernels.sampler import Drawing
from tidemill_kernels.sampler.reference import allowed_reference, sample_reference
from tidemill_kernels.sampler.triton_kernel import sample

VOCABULARY = 4999


def make_drawing(num_rows: int, **fields: float) -> Drawing:
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **fields}
    return Drawing(
        temperature=torch.full((num_rows,), float(values["temperature"])),
        top_k=torch.full((num_rows,), int(values["top_k"]), dtype=torch.int32),
        top_p=torch.full((num_rows,), float(values["top_p"])),
        min_p=torch.full((num_rows,), float(values["min_p"])),
        seed=torch.arange(num_rows, dtype=torch.int64) + 7,
        position=torch.arange(num_rows, dtype=torch.int32),
    )


def make_logits(num_rows: int, *, spread: float = 3.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = seeded(num_rows)
    return (torch.randn(num_rows, VOCABULARY, generator=generator) * spread).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"top_k": 1},
        {"top_k": 17},
        {"top_k": VOCABULARY + 5},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 40, "top_p": 0.8, "min_p": 0.01, "temperature": 0.8},
    ],
)
def test_draws_what_the_reference_draws(fields: dict[str, float], dtype: torch.dtype) -> None:
    logits, drawing = make_logits(2, dtype=dtype), make_drawing(2, **fields)
    tokens, logprobs, uniforms = sample(logits, drawing)
    wanted, wanted_logprobs = sample_reference(logits, drawing, uniforms)
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(logprobs, wanted_logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fields", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.3}])
def test_never_draws_what_is_cut(fields: dict[str, float]) -> None:
    row = make_logits(1, spread=1.0)[:, :300]
    logits, drawing = row.expand(12, -1).contiguous(), make_drawing(12, **fields)
    tokens, _, _ = sample(logits, drawing)
    allowed = allowed_reference(logits, drawing, 0)
    assert allowed[tokens].all()
    assert len(set(tokens.tolist())) > 1


def test_a_row_depends_on_its_seed_and_position_and_on_nothing_else() -> None:
    logits = make_logits(3)[:1].expand(3, -1).contiguous()
    drawing = make_drawing(3)
    drawing.seed.copy_(torch.tensor([5, 5, 5]))
    drawing.position.copy_(torch.tensor([9, 9, 10]))
    tokens, _, uniforms = sample(logits, drawing)
    alone, _, _ = sample(logits[:1], make_alone(drawing))
    assert tokens[0] == tokens[1] == alone[0]
    assert uniforms[0] != uniforms[2]


def make_alone(drawing: Drawing) -> Drawing:
    return Drawing(**{name: getattr(drawing, name)[:1] for name in Drawing.__dataclass_fields__})


def test_marks_rows_whose_logits_are_not_numbers() -> None:
    logits = make_logits(3)
    logits[1, 5] = float("inf")
    logits[2] = float("nan")
    tokens, _, _ = sample(logits, make_drawing(3))
    assert tokens[0] >= 0
    assert tokens[1:].tolist() == [-1, -1]


def test_keeps_all_that_tie_with_the_last_one_kept() -> None:
    logits = torch.zeros(16, 64)
    logits[:, 0] = 1.0
    tokens, _, _ = sample(logits, make_drawing(16, top_k=2))
    assert len(set(tokens.tolist())) > 2


def test_no_rows_give_no_tokens() -> None:
    tokens, logprobs, _ = sample(make_logits(1)[:0], make_drawing(0))
    assert tokens.shape == logprobs.shape == (0,)

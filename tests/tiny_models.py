"""Tiny random models of the Llama family, written as transformers writes them, and prompts for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCAB = 97
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "pad_token_id": None,
    "initializer_range": 0.3,
}


def save_model(directory: Path, family: str, **changes: object) -> Any:
    """Write a tiny random model as transformers does, and return it."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", ".bias")):
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(directory)
    return model


def prompts_of(*lengths: int) -> list[list[int]]:
    """Return random prompts of these lengths."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(2, VOCAB, (length,), generator=generator).tolist() for length in lengths]

"""Finds the tokenizer that belongs to a model URI."""

from __future__ import annotations

from tidemill_engine.model_uri import ModelUri, SimModel, find_model_path
from tidemill_engine.tokenizer.base import ModelTokenizer
from tidemill_engine.tokenizer.sources import tokenizer_for_sim, tokenizer_from_directory, tokenizer_from_gguf


def load_tokenizer(model: ModelUri) -> ModelTokenizer:
    """Load the tokenizer of a model; what is missing or unknown raises `ModelLoadError`."""
    if isinstance(model, SimModel):
        return tokenizer_for_sim()
    path = find_model_path(model)
    return tokenizer_from_directory(path) if path.is_dir() else tokenizer_from_gguf(path)

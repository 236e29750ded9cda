"""Text to token ids and back for every kind of model, without torch or transformers."""

from tidemill_engine.tokenizer.base import ModelTokenizer
from tidemill_engine.tokenizer.load import load_tokenizer

__all__ = ["ModelTokenizer", "load_tokenizer"]

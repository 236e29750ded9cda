"""What an OpenAI request body means: bytes in, frozen values out, or an error with field, value and range.

Pure: knows no tokenizer, no network, no clock. What would change the output if it were ignored is refused,
not ignored; unknown fields that ask for nothing we know are ignored.
"""

from tidemill_engine.api.protocol.chat import ChatMessage, ChatRequest, parse_chat
from tidemill_engine.api.protocol.completion import CompletionRequest, Prompt, parse_completion
from tidemill_engine.api.protocol.fields import decode_body
from tidemill_engine.api.protocol.options import (
    GenerationOptions,
    ModelLimits,
    SamplingDefaults,
    fit_to_context,
)

__all__ = [
    "ChatMessage",
    "ChatRequest",
    "CompletionRequest",
    "GenerationOptions",
    "ModelLimits",
    "Prompt",
    "SamplingDefaults",
    "decode_body",
    "fit_to_context",
    "parse_chat",
    "parse_completion",
]

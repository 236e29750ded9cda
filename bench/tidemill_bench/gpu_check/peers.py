"""What else is installed on such a machine: transformers' continuous batching, with like shapes and load."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from tidemill_bench.gpu_check.engine_run import Workload
from tidemill_bench.gpu_check.place import Place
from tidemill_engine.models.config import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class PeerServed:
    """One workload served by transformers, or why it was not."""

    workload: Workload
    output_tokens_per_second: float | None
    error: str = ""


def serve_by_transformers(place: Place, config: LlamaConfig, workloads: list[Workload]) -> list[PeerServed]:
    """Serve each workload; what a peer can't do here is said, and stops nothing."""
    import transformers  # noqa: PLC0415 - slow to import, and only wanted here

    shapes = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_model_len,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    )
    with torch.device(place.torch_device):
        model = transformers.AutoModelForCausalLM.from_config(shapes, dtype=place.dtype).eval()
    return [_serve(model, config, workload) for workload in workloads]


def _serve(model: object, config: LlamaConfig, workload: Workload) -> PeerServed:
    import transformers  # noqa: PLC0415

    generator = np.random.default_rng(0)
    prompts = generator.integers(
        0, config.vocab_size, (workload.num_requests, workload.prompt_tokens)
    ).tolist()
    wanted = transformers.GenerationConfig(
        max_new_tokens=workload.output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    serve = partial(model.generate_batch, generation_config=wanted, persistent_manager=True)  # type: ignore[attr-defined]
    try:
        serve(inputs=prompts[:2])  # compiles, captures, and warms up
        began = time.monotonic()
        answers = serve(inputs=prompts, warmup=False)
        seconds = time.monotonic() - began
        num_tokens = sum(len(answer.generated_tokens) for answer in answers.values())
    except Exception as error:
        return PeerServed(
            workload=workload, output_tokens_per_second=None, error=f"{type(error).__name__}: {error}"[:300]
        )
    if num_tokens != workload.num_requests * workload.output_tokens:
        return PeerServed(
            workload=workload, output_tokens_per_second=None, error=f"{num_tokens} tokens came back"
        )
    return PeerServed(workload=workload, output_tokens_per_second=num_tokens / seconds)

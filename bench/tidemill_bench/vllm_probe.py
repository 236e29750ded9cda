"""Times vLLM's own scheduler; run by another Python, in which vLLM is installed. Prints one JSON line.

Stands alone: imports nothing of ours. The work is that of `scheduler_cost`: every request decodes, prompts
end at different places of their blocks ("median") or at the same ("p99"), in CPU time on one core.
usage: vllm_probe.py NUM_STEPS BLOCK_SIZE SIZE...
"""

# mypy: ignore-errors
# ruff: noqa: PLC0415 - imported only where it is there
from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

PROMPT_TOKENS = 64
WARM_UP_STEPS = 32
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 2,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def main() -> None:
    """Measure every size and print the figures."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # a scheduler needs no device, but vLLM wants one
    try:
        import vllm
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    num_steps, block_size, *sizes = (int(text) for text in sys.argv[1:])
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    figures = {}
    for size in sizes:
        mixed = measure(size, num_steps, block_size, is_aligned=False)
        aligned = measure(size, num_steps, block_size, is_aligned=True)
        figures[str(size)] = {
            "median": round(statistics.median(mixed), 4),
            "p99": round(sorted(aligned)[int(0.99 * (len(aligned) - 1))], 4),
        }
    print(json.dumps({"version": vllm.__version__, "schedule_update_ms": figures}))


def measure(num_running: int, num_steps: int, block_size: int, *, is_aligned: bool) -> list[float]:
    """Return the milliseconds of schedule + update of each step."""
    from vllm.v1.outputs import ModelRunnerOutput

    num_tokens = PROMPT_TOKENS + block_size + num_steps + WARM_UP_STEPS + 8
    scheduler = make_scheduler(num_running, num_tokens, block_size)
    for index in range(num_running):
        shift = 0 if is_aligned else index % block_size
        scheduler.add_request(make_request(index, PROMPT_TOKENS + shift, num_tokens, block_size))
    spent: list[float] = []
    num_decoding = 0
    while len(spent) < num_steps:
        began = time.thread_time_ns()
        output = scheduler.schedule()
        chosen = time.thread_time_ns()
        ids = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=[[7]] * len(ids),
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        handed = time.thread_time_ns()
        scheduler.update_from_output(output, result)
        ended = time.thread_time_ns()
        num_decoding += output.total_num_scheduled_tokens == num_running
        if num_decoding > WARM_UP_STEPS:
            spent.append((chosen - began + ended - handed) / 1e6)
    return spent


def make_scheduler(num_running: int, num_tokens: int, block_size: int):
    """Build vLLM's scheduler for a small model, with room for everyone."""
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16", seed=0)
    limits = SchedulerConfig(
        max_num_seqs=num_running,
        max_num_batched_tokens=num_running * (PROMPT_TOKENS + block_size),
        max_model_len=num_tokens + 1,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=block_size, gpu_memory_utilization=0.9, cache_dtype="auto")
    num_blocks = num_running * -(-num_tokens // block_size) + num_running
    cache.num_gpu_blocks = num_blocks
    config = VllmConfig(scheduler_config=limits, model_config=model, cache_config=cache)
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_config = KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=kv_config,
        block_size=block_size,
        log_stats=False,
        structured_output_manager=StructuredOutputManager(config),
    )


def make_request(index: int, num_prompt: int, num_tokens: int, block_size: int):
    """Make a request with a prompt of its own."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    return Request(
        request_id=str(index),
        prompt_token_ids=[300 + (index * 7 + place) % 40000 for place in range(num_prompt)],
        sampling_params=SamplingParams(ignore_eos=True, max_tokens=num_tokens - num_prompt),
        pooling_params=None,
        block_hasher=get_request_block_hasher(block_size, sha256),
    )


if __name__ == "__main__":
    main()

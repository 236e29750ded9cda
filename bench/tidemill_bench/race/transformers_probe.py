"""Generates by transformers, statically or with continuous batching; run by a Python of its own.

Stands alone: imports nothing of ours. A line of JSON in for each run, a line of JSON out.
usage: transformers_probe.py MODEL_FOLDER static|continuous NUM_THREADS
in:  {"prompts": [[token ids]], "outputs": [number of tokens], "concurrency": number}
out: {"seconds": ..., "ttft": [seconds], "gaps": [seconds]}   (empty lists where transformers does not say)
"""

# mypy: ignore-errors
from __future__ import annotations

import itertools
import json
import os
import sys
import time

STATIC_BATCH = 32


def main() -> None:
    """Load the model, say so, then run what comes."""
    answers = os.fdopen(os.dup(1), "w")  # libraries print to where answers go
    os.dup2(2, 1)
    import torch  # noqa: PLC0415 - after the output has been secured
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    folder, mode, num_threads = sys.argv[1:]
    torch.set_num_threads(int(num_threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    run = {"static": run_static, "continuous": run_continuous}[mode]
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        with torch.inference_mode():
            told = run(model, asked["prompts"], asked["outputs"], asked["concurrency"])
        print(json.dumps(told), file=answers, flush=True)


def run_static(model, prompts, outputs, concurrency):
    """Generate in padded batches, each to its longest output."""
    import torch  # noqa: PLC0415

    size = min(concurrency, STATIC_BATCH)
    started = time.perf_counter()
    for first in range(0, len(prompts), size):
        batch = prompts[first : first + size]
        longest = max(map(len, batch))
        num_outputs = max(outputs[first : first + size])
        generated = model.generate(
            input_ids=torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in batch]),
            attention_mask=torch.tensor(
                [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch]
            ),
            max_new_tokens=num_outputs,
            min_new_tokens=num_outputs,
            do_sample=False,
            pad_token_id=0,
        )
        if generated.shape[1] != longest + num_outputs:
            raise RuntimeError("transformers returned other lengths than were asked for")
    return {"seconds": time.perf_counter() - started, "ttft": [], "gaps": []}


def run_continuous(model, prompts, outputs, concurrency):
    """Generate with as many requests in flight as the concurrency says."""
    from transformers import ContinuousBatchingConfig, GenerationConfig  # noqa: PLC0415

    blocks = int(os.environ.get("TRANSFORMERS_NUM_BLOCKS", "512"))
    config = ContinuousBatchingConfig(
        num_blocks=blocks, max_batch_tokens=512, max_requests_per_batch=concurrency, use_cuda_graph=False
    )
    generation = GenerationConfig(
        do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=max(outputs)
    )
    with model.continuous_batching_context_manager(generation, continuous_batching_config=config) as manager:
        started = time.perf_counter()
        waiting = list(enumerate(zip(prompts, outputs, strict=True)))[::-1]
        sent, finished = {}, {}
        while len(finished) < len(prompts):
            while waiting and len(sent) - len(finished) < concurrency:
                index, (prompt, num_outputs) = waiting.pop()
                sent[f"r{index}"] = time.perf_counter()
                manager.add_request(
                    prompt, f"r{index}", max_new_tokens=num_outputs, record_timestamps=True, eos_token_id=-1
                )
            result = manager.get_result(timeout=1)
            if result is None:
                if not manager.is_running():
                    raise RuntimeError("transformers' generation thread has ended")
            elif result.is_finished():
                if result.error:
                    raise RuntimeError(result.error)
                finished[result.request_id] = result
        seconds = time.perf_counter() - started
    wrong = [k for k, r in finished.items() if len(r.generated_tokens) != outputs[int(k[1:])]]
    if wrong:
        raise RuntimeError(f"{len(wrong)} outputs have another length than was asked for")
    return {"seconds": seconds} | _times(sent, finished)


def _times(sent, finished):
    """Return when first tokens came, and the gaps between tokens."""
    ttft, gaps = [], []
    for request_id, result in finished.items():
        stamps = result.timestamps or []
        if stamps:
            ttft.append(stamps[0] - sent[request_id])
            gaps += [later - sooner for sooner, later in itertools.pairwise(stamps)]
    return {"ttft": ttft, "gaps": gaps}


if __name__ == "__main__":
    main()

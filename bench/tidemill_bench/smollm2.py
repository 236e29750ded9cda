"""What the benchmarks know of SmolLM2-135M, the model that most of them run or imitate.

`vllm_probe.py` says it once more: it runs in a Python without us.
"""

from __future__ import annotations

VOCAB_SIZE = 49_152

"""One rank of a model on interpreted kernels: `python device_rank.py DIRECTORY RANK SIZE PORT`.

Prints the tokens of every prompt as JSON. All ranks schedule alike here, since no rank 0 tells the others.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from device_runners import load_on_host
from engine_builders import Harness, make_request, make_scheduler
from tidemill_engine.models.sharding import Shard
from tidemill_engine.parallel.group import join_group
from tidemill_engine.parallel.membership import Membership
from tiny_models import prompts_of

LENGTHS = (3, 9)


def main() -> None:
    """Serve the prompts with this rank's part of the model."""
    directory, rank, size, port = sys.argv[1], *(int(text) for text in sys.argv[2:])
    torch.set_num_threads(1)
    membership = Membership(shard=Shard(rank=rank, size=size), port=port) if size > 1 else None
    group = join_group(membership, torch.device("cpu"))
    runner = load_on_host(Path(directory), group=group)
    harness = Harness(scheduler=make_scheduler(runner.info), runner=runner, depth=2)
    for index, prompt in enumerate(prompts_of(*LENGTHS)):
        harness.add(make_request(str(index), prompt=prompt, max_tokens=4, temperature=0.0))
    harness.run()
    print(json.dumps([harness.tokens(str(index)) for index in range(len(LENGTHS))]), flush=True)
    # Threads of gloo may outlive the interpreter, which aborts it; the ranks of an engine end so, too.
    os._exit(0)


if __name__ == "__main__":
    main()

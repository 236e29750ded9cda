"""A model from a hub, as it is published, answers: downloaded, linked, loaded, computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from aiohttp.test_utils import TestServer

from engine_builders import Harness, make_request, make_scheduler
from model_servers import HubStandIn
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.download.guard import AddressPolicy
from tidemill_engine.download.http import HttpClient
from tidemill_engine.download.hub import HubService
from tidemill_engine.download.progress import Progress
from tidemill_engine.download.run import Job, download
from tidemill_engine.download.source import HubSource
from tidemill_engine.runner.load import load_runner


def publish_model(folder: Path) -> dict[str, bytes]:
    """Write a tiny random Llama in two shards as transformers does, and return its files."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, eos_token_id=1, bos_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="20KB")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tokens_of(path: Path) -> list[int]:
    config = CoreConfig(
        model=ModelConfig(uri=f"file://{path}", dtype="float32"),
        cache=CacheConfig(num_blocks=64, block_size=4),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=16),
    )
    runner = load_runner(config, lambda _read, _total: None)
    harness = Harness(
        scheduler=make_scheduler(runner.info, max_num_seqs=8, max_num_batched_tokens=16), runner=runner
    )
    harness.add(make_request("0", prompt=[5, 7, 11], max_tokens=6))
    harness.run()
    return harness.tokens("0")


@pytest.mark.slow
async def test_a_sharded_model_from_the_hub_computes_what_the_original_does(tmp_path: Path) -> None:
    original = tmp_path / "original"
    files = publish_model(original)
    assert len([name for name in files if name.endswith(".safetensors")]) > 1
    link = tmp_path / "link" / "current"
    async with TestServer(HubStandIn(files).app()) as server:
        client = HttpClient(AddressPolicy(endpoint=server.make_url("")))
        source = HubSource(repository="org/model", revision="main")
        service = HubService(client, source, None, server.make_url(""))
        job = Job(source=source, service=service, client=client, directory=tmp_path / "models", link=link)
        await download(job, Progress())
        await client.close()
    assert tokens_of(link) == tokens_of(original)

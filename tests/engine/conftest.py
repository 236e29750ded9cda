from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestServer

from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.model_uri import BUILTIN_MODELS, find_model_path
from tidemill_engine.runner.base import ModelRunner
from tidemill_engine.runner.load import load_runner

if TYPE_CHECKING:
    from yarl import URL

    from download_runs import Serve
    from model_servers import StandIn

PROMPT_LENGTHS = (
    1, 2, 3, 5, 8, 13, 16, 21, 31, 32, 33, 34, 47, 63, 64, 65, 89, 100, 128, 144, 200, 600,
)  # fmt: skip


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of the builtin model."""
    return find_model_path(BUILTIN_MODELS["smollm2-135m"])


@pytest.fixture(scope="session")
def transformers_smollm2(smollm2_path: Path) -> Any:
    """The builtin model as transformers loads it, in float32: the oracle."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="session")
def smollm2_runner() -> ModelRunner:
    """Our own runner of the builtin model in float32, loaded once; what its cache holds is nobody's business.

    400 blocks of 16 tokens and room in the CPU pool; a test that wants fewer blocks tells its scheduler so.
    """
    config = CoreConfig(
        model=ModelConfig(uri="builtin://smollm2-135m", dtype="float32", max_model_len=1024),
        cache=CacheConfig(num_blocks=400, block_size=16, swap_bytes=64 * 2**20),
        scheduler=SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=64),
    )
    return load_runner(config, lambda _read, _total: None)


@pytest.fixture(scope="session")
def english_token_ids(smollm2_path: Path, pytestconfig: pytest.Config) -> list[int]:
    """Real English as tokens of the builtin model: the licence of this repository."""
    from tidemill_engine.tokenizer.sources import tokenizer_from_gguf

    text = (pytestconfig.rootpath / "LICENSE").read_text()
    return list(tokenizer_from_gguf(smollm2_path).encode(" ".join(text.split())))


@pytest.fixture(scope="session")
def english_prompts(english_token_ids: list[int]) -> list[list[int]]:
    """Prompts from 1 to 600 tokens, around block boundaries too, each from another place of the text."""
    return [english_token_ids[37 * i : 37 * i + length] for i, length in enumerate(PROMPT_LENGTHS)]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Offer to start stand-ins of services that models come from."""
    servers: list[TestServer] = []

    async def start(stand_in: StandIn) -> URL:
        server = TestServer(stand_in.app())
        await server.start_server()
        servers.append(server)
        return server.make_url("")

    yield start
    for server in servers:
        await server.close()

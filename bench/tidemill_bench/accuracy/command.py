"""`tidemill-bench accuracy`: the same text through every format of a model, token by token forced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tidemill_bench.arguments import UsageError
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.errors import InvalidConfig, ModelLoadError
from tidemill_engine.model_uri import BuiltinModel, FileModel, find_model_path, parse_model_uri
from tidemill_engine.models.weights import open_weights
from tidemill_engine.runner.native_cpu import NativeCache, find_kernels, load_engine
from tidemill_engine.tokenizer.load import load_tokenizer
from tidemill_kernels.native.engine import StepArrays

from .measures import Accuracy, compare

if TYPE_CHECKING:
    import argparse

    from .measures import Logits

TEXT = Path(__file__).parent.parent / "data" / "two_cities.txt"
FORMATS = ("bfloat16", "int8", "int4")
_BLOCK_SIZE = 32
_LEAST_TOKENS = 2


def run(args: argparse.Namespace) -> dict[str, object]:
    """Measure each format and print the table."""
    tokens = _tokens(args.model, args.text)
    reference = _torch_logits(args.model, tokens) if args.float32 else _logits(args.model, "bfloat16", tokens)
    name = "float32" if args.float32 else "bfloat16"
    found: list[Accuracy] = [compare(name, reference, reference, tokens)]
    found += [
        compare(format_, _logits(args.model, format_, tokens), reference, tokens)
        for format_ in FORMATS
        if format_ != name
    ]
    print(f"{len(tokens)} tokens; agreement and difference are those with {name}")
    print(f"{'format':>10} {'perplexity':>11} {'agreement':>10} {'|logit diff|':>13}")
    for each in found:
        share = f"{each.greedy_agreement:.1%}"
        print(f"{each.name:>10} {each.perplexity:11.3f} {share:>10} {each.mean_logit_difference:13.3f}")
    return {
        "num_tokens": len(tokens),
        "reference": name,
        "accuracy": {each.name: each.as_json() for each in found},
    }


def _tokens(uri: str, text: Path) -> list[int]:
    """Return the text's tokens, at least two: the first one is given, and others are foretold."""
    model = _real_model(uri)
    try:
        words = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as bad:
        raise UsageError(f"--text: {text} can't be read: {bad}") from bad
    tokens = list(load_tokenizer(model).encode(words))
    if len(tokens) < _LEAST_TOKENS:
        raise UsageError(f"--text: {text} has {len(tokens)} tokens, of which none can be foretold")
    return tokens


def _real_model(uri: str) -> BuiltinModel | FileModel:
    """Return the parsed URI of a model that has weights, which are there."""
    try:
        model = parse_model_uri(uri)
        if isinstance(model, BuiltinModel | FileModel):
            find_model_path(model)
            return model
    except (InvalidConfig, ModelLoadError) as bad:
        raise UsageError(f"--model: {bad.message}") from bad
    raise UsageError(f"--model: {uri} has no accuracy, which is that of models on this machine's disk")


def _config(uri: str, format_: str) -> CoreConfig:
    config = CoreConfig(
        model=ModelConfig(uri=uri), cache=CacheConfig(block_size=_BLOCK_SIZE), scheduler=SchedulerConfig()
    )
    if format_ == "bfloat16":
        return config
    return replace(config, model=replace(config.model, quantization=format_))  # type: ignore[arg-type]


def _logits(uri: str, format_: str, tokens: list[int]) -> Logits:
    """Return the C++ engine's logits after each token, all computed as one prompt."""
    config = _config(uri, format_)
    library = find_kernels(config)
    if library is None:
        raise UsageError("accuracy is measured with the C++ kernels, which can't be had here")
    source = open_weights(find_model_path(_real_model(uri)))
    engine = load_engine(source, config, library, len(tokens), lambda _read, _total: None)
    count, num_blocks = len(tokens), -(-len(tokens) // _BLOCK_SIZE)
    cache = NativeCache(engine.shape.num_layers, num_blocks, engine.block_elements)
    arrays = StepArrays(
        token_ids=np.array(tokens, dtype=np.int32),
        positions=np.arange(count, dtype=np.int32),
        starts=np.array([0, count], dtype=np.int32),
        lengths=np.array([count], dtype=np.int32),
        row_index=np.zeros(1, dtype=np.int32),
        block_table=np.arange(num_blocks, dtype=np.int32).reshape(1, -1),
        logit_tokens=np.arange(count, dtype=np.int32),
    )
    _, _, logits = engine.step(arrays, cache.key_addresses, cache.value_addresses, wants_logits=True)
    if logits is None:
        raise RuntimeError("no logits came back")
    copied: Logits = logits.copy()
    return copied


def _torch_logits(uri: str, tokens: list[int]) -> Logits:
    """Return torch's logits in float32."""
    import torch  # noqa: PLC0415 - seconds, and only with --float32

    from tidemill_engine.models.llama import KVCache, LlamaModel, ModelInputs  # noqa: PLC0415
    from tidemill_kernels.paged_attention import make_plan  # noqa: PLC0415

    model = LlamaModel.load(open_weights(find_model_path(_real_model(uri))), torch.float32, len(tokens))
    count, num_blocks = len(tokens), -(-len(tokens) // _BLOCK_SIZE)
    inputs = ModelInputs(
        input_ids=torch.tensor(tokens),
        positions=torch.arange(count),
        slot_mapping=torch.arange(count),
        attention=make_plan(np.arange(num_blocks)[None], [count], [0, count], _BLOCK_SIZE),
    )
    cache = KVCache.allocate(model.config, num_blocks, _BLOCK_SIZE, torch.float32)
    with torch.inference_mode():
        logits: Logits = model.logits(model.forward(inputs, cache)).numpy()
    return logits

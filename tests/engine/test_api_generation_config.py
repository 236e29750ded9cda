"""Where a request says nothing, the model's makers decide; where it does, the request."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidemill_engine.api.generation_config import sampling_defaults
from tidemill_engine.api.protocol import ModelLimits, SamplingDefaults, parse_completion
from tidemill_engine.api.protocol.fields import Fields
from tidemill_engine.model_uri import FileModel, parse_model_uri


def of_directory(folder: Path, content: Any) -> SamplingDefaults:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "generation_config.json").write_text(text)
    return sampling_defaults(FileModel(path=folder))


def test_the_built_in_model_brings_what_its_card_recommends() -> None:
    assert sampling_defaults(parse_model_uri("builtin://smollm2-135m")) == SamplingDefaults(
        temperature=0.2, top_p=0.9
    )


def test_a_model_without_recommendation_is_sampled_as_openai_does(tmp_path: Path) -> None:
    for model in (parse_model_uri("sim://x"), FileModel(path=tmp_path), FileModel(path=tmp_path / "m.gguf")):
        assert sampling_defaults(model) == SamplingDefaults()


def test_reads_the_files_values_and_leaves_out_what_can_not_be_used(tmp_path: Path) -> None:
    found = of_directory(
        tmp_path,
        {"temperature": 0.6, "top_p": 1.5, "top_k": 20, "repetition_penalty": "high", "max_new_tokens": 9},
    )
    assert found == SamplingDefaults(temperature=0.6, top_k=20)


@pytest.mark.parametrize("content", ["{", "[1]", "null"])
def test_a_broken_file_never_stops_a_start(tmp_path: Path, content: str) -> None:
    assert of_directory(tmp_path, content) == SamplingDefaults()


def test_a_request_overrides_the_model() -> None:
    limits = ModelLimits(
        max_model_len=64,
        vocab_size=100,
        defaults=SamplingDefaults(temperature=0.2, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.1),
    )

    def parsed(**body: Any) -> tuple[float, ...]:
        sampling = parse_completion(Fields({"model": "m", "prompt": "x", **body}), limits).options.sampling
        return (
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.min_p,
            sampling.repetition_penalty,
        )

    assert parsed() == (0.2, 0.9, 7, 0.1, 1.1)
    own = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    assert parsed(**own) == (0, 1, 0, 0, 1)
    assert parsed(temperature=None, top_k=-1)[:3] == (0.2, 0.9, 0)

"""Bodies of completions and chat requests: what is accepted, what is refused, and with which words."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tidemill_engine.api.protocol import (
    ChatRequest,
    CompletionRequest,
    ModelLimits,
    decode_body,
    fit_to_context,
    parse_chat,
    parse_completion,
)
from tidemill_engine.errors import ContextLengthExceeded, InvalidRequest

LIMITS = ModelLimits(max_model_len=2048, vocab_size=1000, max_sequences=64)


def completion(**body: Any) -> CompletionRequest:
    return parse_completion(decode_body(json.dumps({"prompt": "x"} | body).encode()), LIMITS)


def chat(**body: Any) -> ChatRequest:
    messages = [{"role": "user", "content": "hi"}]
    return parse_chat(decode_body(json.dumps({"messages": messages} | body).encode()), LIMITS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 5),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("frequency_penalty", 3),
        ("repetition_penalty", 0),
        ("n", 0),
        ("n", 129),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_completion_tokens", -5),
        ("min_tokens", -1),
        ("seed", "one"),
        ("seed", 2**63),
        ("stream", "yes"),
        ("ignore_eos", 1),
        ("stop", 7),
        ("stop", ["a", ""]),
        ("stop", ["a"] * 17),
        ("stop", ["a", 3]),
        ("stop_token_ids", [1000]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "1"),
        ("logit_bias", [1]),
        ("stream_options", "usage"),
        ("model", 7),
    ],
)
def test_a_value_out_of_range_is_refused_with_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(**{field: value})
    assert caught.value.param == field
    assert field in caught.value.message
    assert json.dumps(value, separators=(",", ":"))[:20] in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0},
        {"temperature": 2, "top_p": 1},
        {"top_p": 0.01},
        {"top_p": None, "stop": None, "temperature": None, "logit_bias": None},
        {"presence_penalty": 2, "frequency_penalty": -2},
        {"logit_bias": {}},
        {"stop": []},
        {"top_k": -1},
        {"n": 128, "prompt": "x", "best_of": None},
        {"tools": [], "user": "someone", "something_new": 3},
        {"response_format": {"type": "text"}},
        {"tool_choice": "none", "tools": [{"type": "function"}]},
    ],
)
def test_the_edges_of_the_ranges_are_accepted(body: dict[str, Any]) -> None:
    limits = ModelLimits(max_model_len=2048, vocab_size=1000, max_sequences=128)
    parse_completion(decode_body(json.dumps({"prompt": "x"} | body).encode()), limits)


@pytest.mark.parametrize("key", ["1000", "999999", "-1", "AI", "", "1.0", "٣"])
def test_a_logit_bias_key_that_is_no_token_id_is_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias") as caught:
        completion(logit_bias={key: 5})
    assert json.dumps(key, ensure_ascii=False) in caught.value.message


@pytest.mark.parametrize("bias", [101, -101, "5", None])
def test_a_logit_bias_outside_its_range_is_refused(bias: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"logit_bias\.7"):
        completion(logit_bias={"7": bias})


def test_logit_biases_inside_the_vocabulary_are_kept() -> None:
    assert completion(logit_bias={"0": -100, "999": 1.5}).options.sampling.logit_bias == {0: -100, 999: 1.5}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "end"),
        ("best_of", 3),
        ("guided_regex", "("),
        ("guided_json", {"type": "object"}),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]),
        ("functions", [{"name": "f"}]),
        ("chat_template", "{{ messages }}"),
        ("prompt_logprobs", 1),
        ("bad_words", ["x"]),
    ],
)
def test_what_would_change_the_output_if_ignored_is_refused(field: str, value: Any) -> None:
    for parse in (completion, chat):
        with pytest.raises(InvalidRequest, match="not supported yet") as caught:
            parse(**{field: value})
        assert caught.value.param == field


@pytest.mark.parametrize("prompt", [[], [[]], ["ok", []], None, 7, {}, [1, "a"], ["a", 1], [[1], 2], [1.5]])
def test_a_prompt_of_the_wrong_shape_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("ids", [[1000], [-1], [3, True], [0, 2**70]])
def test_prompt_token_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    for prompt in (ids, [[1], ids]):
        with pytest.raises(InvalidRequest) as caught:
            completion(prompt=prompt)
        assert caught.value.param in {"prompt", None}


def test_every_shape_of_prompt_is_read() -> None:
    assert completion(prompt="a").prompts == ("a",)
    assert completion(prompt=["a", "b"]).prompts == ("a", "b")
    assert completion(prompt=[1, 2]).prompts == ((1, 2),)
    assert completion(prompt=[[1], [2, 3]]).prompts == ((1,), (2, 3))


def test_more_sequences_than_one_request_may_have_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 64"):
        completion(prompt=["a"] * 33, n=2)


def test_zero_max_tokens_is_allowed_only_with_echo() -> None:
    assert completion(max_tokens=0, echo=True).is_echo_only
    with pytest.raises(InvalidRequest):
        completion(max_tokens=False, echo=True)


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens"):
        completion(max_tokens=5, min_tokens=6)


def test_max_tokens_is_a_cap_clamped_to_what_fits() -> None:
    options = completion(max_tokens=65535, min_tokens=2000).options
    fitted = fit_to_context(options, 100, LIMITS, param="prompt")
    assert fitted.max_tokens == 1948
    assert fitted.min_tokens == 1948


def test_strict_limits_refuse_a_max_tokens_that_does_not_fit_but_not_its_absence() -> None:
    strict = dataclasses.replace(LIMITS, is_strict=True)
    with pytest.raises(ContextLengthExceeded, match=r"65535.* 100 .*1948.*2048"):
        fit_to_context(completion(max_tokens=65535).options, 100, strict, param="prompt")
    assert fit_to_context(completion(max_tokens=1948).options, 100, strict, param="prompt").max_tokens == 1948
    assert fit_to_context(chat().options, 100, strict, param="messages").max_tokens == 1948


@pytest.mark.parametrize("num_tokens", [2048, 2049])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(num_tokens: int) -> None:
    with pytest.raises(ContextLengthExceeded, match=rf"{num_tokens} tokens.* 2048"):
        fit_to_context(completion().options, num_tokens, LIMITS, param="prompt")
    assert fit_to_context(completion().options, 2047, LIMITS, param="prompt").max_tokens == 1


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hi",
        [1],
        [{"content": "x"}],
        [{"role": "owner", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
        [{"role": ["user"], "content": "x"}],
    ],
)
def test_messages_of_the_wrong_shape_are_refused(messages: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(messages=messages)
    assert (caught.value.param or "").startswith("messages")


def test_content_parts_are_joined_and_developer_means_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    parsed = chat(messages=[{"role": "developer", "content": "s"}, {"role": "user", "content": parts}])
    assert [(message.role, message.content) for message in parsed.messages] == [
        ("system", "s"),
        ("user", "a\nb"),
    ]


def test_chat_logprobs_are_a_flag_and_a_number() -> None:
    assert chat().options.sampling.num_logprobs is None
    assert chat(logprobs=True).options.sampling.num_logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).options.sampling.num_logprobs == 3
    with pytest.raises(InvalidRequest, match="top_logprobs"):
        chat(top_logprobs=3)
    with pytest.raises(InvalidRequest, match="top_logprobs"):
        chat(logprobs=True, top_logprobs=21)


def test_usage_in_a_stream_is_only_for_streams() -> None:
    assert completion(stream=True, stream_options={"include_usage": True}).options.include_usage
    with pytest.raises(InvalidRequest, match="stream_options"):
        completion(stream_options={"include_usage": True})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"temperature": NaN}',
        b'{"seed": 1e999}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_completion(decode_body(body), LIMITS)


def test_a_value_in_a_message_is_cut_short() -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(temperature="x" * 10_000)
    assert len(caught.value.message) < 300

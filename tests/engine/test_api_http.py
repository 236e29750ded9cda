"""Errors, keys, health, metrics and the admin surface over HTTP."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest

from api_builders import is_openai_error, make_serve_config, running_api
from fake_core import make_ready, make_stats, spell
from tidemill_engine.api.config import HttpConfig
from tidemill_engine.heartbeat import HeartbeatReader, HeartbeatWriter, create_heartbeat_fd


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [[]]}, 400, "prompt"),
        ({"prompt": [""]}, 400, "prompt"),
        ({"prompt": "x", "logit_bias": {"4096": 1}}, 400, "logit_bias"),
        ({"prompt": "x", "guided_regex": "("}, 400, "guided_regex"),
        ({"prompt": "x", "model": "other"}, 404, "model"),
        ({"prompt": "x" * 256}, 400, "prompt"),
        ({"prompt": "x" * 255}, 200, None),
        ({"prompt": "x", "model": "alias"}, 200, None),
        ({"prompt": "x", "model": None}, 200, None),
    ],
)
async def test_a_bad_request_gets_an_openai_error_and_a_good_one_works_afterwards(
    changes: dict[str, Any], status: int, param: str | None
) -> None:
    async with running_api(spell("ok")) as api:
        got, body = await api.complete(**changes)
        after, _ = await api.complete(prompt="y")
    assert got == status
    assert after == 200
    if status != 200:
        assert is_openai_error(body)
        assert body["error"]["param"] == param


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers() -> None:
    async with running_api() as api:
        status, body = await api.complete(prompt="x" * 300)
    assert status == 400
    assert body["error"]["code"] == "context_length_exceeded"
    assert "300" in body["error"]["message"]
    assert "256" in body["error"]["message"]


async def test_a_prompt_that_no_cache_could_hold_is_refused_at_once() -> None:
    async with running_api(ready=make_ready(max_model_len=4096, num_blocks=4, block_size=16)) as api:
        status, body = await api.complete(prompt="x" * 64)
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


async def test_malformed_bodies_get_400_413_and_415() -> None:
    config = make_serve_config(http=HttpConfig(port=0, max_body_bytes=2000))
    async with running_api(spell("ok"), config=config) as api:
        url = api.url + "/v1/completions"
        json_type = {"Content-Type": "application/json"}
        cases = [
            (b"{", json_type, 400),
            (b"{}", {"Content-Type": "text/plain"}, 415),
            (json.dumps({"prompt": "x" * 3000}).encode(), json_type, 413),
        ]
        for data, headers, status in cases:
            async with api.session.post(url, data=data, headers=headers) as response:
                assert response.status == status
                assert is_openai_error(await response.json())
        assert (await api.complete(prompt="x"))[0] == 200


async def test_a_body_of_a_hundred_megabytes_is_refused_and_the_engine_goes_on() -> None:
    async with running_api(spell("ok")) as api:
        headers = {"Content-Type": "application/json"}
        data = io.BytesIO(b" " * 100 * 1024 * 1024)
        async with api.session.post(api.url + "/v1/completions", data=data, headers=headers) as response:
            assert response.status == 413
            assert is_openai_error(await response.json())
        assert (await api.complete(prompt="x"))[0] == 200


async def test_a_body_that_is_too_long_without_saying_so_is_refused() -> None:
    async def endless() -> Any:
        for _ in range(10):
            yield b"x" * 1000

    config = make_serve_config(http=HttpConfig(port=0, max_body_bytes=2000))
    async with running_api(config=config) as api:
        headers = {"Content-Type": "application/json"}
        async with api.session.post(api.url + "/v1/completions", data=endless(), headers=headers) as response:
            assert response.status == 413
            assert is_openai_error(await response.json())


async def test_unknown_paths_and_methods_get_openai_errors_too() -> None:
    async with running_api() as api:
        status, body = await api.get("/v1/nothing")
        method_status, method_body = await api.get("/v1/completions")
    assert status == 404
    assert is_openai_error(body)
    assert method_status == 405
    assert is_openai_error(method_body)


async def test_models_are_listed_by_every_served_name() -> None:
    async with running_api() as api:
        status, body = await api.get("/v1/models")
        one, alias = await api.get("/v1/models/alias")
        missing, _ = await api.get("/v1/models/other")
    assert status == 200
    assert [model["id"] for model in body["data"]] == ["test", "alias"]
    assert (one, alias["id"], missing) == (200, "alias", 404)


async def test_the_key_is_asked_for_under_v1_only() -> None:
    config = make_serve_config(http=HttpConfig(port=0, api_key="right"))
    async with running_api(spell("ok"), config=config) as api:
        for key, status in [(None, 401), ("Bearer wrong", 401), ("Basic right", 401), ("Bearer right", 200)]:
            headers = {"Authorization": key} if key else {}
            got, body = await api.post("/v1/completions", {"prompt": "x"}, headers=headers)
            assert got == status
            assert status == 200 or is_openai_error(body)
        assert (await api.get("/health"))[0] == 200


async def test_a_chat_without_a_template_is_refused_and_completions_still_work() -> None:
    async with running_api(spell("ok"), chat_template=None) as api:
        status, body = await api.chat()
        works, _ = await api.complete(prompt="x")
    assert (status, body["error"]["code"], works) == (400, "no_chat_template", 200)
    assert "no chat template" in body["error"]["message"]


@pytest.mark.parametrize("has_failed", [False, True], ids=["loading", "failed"])
async def test_an_engine_that_does_not_serve_lets_another_replica_take_the_request(has_failed: bool) -> None:
    async with running_api() as api:
        api.context.state.__init__()  # type: ignore[misc] # as it was before the core's first word
        if has_failed:
            api.context.state.on_failed("the core has ended")
        live, _ = await api.get("/health/live")
        ready, _ = await api.get("/health/ready")
        async with api.session.post(api.url + "/v1/completions", json={"prompt": "x"}) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert response.headers["x-tidemill-draining"] == "true"
            assert is_openai_error(await response.json())
    assert (live, ready) == (503 if has_failed else 200, 503)


async def test_live_fails_when_the_core_misses_its_deadline_and_not_before() -> None:
    now = 100.0
    async with running_api(clock=lambda: now) as api:
        fd = create_heartbeat_fd()
        api.context.heartbeat = HeartbeatReader(fd)
        writer = HeartbeatWriter(fd)
        assert (await api.get("/health/live"))[0] == 200
        writer.beat(now)
        now += 19.9
        assert (await api.get("/health/live"))[0] == 200
        now += 0.2
        assert (await api.get("/health/live"))[0] == 503
        assert (await api.get("/health"))[0] == 503
        assert (await api.get("/health/ready"))[0] == 200
        writer.beat(now)
        assert (await api.get("/health/live"))[0] == 200


async def test_a_core_that_hangs_before_its_first_beat_fails_liveness_too() -> None:
    now = 100.0
    async with running_api(clock=lambda: now) as api:
        api.context.heartbeat = HeartbeatReader(create_heartbeat_fd())
        now += 19.9
        assert (await api.get("/health/live"))[0] == 200
        now += 0.2
        assert (await api.get("/health/live"))[0] == 503


async def test_live_fails_when_requests_wait_and_nothing_is_computed_for_a_minute() -> None:
    now = 100.0
    async with running_api(clock=lambda: now) as api:
        state = api.context.state
        state.on_stats(make_stats(num_waiting=1, generation_tokens=5), now)
        now += 59
        state.on_stats(make_stats(num_waiting=1, generation_tokens=5), now)
        assert (await api.get("/health/live"))[0] == 200
        now += 2
        assert (await api.get("/health/live"))[0] == 503
        state.on_stats(make_stats(num_waiting=1, generation_tokens=6), now)
        assert (await api.get("/health/live"))[0] == 200


async def test_a_step_that_was_promised_to_take_minutes_is_no_standstill_until_its_own_deadline() -> None:
    now = 100.0
    async with running_api(clock=lambda: now) as api:
        fd = create_heartbeat_fd()
        api.context.heartbeat = HeartbeatReader(fd)
        writer = HeartbeatWriter(fd)
        api.context.state.on_stats(make_stats(num_waiting=1), now)
        writer.beat(now, predicted_seconds=15.0)
        now += 120
        assert (await api.get("/health/live"))[0] == 200
        writer.beat(now)
        assert (await api.get("/health/live"))[0] == 503, "it chooses no step, and promises the least"
        writer.beat(now - 120, predicted_seconds=11.0)
        assert (await api.get("/health/live"))[0] == 503


async def test_a_long_prompt_computed_in_chunks_counts_as_progress() -> None:
    now = 100.0
    async with running_api(clock=lambda: now) as api:
        for _ in range(10):
            stats = msgspec.structs.replace(make_stats(num_waiting=1), iteration_tokens=[64])
            api.context.state.on_stats(stats, now)
            now += 50
            assert (await api.get("/health/live"))[0] == 200


async def test_metrics_hold_our_names_and_the_ones_that_dashboards_know() -> None:
    async with running_api(spell("ok")) as api:
        await api.complete(prompt="x")
        stats = make_stats(num_running=3, num_free_blocks=32, prompt_tokens=7)
        await api.core.send(stats)
        await api.complete(prompt="x")
        async with api.session.get(api.url + "/metrics") as response:
            text = await response.text()
    for line in [
        'vllm:num_requests_running{model_name="test"} 3.0',
        'vllm:num_requests_waiting{model_name="test"} 0.0',
        'vllm:num_requests_swapped{model_name="test"} 0.0',
        'vllm:kv_cache_usage_perc{model_name="test"} 0.5',
        'vllm:gpu_cache_usage_perc{model_name="test"} 0.5',
        'vllm:cpu_cache_usage_perc{model_name="test"} 0.0',
        'vllm:num_preemptions_total{model_name="test"} 0.0',
        'vllm:prompt_tokens_total{model_name="test"} 7.0',
        'vllm:generation_tokens_total{model_name="test"} 0.0',
        'vllm:prefix_cache_queries_total{model_name="test"} 0.0',
        'vllm:prefix_cache_hits_total{model_name="test"} 0.0',
        'vllm:request_success_total{finished_reason="stop",model_name="test"} 2.0',
        'vllm:time_to_first_token_seconds_count{model_name="test"} 2.0',
        'vllm:e2e_request_latency_seconds_count{model_name="test"} 2.0',
        'vllm:request_prompt_tokens_sum{model_name="test"} 2.0',
        'vllm:request_generation_tokens_sum{model_name="test"} 4.0',
        'vllm:iteration_tokens_total_count{model_name="test"} 0.0',
        'vllm:num_running_requests{model_name="test"} 3.0',
        "tidemill_requests_running 3.0",
        "tidemill_kv_cache_usage_ratio 0.5",
        "tidemill_admission_open 1.0",
        'tidemill_http_requests_total{route="/v1/completions",status="200"} 2.0',
    ]:
        assert f"\n{line}\n" in text
    for name in ["cache_config_info", "lora_requests_info", "inter_token_latency_seconds_bucket"]:
        assert f"\nvllm:{name}{{" in text


async def test_the_page_is_one_file_that_may_load_nothing_from_elsewhere() -> None:
    async with running_api() as api, api.session.get(api.url + "/") as response:
        text = await response.text()
        policy = response.headers["Content-Security-Policy"]
    assert response.status == 200
    assert response.content_type == "text/html"
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "https://" not in text
    assert "<script src" not in text

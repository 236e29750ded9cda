"""The admin surface: load, its token, draining and coming back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from api_builders import Api, is_openai_error, make_serve_config, parse_events, read_event, running_api
from fake_core import make_stats, spell
from tidemill_engine.api.config import AdminConfig, DrainConfig
from tidemill_engine.errors import InvalidConfig
from tidemill_engine.messages import LoadProgress


async def test_load_shows_the_cores_figures_and_what_is_in_flight() -> None:
    async with running_api() as api:
        await api.core.send(make_stats(num_running=1, num_waiting=2, num_free_blocks=16, num_cached_blocks=5))
        task = asyncio.create_task(api.complete(prompt="abc", max_tokens=9))
        await api.core.until(lambda core: bool(core.requests))
        async with api.session.get(api.admin_url + "/load") as response:
            load = await response.json()
        expected = {
            "running": 1,
            "waiting": 2,
            "kv_cache_usage": 0.75,
            "free_blocks": 16,
            "total_blocks": 64,
            "in_flight_tokens": 3,
            "in_flight_requests": 1,
            "cached_blocks": 5,
            "answered_requests": 0,
            "failed_requests": 0,
            "draining": False,
            "ready": True,
        }
        assert {key: load[key] for key in expected} == expected
        task.cancel()


async def test_progress_tells_how_much_of_the_model_is_read() -> None:
    async def told(api: Api) -> object:
        async with api.session.get(api.admin_url + "/progress") as response:
            return await response.json()

    async with running_api() as api:
        api.context.state.progress = LoadProgress(loaded_bytes=3, total_bytes=8)
        assert await told(api) == {"phase": "ready", "loaded_bytes": 3, "total_bytes": 8}
        api.context.state.ready = None
        assert await told(api) == {"phase": "loading", "loaded_bytes": 3, "total_bytes": 8}


async def test_load_tells_the_autoscaler_speeds_limits_and_latencies() -> None:
    async with running_api() as api:
        stats = make_stats(
            waiting_prompt_tokens=40,
            prompt_tokens=700,
            generation_tokens=90,
            prefix_hits_tokens=64,
            computed_tokens=720,
        )
        coefficients = [0.005, 0.0001, 1e-7, 1e-9, 0.0002]
        stats = msgspec.structs.replace(
            stats, inter_token_seconds=[0.02, 0.02, 0.3], step_coefficients=coefficients
        )
        await api.core.send(stats)
        async with api.session.get(api.admin_url + "/load") as response:
            load = await response.json()
        assert load["waiting_prompt_tokens"] == 40
        assert load["prompt_tokens_total"] == 700
        assert load["generation_tokens_total"] == 90
        assert load["prefix_cache_hits_total"] == 64
        assert load["computed_tokens_total"] == 720
        assert load["max_num_seqs"] > 0
        assert load["started"] > 1e9
        bounds = dict(tuple(pair) for pair in load["inter_token_latency"])
        assert (bounds[0.01], bounds[0.025], bounds[0.3], bounds[None]) == (0, 2, 3, 3)
        assert load["time_to_first_token"][-1] == [None, 0]
        assert load["step_seconds"]["fixed"] == 0.005
        assert load["step_seconds"]["row"] == 0.0002


async def test_the_admin_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    config = make_serve_config(admin=AdminConfig(token_file=token_file))
    async with running_api(config=config) as api:

        async def status(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            async with api.session.get(api.admin_url + "/load", headers=headers) as response:
                return response.status

        assert await status("") == 401
        token_file.write_text("first\n")
        assert [await status("first"), await status("other"), await status("")] == [200, 401, 401]
        token_file.write_text("second!")
        assert [await status("first"), await status("second!")] == [401, 200]
        token_file.unlink()
        assert await status("second!") == 401


def test_an_admin_port_without_a_token_may_not_be_reachable_from_outside() -> None:
    with pytest.raises(InvalidConfig, match=r"admin_host.*0\.0\.0\.0"):
        AdminConfig(host="0.0.0.0")


async def test_a_drain_refuses_new_and_unstarted_requests_and_lets_streams_finish() -> None:
    config = make_serve_config(drain=DrainConfig(grace_seconds=0))
    async with running_api(config=config) as api:
        opening = api.open_stream(prompt="x")
        await api.send_tokens(0, "a")
        stream = await opening
        await read_event(stream)
        unstarted = api.open_stream(prompt="y")
        await api.core.until(lambda core: len(core.requests) == 2)
        async with api.session.put(api.admin_url + "/drain") as response:
            assert (await response.json())["draining"]
        for refused in (await unstarted, await api.open_stream(prompt="z")):
            assert refused.status == 503
            assert refused.headers["x-tidemill-draining"] == "true"
        assert (await api.get("/health/ready"))[0] == 503
        assert (await api.get("/health/live"))[0] == 200
        await api.send_tokens(0, "b", "stop")
        events = parse_events(await stream.read())
    assert events[0]["choices"][0]["text"] == "b"
    assert events[-1] == "[DONE]"


async def test_a_draining_engine_still_accepts_during_the_grace_and_can_come_back() -> None:
    config = make_serve_config(drain=DrainConfig(grace_seconds=1000))
    async with running_api(spell("ok"), config=config) as api:
        await api.session.put(api.admin_url + "/drain")
        await api.session.put(api.admin_url + "/drain")
        assert (await api.get("/health/ready"))[0] == 503
        assert (await api.complete(prompt="x"))[0] == 200
        async with api.session.delete(api.admin_url + "/drain") as response:
            assert (await response.json()) == {"draining": False, "phase": "no", "in_flight_requests": 0}
        assert (await api.get("/health/ready"))[0] == 200


async def test_a_drain_that_ends_the_process_can_not_be_cancelled() -> None:
    async with running_api() as api:
        api.context.drain.start("SIGTERM", is_final=True)
        async with api.session.delete(api.admin_url + "/drain") as response:
            assert response.status == 409
            assert is_openai_error(await response.json())


async def test_a_sigterm_that_ends_a_drain_adds_no_time_to_it() -> None:
    config = make_serve_config(drain=DrainConfig(grace_seconds=1, timeout_seconds=1000))
    async with running_api(config=config) as api:
        drain = api.context.drain
        assert drain.deadline is None
        drain.start("asked by PUT /drain")
        begun = drain.deadline
        drain.start("SIGTERM", is_final=True)
        assert drain.deadline == begun


async def test_load_counts_answers_and_failures_but_not_what_another_replica_takes() -> None:
    config = make_serve_config(drain=DrainConfig(grace_seconds=0))
    async with running_api(spell("ok"), config=config) as api:
        await api.complete(prompt="x")
        await api.session.put(api.admin_url + "/drain")
        assert (await api.complete(prompt="y"))[0] == 503
        async with api.session.get(api.admin_url + "/load") as response:
            load = await response.json()
        assert (load["answered_requests"], load["failed_requests"]) == (1, 0)

"""Which library attends: what is asked for, what can't, and what is measured, with stand-ins of all."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.parallel.group import Alone, RankGroup
from tidemill_engine.runner.gpu import attention_choice
from tidemill_engine.runner.gpu.attention import AttentionBackend, Sequences, TidemillAttention
from tidemill_engine.runner.gpu.attention_choice import AttentionDemand, choose_backend
from tidemill_engine.runner.gpu.attention_libraries import FlashAttention, FlashInfer
from tidemill_engine.runner.gpu.device import HostDevice, Mark
from tidemill_engine.step import IntArray, int_array
from tidemill_kernels.paged_attention.launch import HeadShape

DEMAND = AttentionDemand(
    heads=HeadShape(num_heads=4, num_kv_heads=2, head_dim=16),
    block_size=256,
    scale=0.25,
    dtype=torch.bfloat16,
    has_graphs=False,
)


class ScriptedDevice(HostDevice):
    """A device whose clock moves only when a stand-in computes."""

    now = 0.0

    @dataclass(frozen=True)
    class At:
        seconds: float

        def wait(self) -> None:
            pass

        def has_passed(self) -> bool:
            return True

        def seconds_since(self, earlier: Mark) -> float:
            assert isinstance(earlier, ScriptedDevice.At)
            return self.seconds - earlier.seconds

    def mark(self) -> Mark:
        return ScriptedDevice.At(self.now)


@dataclass
class StandIn:
    """A backend that takes so many seconds for a decode and for a prompt, the first time a hundred more."""

    device: ScriptedDevice
    decode: float
    prefill: float
    fails: bool = False
    can_capture: bool = True
    steps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def arrays(self) -> list[IntArray]:
        return [int_array([1])]

    def plan(self, query_lens: IntArray, seq_lens: IntArray, num_decodes: int) -> StandIn:
        assert num_decodes in {0, len(query_lens)}
        self.num_new, self.is_first = len(query_lens), True
        return self

    def bind(self, sequences: Sequences, there: list[torch.Tensor]) -> Callable[..., torch.Tensor]:
        assert len(there) == 1
        assert len(sequences.block_table) == self.num_new

        def attend(query: torch.Tensor, _caches: object) -> torch.Tensor:
            if self.fails:
                raise RuntimeError("no kernel image")
            self.device.now += (self.decode if self.num_new > 1 else self.prefill) + 100 * self.is_first
            self.is_first = False
            self.steps.append((self.num_new, len(query)))
            return query

        return attend


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names: set[str] = set()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: SimpleNamespace() if name in names else None
    )
    return names


def choose(
    caplog: pytest.LogCaptureFixture,
    wanted: Any = "auto",
    device: HostDevice | None = None,
    group: RankGroup | None = None,
    **changes: Any,
) -> tuple[AttentionBackend, str]:
    caplog.set_level(logging.INFO)
    caplog.clear()
    demand = replace(DEMAND, **changes)
    found = choose_backend(wanted, demand, device or HostDevice(), group or Alone())
    (record,) = caplog.records
    return found, record.message


def test_says_which_attention_computes_and_why_without_measuring(
    caplog: pytest.LogCaptureFixture, installed: set[str]
) -> None:
    found, said = choose(caplog)
    assert isinstance(found, TidemillAttention)
    assert said == "attention by our own kernel: no other library is installed"
    installed |= {"flash_attn", "flashinfer"}
    assert choose(caplog, "tidemill")[1] == "attention by our own kernel: asked for"
    assert choose(caplog, block_size=16, has_graphs=True)[1] == (
        "attention by our own kernel: "
        "flash-attn needs --block-size 256, not 16; flashinfer captures no graphs"
    )
    assert "does not read a narrow KV cache" in choose(caplog, is_narrow=True)[1]
    assert choose(caplog, dtype=torch.float32)[1].count("computes no float32") == 2
    found, said = choose(caplog, "flash-attn")
    assert isinstance(found, FlashAttention)
    assert said == "attention by flash-attn: asked for"
    assert isinstance(choose(caplog, "flashinfer", has_graphs=True)[0], FlashInfer)


@pytest.mark.parametrize(
    ("wanted", "changes", "message"),
    [
        ("flash-attn", {"block_size": 16}, "needs --block-size 256, not 16"),
        ("flashinfer", {"is_narrow": True}, "narrow KV cache"),
        ("flash-attn", {"dtype": torch.float32}, "no float32"),
    ],
)
def test_a_library_that_can_not_compute_what_is_asked_for_is_refused(
    caplog: pytest.LogCaptureFixture, installed: set[str], wanted: str, changes: Any, message: str
) -> None:
    with pytest.raises(ModelLoadError, match="not installed"):
        choose(caplog, wanted)
    installed |= {"flash_attn", "flashinfer"}
    with pytest.raises(ModelLoadError, match=message):
        choose(caplog, wanted, **changes)


@pytest.mark.parametrize(
    ("flash", "infer", "chosen"),
    [
        ((1.0, 1.0), (0.5, 0.5), "flashinfer"),
        ((0.2, 0.9), (0.9, 0.9), "flash-attn"),
        ((0.97, 0.97), (1.0, 1.0), "our own kernel"),
        ((3.0, 0.1), (2.0, 2.0), "our own kernel"),
    ],
)
def test_the_fastest_that_is_worth_it_is_chosen(
    caplog: pytest.LogCaptureFixture,
    installed: set[str],
    monkeypatch: pytest.MonkeyPatch,
    flash: tuple[float, float],
    infer: tuple[float, float],
    chosen: str,
) -> None:
    installed |= {"flash_attn", "flashinfer"}
    device = ScriptedDevice()
    stand_ins = {
        "our own kernel": StandIn(device, 1.0, 1.0),
        "flash-attn": StandIn(device, *flash),
        "flashinfer": StandIn(device, *infer),
    }
    monkeypatch.setattr(attention_choice, "TidemillAttention", lambda *_, **__: stand_ins["our own kernel"])
    monkeypatch.setattr(attention_choice, "_library", lambda name, _demand: stand_ins[name])
    found, said = choose(caplog, device=device)
    assert found is stand_ins[chosen]  # type: ignore[comparison-overlap]
    assert said.startswith(f"attention by {chosen}: measured")
    assert f"flash-attn {flash[0] * 1e6:.0f} + {flash[1] * 1e6:.0f} us" in said
    assert set(stand_ins["flashinfer"].steps) == {(32, 32), (1, 1024)}


def test_a_library_that_fails_when_it_is_measured_is_named_and_left_out(
    caplog: pytest.LogCaptureFixture, installed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.add("flash_attn")
    device = ScriptedDevice()
    ours = StandIn(device, 1.0, 1.0)
    monkeypatch.setattr(attention_choice, "TidemillAttention", lambda *_, **__: ours)
    monkeypatch.setattr(attention_choice, "_library", lambda *_: StandIn(device, 0, 0, fails=True))
    found, said = choose(caplog, device=device)
    assert found is ours  # type: ignore[comparison-overlap]
    assert said.endswith("; flash-attn fails: RuntimeError: no kernel image")


def test_a_library_that_fails_on_another_rank_is_left_out(
    caplog: pytest.LogCaptureFixture, installed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two(Alone):
        """A rank beside which another can't take the second of what is asked about."""

        answers = iter((1, 0))

        def least(self, number: int) -> int:
            return min(number, next(self.answers))

    installed.add("flash_attn")
    device = ScriptedDevice()
    ours = StandIn(device, 1.0, 1.0)
    monkeypatch.setattr(attention_choice, "TidemillAttention", lambda *_, **__: ours)
    monkeypatch.setattr(attention_choice, "_library", lambda *_: StandIn(device, 0.1, 0.1))
    found, said = choose(caplog, device=device, group=Two())
    assert found is ours  # type: ignore[comparison-overlap]
    assert said.endswith("; flash-attn fails on another rank")


@pytest.mark.slow
def test_our_own_kernel_is_measured_as_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_choice, "NUM_ROWS", 2)
    monkeypatch.setattr(attention_choice, "CONTEXT_TOKENS", 9)
    demand = replace(DEMAND, block_size=4, dtype=torch.float32)
    ours = choose_backend("tidemill", demand, HostDevice(), Alone())
    measured = attention_choice.measure(ours, demand, HostDevice())
    assert measured.decode_seconds > 0
    assert measured.prefill_seconds > 0

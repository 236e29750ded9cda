"""A drawn timeline of the scheduler: rows are requests, columns steps. The run is real, the clock virtual.

A step is as wide as it takes. Chunks of prompts and decodes have a colour each; a tick marks where a request
arrives, and a bar where it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tidemill_bench.engine_seam import EngineSetup, build_engine
from tidemill_bench.shapes import SimRequest
from tidemill_bench.simulator import SimulationOptions, Simulator
from tidemill_bench.step_time import StepTime

if TYPE_CHECKING:
    from tidemill_engine.step import SchedulerOutput

EXAMPLE = (
    SimRequest(arrival_seconds=0.0, num_prompt_tokens=40, num_output_tokens=14),
    SimRequest(arrival_seconds=0.0, num_prompt_tokens=150, num_output_tokens=6),
    SimRequest(arrival_seconds=0.1, num_prompt_tokens=30, num_output_tokens=3),
    SimRequest(arrival_seconds=0.4, num_prompt_tokens=300, num_output_tokens=5),
    SimRequest(arrival_seconds=0.5, num_prompt_tokens=20, num_output_tokens=8),
    SimRequest(arrival_seconds=1.3, num_prompt_tokens=60, num_output_tokens=4),
)
EXAMPLE_STEP_TIME = StepTime(coefficients=(0.02, 0.001, 1e-6, 1e-7, 1e-4))
"""Round figures of a slow machine, so that the picture stays when the measured constants move."""
EXAMPLE_SETUP = EngineSetup(
    max_num_seqs=4, max_num_batched_tokens=128, num_blocks=64, block_size=16, max_model_len=512
)
_WIDTH, _LEFT, _TOP, _ROW, _GAP = 1000, 150, 64, 30, 8
_CHUNK, _DECODE, _WAIT, _TEXT, _LINE = "#2f6f9f", "#e0a030", "#d9d9d9", "#222", "#bbb"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one request computes in one step; `is_last` where its prompt is complete after it."""

    request: int
    num_tokens: int
    start_pos: int


@dataclass(frozen=True, kw_only=True)
class TimelineStep:
    """One step: from when to when, and who computes what."""

    begin: float
    end: float
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A run: steps, and for each request arrival, prompt length and end."""

    steps: tuple[TimelineStep, ...]
    arrivals: tuple[float, ...]
    prompts: tuple[int, ...]
    ends: tuple[float, ...]
    budget: int

    @property
    def num_requests(self) -> int:
        """Return how many requests there are."""
        return len(self.arrivals)

    def as_json(self) -> dict[str, object]:
        """Return the run in plain values: per step its end and (request, tokens)."""
        return {
            "steps": [
                {"end": round(step.end, 4), "tokens": {str(c.request): c.num_tokens for c in step.cells}}
                for step in self.steps
            ]
        }


def record(
    requests: tuple[SimRequest, ...] = EXAMPLE,
    setup: EngineSetup = EXAMPLE_SETUP,
    step_time: StepTime = EXAMPLE_STEP_TIME,
) -> Timeline:
    """Run the scheduler on the requests and write down every step."""
    steps: list[TimelineStep] = []
    owners: dict[int, int] = {}

    def note(begin: float, end: float, output: SchedulerOutput) -> None:
        owners.update({new_row.row: new_row.seed for new_row in output.new_rows})
        numbers = zip(
            output.rows.tolist(), output.num_scheduled_tokens.tolist(), output.start_pos.tolist(), strict=True
        )
        cells = tuple(
            Cell(request=owners[row], num_tokens=count, start_pos=start) for row, count, start in numbers
        )
        steps.append(TimelineStep(begin=begin, end=end, cells=cells))

    options = SimulationOptions(on_step=note)
    simulation = Simulator(build_engine(setup), step_time, requests, options).run()
    return Timeline(
        steps=tuple(steps),
        arrivals=tuple(request.arrival_seconds for request in requests),
        prompts=tuple(request.num_prompt_tokens for request in requests),
        ends=tuple(float(end) for end in simulation.times.last_token),
        budget=setup.max_num_batched_tokens,
    )


def draw(timeline: Timeline) -> str:
    """Return the timeline as an SVG picture."""
    total = timeline.steps[-1].end
    scale = (_WIDTH - _LEFT - 20) / total

    def x(seconds: float) -> float:
        return _LEFT + seconds * scale

    height = _TOP + timeline.num_requests * (_ROW + _GAP) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_TEXT}">',
        "<title>Which request computes how many tokens in which step</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        *_legend(),
        *_step_lines(timeline, x, height - 40),
    ]
    for index in range(timeline.num_requests):
        parts += _request_row(timeline, index, x)
    parts.append(
        _text(_LEFT, height - 12, f"time; {len(timeline.steps)} steps of at most {timeline.budget} tokens")
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _legend() -> list[str]:
    parts = []
    left = _LEFT
    for colour, name, width in (
        (_CHUNK, "chunk of a prompt (tokens)", 200),
        (_DECODE, "decode: one token", 150),
        (_WAIT, "waits for a place", 150),
    ):
        parts.append(f'<rect x="{left}" y="12" width="14" height="14" fill="{colour}"/>')
        parts.append(_text(left + 20, 24, name))
        left += width
    return parts


def _step_lines(timeline: Timeline, x: Callable[[float], float], bottom: int) -> list[str]:
    parts = []
    for number, step in enumerate(timeline.steps):
        left = x(step.begin)
        parts.append(
            f'<line x1="{left:.1f}" y1="{_TOP - 8}" x2="{left:.1f}" y2="{bottom}" '
            f'stroke="{_LINE}" stroke-width="0.5"/>'
        )
        middle = (left + x(step.end)) / 2
        parts.append(_text(middle, _TOP - 12, str(number), "middle", 10))
    return parts


def _request_row(timeline: Timeline, index: int, x: Callable[[float], float]) -> list[str]:
    top = _TOP + index * (_ROW + _GAP)
    mine = [(step, cell) for step in timeline.steps for cell in step.cells if cell.request == index]
    arrival, first = timeline.arrivals[index], mine[0][0].begin
    label = f"request {index}: {timeline.prompts[index]} tokens"
    parts = [_text(_LEFT - 8, top + _ROW / 2 + 4, label, "end")]
    if first > arrival:
        parts.append(_box(x(arrival), top + _ROW / 2 - 2, x(first) - x(arrival), 4, _WAIT))
    parts.append(_box(x(arrival) - 1, top, 2, _ROW, _TEXT))
    for step, cell in mine:
        left, width = x(step.begin), x(step.end) - x(step.begin)
        is_prompt = cell.start_pos + cell.num_tokens <= timeline.prompts[index]
        parts.append(_box(left + 0.5, top, width - 1, _ROW, _CHUNK if is_prompt else _DECODE))
        if is_prompt:
            parts.append(
                _text(left + width / 2, top + _ROW / 2 + 4, str(cell.num_tokens), "middle", 11, "#fff")
            )
    parts.append(_box(x(timeline.ends[index]) - 2, top - 3, 3, _ROW + 6, _TEXT))
    return parts


def _box(left: float, top: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(
    left: float, top: float, text: str, anchor: str = "start", size: int = 12, colour: str = _TEXT
) -> str:
    return (
        f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">'
        f"{escape(text)}</text>"
    )

from __future__ import annotations

from engine_builders import make_sim_runner
from tidemill_engine.config import SchedulerConfig
from tidemill_engine.core.calibration import MAX_SECONDS, TRIALS, calibrate
from tidemill_engine.core.learning import Learning
from tidemill_engine.request import RequestLimits
from tidemill_engine.runner.sim import SimRunner
from tidemill_engine.scheduler.step_model import StepFeatures, features_of
from tidemill_engine.step import SchedulerOutput


class PacedRunner:
    """The sim runner on a clock of its own: a step takes a millisecond and 0.1 ms for every token."""

    def __init__(self, runner: SimRunner, seconds_per_token: float = 1e-4) -> None:
        self._runner = runner
        self._per_token = seconds_per_token
        self.info = runner.info
        self.sample = runner.sample
        self.now = 0.0
        self.steps: list[SchedulerOutput] = []

    def launch(self, output: SchedulerOutput) -> None:
        self.now += 0.001 + self._per_token * features_of(output).num_tokens
        self.steps.append(output)
        self._runner.launch(output)


def run(runner: PacedRunner, config: SchedulerConfig) -> Learning:
    """Calibrate and return what was learnt."""
    learning = Learning(config.chunk_tokens)
    info = runner.info
    limits = RequestLimits(
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        max_cached_tokens=info.num_blocks * info.block_size,
    )
    assert calibrate(config, runner, limits, learning, lambda: runner.now) == len(runner.steps)
    return learning


def test_calibration_fits_the_model_before_the_first_request() -> None:
    runner = PacedRunner(make_sim_runner(num_blocks=512, block_size=16, num_rows=32))
    model = run(runner, SchedulerConfig(max_num_seqs=32)).model
    assert model.is_fitted
    for step in (StepFeatures(16, 1000.0, 0.0, 16), StepFeatures(0, 0.0, 0.0, 0).with_chunk(256, 0)):
        true = 0.001 + 1e-4 * step.num_tokens
        assert abs(model.predict(step) - true) < 0.25 * true


def test_calibration_ends_in_time_on_a_slow_machine() -> None:
    runner = PacedRunner(make_sim_runner(num_blocks=512, block_size=16, num_rows=32), seconds_per_token=0.02)
    run(runner, SchedulerConfig(max_num_seqs=32))
    assert runner.now < MAX_SECONDS + 0.001 + 0.02 * 512


def test_trials_that_do_not_fit_a_small_engine_are_left_out() -> None:
    runner = PacedRunner(make_sim_runner(num_blocks=6, block_size=8, num_rows=2))
    run(runner, SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=16))
    assert runner.steps
    assert max(trial.prompt_tokens for trial in TRIALS) > runner.info.max_model_len

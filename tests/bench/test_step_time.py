import json

import numpy as np
import pytest

from tidemill_bench.fit import StepShape, grid, make_step
from tidemill_bench.step_time import FEATURES, Measurement, StepTime, fit, load_step_time
from tidemill_engine.scheduler.step_model import StepFeatures, features_of


def make_measurements(coefficients: tuple[float, ...]) -> list[Measurement]:
    truth = StepTime(coefficients=coefficients)
    features = [features_of(make_step(shape, 0)) for shape in grid()]
    return [Measurement(features=f, seconds=truth.seconds(f)) for f in features]


@pytest.mark.parametrize(
    "coefficients",
    [(0.02, 0.0015, 8e-6, 1.4e-6, 8e-4), (0.01, 0.0, 0.0, 1e-6, 0.0), (0.0, 1e-3, 0.0, 0.0, 0.0)],
)
def test_a_fit_finds_the_coefficients_that_made_the_measurements(coefficients: tuple[float, ...]) -> None:
    fitted = fit(make_measurements(coefficients))
    assert np.allclose(fitted.coefficients, coefficients, rtol=1e-4, atol=1e-9)
    assert fitted.relative_error < 1e-6


def test_coefficients_are_never_negative_even_where_that_would_fit_better() -> None:
    measurements = [
        Measurement(features=m.features, seconds=m.seconds - 1e-6 * m.features.decode_context)
        for m in make_measurements((0.1, 0.0015, 0.0, 1.4e-6, 8e-4))
    ]
    assert min(fit(measurements).coefficients) >= 0.0


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="4 measurements"):
        fit(make_measurements((0.02, 0.0015, 8e-6, 1.4e-6, 8e-4))[:4])


def test_constants_survive_a_file_and_a_bad_file_is_refused() -> None:
    step_time = StepTime(coefficients=(1.0, 0.5, 0.25, 0.125, 0.0), provenance={"machine": "here"})
    assert StepTime.from_json(json.dumps(step_time.as_json())) == step_time
    for text in ("", "[]", "{}", '{"coefficients": {"step": 1}}', "null"):
        with pytest.raises(ValueError):
            StepTime.from_json(text)
    with pytest.raises(ValueError, match="at least 0"):
        StepTime(coefficients=(-1.0, 1.0, 0.0, 0.0, 0.0))


def test_the_constants_that_come_with_the_package_say_where_they_are_from() -> None:
    shipped = load_step_time()
    assert set(shipped.provenance) >= {"machine", "model", "date", "method"}
    assert shipped.relative_error < 0.25
    assert len(shipped.coefficients) == len(FEATURES)


def test_a_measured_step_holds_what_its_shape_says() -> None:
    output = make_step(StepShape(num_decodes=3, context=100, chunk=32, chunk_start=64), 0)
    assert features_of(output) == StepFeatures(3 + 32, 300.0, 32 * (64 + 16), 4)
    assert len(output.block_appends.rows) == 3 * 4 + 3

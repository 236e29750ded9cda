"""The check of a GPU, rehearsed on the CPU: the same code, tiny and interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill_bench.gpu_check import kernel_tests
from tidemill_bench.gpu_check.correctness import Checked
from tidemill_bench.gpu_check.engine_run import Served, Workload
from tidemill_bench.gpu_check.kernel_tests import read_report, run_kernel_tests
from tidemill_bench.gpu_check.place import rehearsal
from tidemill_bench.gpu_check.random_model import LLAMA_8B, TINY, RandomWeights, num_weight_bytes
from tidemill_bench.gpu_check.report import Findings


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill_bench.gpu_check", *arguments]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def make_findings(*checks: Checked) -> Findings:
    return Findings(
        device="Some GPU",
        is_rehearsal=False,
        copy_bytes_per_second=2e12,
        product_flops=9e14,
        facts={"torch": "2.11"},
        checks=list(checks),
    )


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_exits_with_2() -> None:
    ran = run()
    assert ran.returncode == 2
    assert "no GPU here" in ran.stdout


@pytest.mark.slow
def test_a_rehearsal_finds_every_kernel_right_and_serves_every_request(tmp_path: Path) -> None:
    found = tmp_path / "findings.json"
    parts = [argument for part in ("kernels", "tests", "speed", "engine") for argument in ("--only", part)]
    ran = run("--rehearse", *parts, "--json", str(found), "--markdown", str(tmp_path / "tables.md"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    findings = json.loads(found.read_text())
    assert findings["is_rehearsal"]
    assert findings["is_right"]
    assert len(findings["checks"]) == 16
    assert findings["tests"]["num_passed"] == 8
    assert findings["tests"]["failed"] == []
    assert all(timed["seconds"] > 0 for timed in findings["kernels"])
    assert [served["workload"]["num_requests"] for served in findings["served"]] == [1, 3]
    (split,) = findings["splits"]
    assert sum(split["parts"].values()) > 0
    assert "no figure below means anything" in (tmp_path / "tables.md").read_text()


def test_one_wrong_kernel_is_shown_and_fails_the_check() -> None:
    right = Checked(name="good", worst=1e-5, tolerance=1e-4)
    wrong = Checked(name="bad", worst=0.5, tolerance=1e-4)
    raising = Checked(name="raises", worst=float("inf"), tolerance=1e-4, error="CompilationError: no")
    assert make_findings(right).is_right
    findings = make_findings(right, wrong, raising)
    assert not findings.is_right
    assert "| bad | 5.0e-01 | 1e-04 | **no**  |" in findings.as_markdown()
    assert "CompilationError: no" in findings.as_markdown()


REPORT = """<testsuites><testsuite>
<testcase classname="a" name="test_right" time="0.5" />
<testcase name="test_wrong[bf16]" time="1.5"><failure message="0.5 is not 0.1" /></testcase>
<testcase classname="a" name="test_elsewhere" time="0"><skipped message="no" /></testcase>
</testsuite></testsuites>"""


def test_a_test_that_fails_on_the_device_is_shown_and_fails_the_check() -> None:
    findings = make_findings()
    findings.tests = read_report(REPORT)
    assert (findings.tests.num_passed, findings.tests.num_skipped, findings.tests.seconds) == (1, 1, 2.0)
    assert not findings.is_right
    assert "1 pass, 1 fail, 1 skip.\n- test_wrong[bf16]: 0.5 is not 0.1" in findings.as_markdown()


def test_without_pytest_the_check_says_so_and_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tests, "_NEEDED", ("pytest", "no_such_package"))
    findings = make_findings()
    findings.tests = run_kernel_tests(rehearsal())
    assert findings.is_right
    assert "not run: no_such_package not installed" in findings.as_markdown()
    assert "no tests in" in run_kernel_tests(rehearsal(), Path("/nowhere")).why_not


def test_a_run_in_which_no_test_was_found_fails_the_check(tmp_path: Path) -> None:
    directory = tmp_path / "tests" / "kernels"
    directory.mkdir(parents=True)
    (directory / "test_triton_nothing.py").write_text("")
    findings = make_findings()
    findings.tests = run_kernel_tests(rehearsal(), tmp_path)
    assert not findings.is_right
    assert "pytest ended with 5" in findings.as_markdown()


def test_only_what_was_asked_for_is_reported() -> None:
    findings = make_findings()
    assert "|" not in findings.as_markdown()
    findings.served = [
        Served(
            workload=Workload(num_requests=64, prompt_tokens=512, output_tokens=128),
            seconds=2.0,
            output_tokens_per_second=4096.0,
            decode_seconds=0.008,
            limit_fraction=0.91,
        )
    ]
    assert "| 64 | 4096 | 8,000 µs | 91% |" in findings.as_markdown()


def test_random_weights_have_the_models_shapes() -> None:
    weights = RandomWeights(TINY)
    assert weights.values("model.layers.0.self_attn.k_proj.weight").shape == (TINY.kv_size, TINY.hidden_size)
    assert weights.values("model.norm.weight").tolist() == [0x3F80] * TINY.hidden_size
    assert round(num_weight_bytes(LLAMA_8B, 2) / 1e9) == 15

"""Each process starts without the others' dependencies, and Python keeps its own `operator` module."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BLOCKER = """
import importlib.abc, sys
blocked = set(sys.argv[1].split(","))
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(f"{name} is not installed in this image")
sys.meta_path.insert(0, Refuse())
import importlib
for module in sys.argv[2].split(","):
    importlib.import_module(module)
loaded = blocked & {name.split(".")[0] for name in sys.modules}
assert not loaded, loaded
print("imported")
"""

TORCH = "torch,transformers,triton,safetensors"
KUBE = "kopf,kubernetes"


def run_python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True, check=False)


def test_python_still_has_its_own_operator_module() -> None:
    result = run_python("-c", "import operator; print(operator.__file__); print(operator.add(1, 2))")
    assert result.returncode == 0, result.stderr
    path, three = result.stdout.split()
    assert Path(path).resolve().is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())
    assert three == "3"


def test_source_roots_are_no_packages() -> None:
    for root in ("engine", "kernels", "operator", "gateway", "bench"):
        assert not (ROOT / root / "__init__.py").exists()
        packages = [p.parent.name for p in (ROOT / root).glob("*/__init__.py")]
        assert packages == [f"tidemill_{root}"]


@pytest.mark.parametrize(
    ("modules", "blocked"),
    [
        pytest.param(
            "tidemill_engine.__main__,tidemill_engine.api.serve",
            f"{TORCH},{KUBE},tidemill_operator,tidemill_gateway",
            id="the engine's API process starts without torch and Kubernetes",
        ),
        pytest.param(
            "tidemill_engine.core.__main__",
            f"{KUBE},aiohttp,jinja2,tokenizers,prometheus_client",
            id="the engine's core starts without the web server and Kubernetes",
        ),
        pytest.param(
            "tidemill_operator.__main__,tidemill_operator.watches",
            f"{TORCH},tidemill_engine,tidemill_kernels,tidemill_gateway,tokenizers,jinja2,gguf,numpy",
            id="the operator starts without torch and the engine",
        ),
        pytest.param(
            "tidemill_gateway.__main__,tidemill_gateway.server",
            f"{TORCH},kopf,tidemill_engine,tidemill_kernels,tokenizers,jinja2,gguf,numpy",
            id="the gateway starts without kopf, torch and the engine",
        ),
        pytest.param(
            "tidemill_bench.gpu_check.__main__,tidemill_bench.gpu_check.correctness,"
            "tidemill_bench.gpu_check.speed,tidemill_bench.gpu_check.engine_run,tidemill_bench.gpu_check.peers",
            f"{KUBE},aiohttp,jinja2,tokenizers,prometheus_client,gguf,matplotlib,transformers",
            id="the check of a GPU needs torch, triton, msgspec and numpy only",
        ),
        pytest.param(
            "tidemill_bench.__main__",
            f"{TORCH},{KUBE}",
            id="the load client starts without torch and Kubernetes",
        ),
    ],
)
def test_each_process_starts_without_the_others_dependencies(modules: str, blocked: str) -> None:
    result = run_python("-c", BLOCKER, blocked, modules)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "imported"

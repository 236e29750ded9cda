"""The flags that the operator starts an engine with."""

from __future__ import annotations

from operator_builders import engine_container, pod_spec
from tidemill_engine.__main__ import make_parser
from tidemill_engine.serve_flags import make_config


def test_the_engine_is_told_everything_the_spec_says() -> None:
    args = engine_container(
        {
            "model": {"uri": "builtin://m", "servedNames": ["a", "b"]},
            "engine": {
                "dtype": "float32",
                "maxModelLen": 1024,
                "kvCache": {"blockSize": 16},
                "maxNumSeqs": 8,
                "maxNumBatchedTokens": 512,
                "args": ["--seed", "7"],
            },
            "drain": {"timeout": "1m"},
        }
    )["args"]
    assert args[:2] == ["serve", "builtin://m"]
    text = " ".join(args)
    for words in (
        "--served-model-name a b --host",
        "--port 8000",
        "--admin-port 8001",
        "--admin-token-file /var/run/tidemill/admin/token",
        "--drain-timeout 60",
        "--dtype float32",
        "--max-model-len 1024",
        "--max-num-seqs 8",
        "--max-num-batched-tokens 512",
        "--block-size 16",
    ):
        assert words in text
    assert args[-2:] == ["--seed", "7"]


def test_the_engine_is_told_how_weights_are_held() -> None:
    args = engine_container({"engine": {"quantization": "int8"}})["args"]
    assert args[args.index("--quantization") + 1] == "int8"


def test_what_the_spec_leaves_open_is_the_engines_choice() -> None:
    assert not {"--dtype", "--max-model-len", "--max-num-seqs", "--block-size"} & set(
        engine_container()["args"]
    )


def test_the_kv_cache_and_the_policy_reach_the_engine() -> None:
    cache = {
        "memoryUtilizationPercent": 85,
        "swapSpace": "1536Mi",
        "watermarks": {"highPercent": 80, "lowPercent": 60},
    }
    text = " ".join(engine_container({"engine": {"kvCache": cache, "schedulingPolicy": "slo"}})["args"])
    for words in (
        "--gpu-memory-utilization 0.85",
        "--swap-space 1.5",
        "--kv-watermarks 0.8,0.6,0.95",
        "--scheduling-policy slo",
    ):
        assert words in text


def test_the_engine_understands_every_flag_that_the_operator_writes() -> None:
    cache = {
        "memoryUtilizationPercent": 85,
        "blockSize": 16,
        "swapSpace": "1Gi",
        "watermarks": {"highPercent": 80},
    }
    written = {
        "dtype": "float32",
        "maxModelLen": 64,
        "maxNumSeqs": 2,
        "maxNumBatchedTokens": 32,
        "schedulingPolicy": "sjf",
        "kvCache": cache,
    }
    read = make_config(make_parser().parse_args(engine_container({"engine": written})["args"]), None)
    assert read.core.cache.memory_utilization == 0.85
    assert read.core.cache.swap_bytes == 1 << 30
    assert read.core.scheduler.watermarks.high == 0.8
    assert read.core.scheduler.order.policy == "sjf"


def test_a_model_over_several_gpus_is_one_process_for_each() -> None:
    limits = {"limits": {"nvidia.com/gpu": 4}}
    args = engine_container({"parallelism": {"tensor": 4}, "resources": limits})["args"]
    assert make_config(make_parser().parse_args(args), None).core.device.tensor_parallel_size == 4
    (memory,) = (v for v in pod_spec({"resources": limits})["volumes"] if v["name"] == "shm")
    assert memory["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert "--tensor-parallel-size" not in engine_container()["args"]

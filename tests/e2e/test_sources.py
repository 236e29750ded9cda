"""A model that is downloaded inside the cluster and answers, and pods that a person has a say in."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from harness.kubectl import wait_until
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from conftest import HUB_NAMESPACE
from e2e_support import API_VERSION, Namespace, Object, wait_routed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.session import TestCluster

pytestmark = pytest.mark.cluster
TOKEN = "hf_only_in_the_secret"
WEIGHTS = "model.safetensors"
SERVE_HUB = """
import pathlib, sys
sys.path.insert(0, "/stand-in")
from aiohttp import web
from model_servers import COMMIT, Fault, HubStandIn

class Hub(HubStandIn):
    async def answer(self, request):
        if request.path == "/release":
            self.released.set()
            return web.Response()
        return await super().answer(request)

hub = Hub({path.name: path.read_bytes() for path in pathlib.Path("/files").glob("[!.]*")})
hub.token = sys.argv[1]
hub.faults[f"/org/model/resolve/{COMMIT}/model.safetensors"] = [Fault(hangs=True)]
web.run_app(hub.app(), port=8080)
"""
RELEASE = "import urllib.request as r; r.urlopen(r.Request('http://127.0.0.1:8080/release'))"


def publish_model(folder: Path) -> dict[str, bytes]:
    """Write a tiny random model with a tokenizer of bytes, as a hub would hold it; without slow torch."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": 1, **{letter: 2 + n for n, letter in enumerate(letters)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(vocab),
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (len(vocab), 128),
        "model.norm.weight": (128,),
        f"{layer}.input_layernorm.weight": (128,),
        f"{layer}.post_attention_layernorm.weight": (128,),
        f"{layer}.self_attn.q_proj.weight": (128, 128),
        f"{layer}.self_attn.k_proj.weight": (64, 128),
        f"{layer}.self_attn.v_proj.weight": (64, 128),
        f"{layer}.self_attn.o_proj.weight": (128, 128),
        f"{layer}.mlp.gate_proj.weight": (256, 128),
        f"{layer}.mlp.up_proj.weight": (256, 128),
        f"{layer}.mlp.down_proj.weight": (128, 256),
    }
    chance = np.random.default_rng(0)
    tensors = {name: chance.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / WEIGHTS)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def config_map(name: str, files: dict[str, bytes]) -> Object:
    data = {key: base64.b64encode(body).decode() for key, body in files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "binaryData": data}


def hub_pod(image: str) -> Object:
    mounts = [{"name": "files", "mountPath": "/files"}, {"name": "stand-in", "mountPath": "/stand-in"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "hub", "labels": {"app": "hub"}},
        "spec": {
            "containers": [
                {
                    "name": "hub",
                    "image": image,
                    "command": ["python", "/stand-in/serve_hub.py", TOKEN],
                    "volumeMounts": mounts,
                    "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
                }
            ],
            "volumes": [{"name": name, "configMap": {"name": name}} for name in ("files", "stand-in")],
        },
    }


@pytest.fixture
def hub_files(release: TestCluster, tmp_path: Path) -> Iterator[dict[str, bytes]]:
    """Offer a hub in the cluster, where the operator's chart says that it is."""
    files = publish_model(tmp_path)
    server = Path(__file__).parents[1] / "model_servers.py"
    code = {"model_servers.py": server.read_bytes(), "serve_hub.py": SERVE_HUB.encode()}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "hub"},
        "spec": {"selector": {"app": "hub"}, "ports": [{"port": 8080}]},
    }
    release.kubectl("create", "namespace", HUB_NAMESPACE)
    for manifest in (
        config_map("files", files),
        config_map("stand-in", code),
        service,
        hub_pod(release.images["operator"]),
    ):
        release.kubectl("create", "-n", HUB_NAMESPACE, "-f", "-", stdin=json.dumps(manifest))
    release.kubectl("wait", "-n", HUB_NAMESPACE, "--for=condition=Ready", "pod/hub", "--timeout=60s")
    yield files
    release.kubectl("delete", "namespace", HUB_NAMESPACE, "--wait=false")


def tiny(**model: object) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceService",
        "metadata": {"name": "tiny"},
        "spec": {
            "model": {"uri": "hf://org/model", **model},
            "engine": {"dtype": "float32", "maxModelLen": 128},
            "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
            "replicas": 1,
        },
    }


@pytest.mark.real_model
@pytest.mark.timeout(400)
async def test_a_model_is_downloaded_with_its_secret_told_of_and_answers(
    space: Namespace, real_engine: str, hub_files: dict[str, bytes]
) -> None:
    def apply(**model: object) -> None:
        service = tiny(**model)
        service["spec"]["routing"] = {"ingress": {"className": "nginx", "host": space.host("tiny")}}
        space.cluster.kubectl("apply", "-n", space.name, "-f", "-", stdin=json.dumps(service))

    apply()
    wait_until(
        "the hub's refusal",
        lambda: space.condition("tiny", "Ready").get("reason") == "DownloadUnauthorized",
        timeout_seconds=90,
    )
    assert space.service("tiny")["status"]["model"]["lastFailure"]["exitCode"] == 20

    secret = ("create", "secret", "generic", "hub-token", f"--from-literal=HF_TOKEN={TOKEN}")
    space.cluster.kubectl(*secret, "-n", space.name)
    apply(secretRef={"name": "hub-token"})
    total = sum(len(body) for name, body in hub_files.items() if name != "README.md")

    def progress() -> Object | None:
        model: Object = space.service("tiny")["status"].get("model", {})
        return model if model.get("totalBytes") == total else None

    told = wait_until("the progress of the download", progress, timeout_seconds=60)
    assert 0 <= told["loadedBytes"] <= total - len(hub_files[WEIGHTS])
    space.cluster.kubectl("exec", "-n", HUB_NAMESPACE, "hub", "--", "python", "-c", RELEASE)
    space.wait_ready("tiny", timeout_seconds=120)
    async with space.client(space.host("tiny")) as client:
        await wait_routed(client)
        answer = await client.completions.create(model="tiny", prompt="tide", max_tokens=4, temperature=0)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4
    (pod,) = space.pods("tiny")
    assert TOKEN not in json.dumps(pod)
    name = pod["metadata"]["name"]
    for container in ("download", "engine"):
        assert TOKEN not in space.cluster.kubectl("logs", "-n", space.name, name, "-c", container).stdout


def test_a_gpu_pod_has_shared_memory_and_a_persons_own_container_beside_the_engine(
    space: Namespace, sim_engine: str
) -> None:
    sleeper = {
        "name": "beside",
        "image": sim_engine,
        "command": ["python", "-c", "import signal; signal.pause()"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    template = {"spec": {"containers": [sleeper], "nodeSelector": {"kubernetes.io/os": "linux"}}}
    limits = {"memory": "512Mi", "nvidia.com/gpu": 1}
    resources = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": limits}
    model = {"uri": "sim://demo", "loadTimeout": "10m"}
    space.apply_sim("gpu", sim_engine, resources=resources, template=template, model=model)
    space.wait_ready("gpu")
    (pod,) = space.pods("gpu")
    (engine,) = pod["spec"]["containers"]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert engine["startupProbe"]["failureThreshold"] * engine["startupProbe"]["periodSeconds"] == 600
    (beside,) = pod["status"]["initContainerStatuses"]
    assert (beside["name"], beside["started"]) == ("beside", True)
    look = "import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize)"
    where = ("exec", "-n", space.name, pod["metadata"]["name"], "-c", "engine", "--", "python", "-c", look)
    assert int(space.cluster.kubectl(*where).stdout) == 2 << 30

    template["spec"]["tolerations"] = [{"operator": "Maybe"}]
    space.apply_sim("gpu", sim_engine, resources=resources, template=template, model=model)
    wait_until(
        "the refusal of the template",
        lambda: space.condition("gpu", "Ready").get("reason") == "InvalidTemplate",
    )
    assert "Maybe" in space.condition("gpu", "Ready")["message"]
    assert [p["metadata"]["uid"] for p in space.pods("gpu")] == [pod["metadata"]["uid"]]

"""A tiny random model as files, a hub in the cluster that has it, volumes on the node, and services of it."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from e2e_support import API_VERSION, Namespace, Object

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "hf_only_in_the_secret"
WEIGHTS = "model.safetensors"
STORAGE_CLASS = "by-hand"
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


def make_volume(space: Namespace, claim: str, folder: Path) -> str:
    """Offer a folder of the node to one claim of the namespace, open to all users; give the volume's name."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o644)
    name = f"{space.name}-{claim}"
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": STORAGE_CLASS,
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": space.name, "name": claim},
        "hostPath": {"path": str(folder), "type": "Directory"},
    }
    manifest = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    space.cluster.kubectl.apply(manifest)
    return name


def make_claim(space: Namespace, name: str) -> None:
    """Claim a volume that `make_volume` offers."""
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE_CLASS, "resources": resources}
    metadata = {"namespace": space.name, "name": name}
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    space.cluster.kubectl.apply({**kind, "metadata": metadata, "spec": spec})

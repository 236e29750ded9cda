"""A model that is downloaded or mounted inside the cluster and answers, and pods a person has a say in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from harness.kubectl import wait_until

from conftest import HUB_NAMESPACE
from e2e_support import Namespace, Object, wait_routed
from model_in_cluster import (
    RELEASE,
    STORAGE_CLASS,
    TOKEN,
    WEIGHTS,
    make_claim,
    make_volume,
    publish_model,
    tiny,
)
from model_servers import COMMIT
from tidemill_operator.failures import CONFIG_REASONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster


@pytest.fixture
def offer_volume(space: Namespace) -> Iterator[Callable[[str, Path], None]]:
    """Offer folders of the node to claims of the namespace."""
    if space.cluster.containerd_socket is None:
        pytest.skip("the folders of an existing cluster's nodes are not known")
    names: list[str] = []
    yield lambda claim, folder: names.append(make_volume(space, claim, folder))
    for name in names:
        space.cluster.kubectl("delete", f"pv/{name}", "--wait=false")


def apply_tiny(space: Namespace, **model: object) -> None:
    """Apply a service of the tiny model, reached by a host name."""
    service = tiny(**model)
    service["spec"]["routing"] = {"ingress": {"className": "nginx", "host": space.host("tiny")}}
    space.cluster.kubectl("apply", "-n", space.name, "-f", "-", stdin=json.dumps(service))


async def answers(space: Namespace) -> str:
    """Ask the tiny model through the ingress."""
    async with space.client(space.host("tiny")) as client:
        await wait_routed(client)
        answer = await client.completions.create(model="tiny", prompt="tide", max_tokens=4, temperature=0)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4
    return answer.choices[0].text


@pytest.mark.real_model
@pytest.mark.timeout(500)
async def test_a_model_is_downloaded_with_its_secret_told_of_answers_and_is_kept(
    space: Namespace,
    real_engine: str,
    hub_files: dict[str, bytes],
    offer_volume: Callable[[str, Path], None],
    tmp_path: Path,
) -> None:
    apply_tiny(space)
    wait_until(
        "the hub's refusal",
        lambda: space.condition("tiny", "Ready").get("reason") == "DownloadUnauthorized",
    )
    assert space.service("tiny")["status"]["model"]["lastFailure"]["exitCode"] == 20

    secret = ("create", "secret", "generic", "hub-token", f"--from-literal=HF_TOKEN={TOKEN}")
    space.cluster.kubectl(*secret, "-n", space.name)
    kept = tmp_path / "cache"
    kept.mkdir()
    offer_volume("tiny-model-cache", kept)
    cache = {"size": "1Gi", "storageClassName": STORAGE_CLASS}
    apply_tiny(space, secretRef={"name": "hub-token"}, revision=COMMIT, cache=cache)
    total = sum(len(body) for name, body in hub_files.items() if name != "README.md")

    def progress() -> Object | None:
        model: Object = space.service("tiny")["status"].get("model", {})
        return model if model.get("totalBytes") == total else None

    told = wait_until("the progress of the download", progress)
    assert 0 <= told["loadedBytes"] <= total - len(hub_files[WEIGHTS])
    space.cluster.kubectl("exec", "-n", HUB_NAMESPACE, "hub", "--", "python", "-c", RELEASE)
    space.wait_ready("tiny", timeout_seconds=120)
    said = await answers(space)
    (pod,) = space.pods("tiny")
    assert TOKEN not in json.dumps(pod)
    name = pod["metadata"]["name"]
    for container in ("download", "engine"):
        assert TOKEN not in space.cluster.kubectl("logs", "-n", space.name, name, "-c", container).stdout
    assert [path for path in kept.rglob(WEIGHTS) if path.is_file()]

    # The next pod finds a commit on the volume, whoever else is away.
    space.cluster.kubectl("delete", "-n", HUB_NAMESPACE, "pod/hub")
    space.cluster.kubectl("delete", "-n", space.name, f"pod/{name}")
    space.wait_ready("tiny", timeout_seconds=120)
    assert [pod["metadata"]["name"] for pod in space.pods("tiny")] != [name]
    assert await answers(space) == said


@pytest.mark.real_model
async def test_a_model_on_a_volume_of_the_namespace_is_mounted_read_only_and_answers(
    space: Namespace, real_engine: str, offer_volume: Callable[[str, Path], None], tmp_path: Path
) -> None:
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    publish_model(folder)
    offer_volume("weights", tmp_path)
    make_claim(space, "weights")
    apply_tiny(space, uri="pvc://weights/models/tiny")
    space.wait_ready("tiny", timeout_seconds=120)
    assert await answers(space)
    (pod,) = space.pods("tiny")
    write = "import pathlib; pathlib.Path('/models/new').touch()"
    where = ("exec", "-n", space.name, pod["metadata"]["name"], "-c", "engine", "--", "python", "-c", write)
    assert "Read-only file system" in space.cluster.kubectl(*where, check=False).stderr


def test_a_model_in_an_image_is_told_of_where_nodes_mount_no_images(
    space: Namespace, sim_engine: str
) -> None:
    (node,) = space.cluster.kubectl.items("nodes")
    runtime, _, version = node["status"]["nodeInfo"]["containerRuntimeVersion"].partition("://")
    if runtime != "containerd" or tuple(int(part) for part in version.split(".")[:2]) >= (2, 1):
        pytest.skip(f"{runtime} {version} may mount images")
    space.apply_sim("image", sim_engine, uri=f"oci://{sim_engine}")

    def told() -> str | None:
        ready = space.condition("image", "Ready")
        return str(ready["message"]) if ready.get("reason") in {*CONFIG_REASONS, "InvalidTemplate"} else None

    # Before 1.35 the API server itself leaves such volumes out; after, the node's runtime refuses.
    message = wait_until("the words of what refuses", told)
    assert message.startswith(
        (
            "oci:// needs nodes whose container runtime mounts images",
            "oci:// needs a cluster with image volumes",
        )
    )
    assert space.condition("image", "Stalled")["status"] == "True"


KILL_RANK = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    if b"tidemill_engine.parallel" in (folder / "cmdline").read_bytes().split(b"\\0"):
        os.kill(int(folder.name), signal.SIGKILL)
        print(folder.name)
"""


@pytest.mark.real_model
@pytest.mark.timeout(500)
async def test_a_model_split_over_two_gpus_says_the_same_and_restarts_when_a_part_dies(
    space: Namespace, real_engine: str, offer_volume: Callable[[str, Path], None], tmp_path: Path
) -> None:
    """The GPUs are counted by the scheduler and are none: the parts compute on the node's CPU."""
    publish_model(tmp_path)
    offer_volume("weights", tmp_path)
    make_claim(space, "weights")
    apply_tiny(space, uri="pvc://weights")
    space.wait_ready("tiny", timeout_seconds=120)
    whole = await answers(space)

    limits = {"memory": "3Gi", "nvidia.com/gpu": 2}
    change = {"spec": {"parallelism": {"tensor": 2}, "resources": {"limits": limits}}}
    patch = ("patch", "-n", space.name, "infsvc/tiny", "--type=merge", "-p", json.dumps(change))
    space.cluster.kubectl(*patch)

    def is_rolled() -> Object | None:
        found = [pod for pod in space.pods("tiny") if _num_gpus(pod) == 2]
        is_settled = space.condition("tiny", "Progressing").get("reason") == "Settled"
        return found[0] if is_settled and len(space.pods("tiny")) == len(found) == 1 else None

    pod = wait_until("the replica in two parts", is_rolled, timeout_seconds=180)
    assert await answers(space) == whole
    name = pod["metadata"]["name"]
    kill = ("exec", "-n", space.name, name, "-c", "engine", "--", "python", "-c", KILL_RANK)
    assert len(space.cluster.kubectl(*kill).stdout.split()) == 1

    def is_back() -> Object | None:
        (container,) = space.pods("tiny")[0]["status"]["containerStatuses"]
        is_again = container["restartCount"] == 1 and container["ready"]
        return dict(container) if is_again else None

    ended = wait_until("the restarted container", is_back, timeout_seconds=120)["lastState"]["terminated"]
    assert ended["exitCode"] == 4
    space.wait_ready("tiny")
    assert await answers(space) == whole


def _num_gpus(pod: Object) -> int:
    limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
    return int(limits.get("nvidia.com/gpu", 0))


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

"""The pod template of the spec's revision: one engine container, run with as few rights as it needs."""

import math
from collections.abc import Mapping
from typing import Final

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest
from tidemill_operator.spec import ServiceSpec

USER_ID: Final = 65532
STARTUP_PERIOD_SECONDS: Final = 2
GRACE_AFTER_DRAIN_SECONDS: Final = 20
# An engine that hangs has no streams worth waiting for.
GRACE_AFTER_FAILED_PROBE_SECONDS: Final = 30
TERMINATION_LOG: Final = "/dev/termination-log"
GPU_RESOURCE_SUFFIX: Final = "/gpu"


def build_pod_template(context: Context) -> Manifest:
    """Build the template as this version of the operator would have it."""
    spec = context.spec
    return {
        "metadata": {
            "labels": names.pod_labels(context.name, spec.revision),
            "annotations": {"kubectl.kubernetes.io/default-container": names.ENGINE_CONTAINER},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": spec.drain_timeout_seconds + GRACE_AFTER_DRAIN_SECONDS,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_engine_container(context)],
            "volumes": _volumes(context),
        },
    }


def engine_args(spec: ServiceSpec) -> list[str]:
    """Write the engine's command line; what the person added comes last and so wins."""
    args = [
        "serve",
        spec.model.uri,
        "--served-model-name",
        *spec.model.served_names,
        "--host",
        "0.0.0.0",  # noqa: S104 - a pod's own address is what Services reach
        "--port",
        str(names.ENGINE_PORT),
        "--admin-host",
        "0.0.0.0",  # noqa: S104 - guarded by the token
        "--admin-port",
        str(names.ENGINE_ADMIN_PORT),
        "--admin-token-file",
        names.ADMIN_TOKEN_FILE,
        "--drain-timeout",
        str(spec.drain_timeout_seconds),
        "--termination-log",
        TERMINATION_LOG,
    ]
    optional: Mapping[str, str | int | None] = {
        "--dtype": spec.engine.dtype,
        "--max-model-len": spec.engine.max_model_len,
        "--max-num-seqs": spec.engine.max_num_seqs,
        "--max-num-batched-tokens": spec.engine.max_num_batched_tokens,
        "--block-size": spec.engine.block_size,
    }
    for flag, value in optional.items():
        if value is not None:
            args += [flag, str(value)]
    return [*args, *spec.engine.args]


def wants_gpu(spec: ServiceSpec) -> bool:
    """Tell whether a replica asks for a GPU of any vendor."""
    asked = {**(spec.resources.get("requests") or {}), **(spec.resources.get("limits") or {})}
    return any(name.endswith(GPU_RESOURCE_SUFFIX) for name in asked)


def _engine_container(context: Context) -> Manifest:
    spec = context.spec
    container: Manifest = {
        "name": names.ENGINE_CONTAINER,
        "image": spec.engine.image or context.engine_image,
        "command": ["tidemill-engine"],
        "args": engine_args(spec),
        "env": _environment(spec),
        "ports": [
            {"name": names.ENGINE_PORT_NAME, "containerPort": names.ENGINE_PORT, "protocol": "TCP"},
            {
                "name": names.ENGINE_ADMIN_PORT_NAME,
                "containerPort": names.ENGINE_ADMIN_PORT,
                "protocol": "TCP",
            },
        ],
        "startupProbe": {
            **_probe(names.HEALTH_READY_PATH, period_seconds=STARTUP_PERIOD_SECONDS),
            "failureThreshold": math.ceil(spec.model.load_timeout_seconds / STARTUP_PERIOD_SECONDS),
            "terminationGracePeriodSeconds": GRACE_AFTER_FAILED_PROBE_SECONDS,
        },
        "readinessProbe": {**_probe(names.HEALTH_READY_PATH, period_seconds=5), "failureThreshold": 2},
        "livenessProbe": {
            **_probe(names.HEALTH_LIVE_PATH, period_seconds=10),
            "failureThreshold": 3,
            "terminationGracePeriodSeconds": GRACE_AFTER_FAILED_PROBE_SECONDS,
        },
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
            {"name": "admin-token", "mountPath": names.ADMIN_TOKEN_DIRECTORY, "readOnly": True},
        ],
    }
    if wants_gpu(spec):
        container["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    if spec.resources:
        container["resources"] = {key: dict(value) for key, value in spec.resources.items()}
    return container


def _environment(spec: ServiceSpec) -> list[Manifest]:
    written = [dict(entry) for entry in spec.engine.env]
    if any(entry["name"] == "HOME" for entry in written):
        return written
    return [{"name": "HOME", "value": "/tmp"}, *written]  # noqa: S108


def _probe(path: str, *, period_seconds: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": names.ENGINE_PORT_NAME},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
    }


def _volumes(context: Context) -> list[Manifest]:
    token = {"secretName": names.admin_secret_name(context.name), "defaultMode": 0o440}
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}, {"name": "admin-token", "secret": token}]
    if wants_gpu(context.spec):
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return volumes

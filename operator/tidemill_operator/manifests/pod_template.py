"""The pod template of the spec's revision: one engine container, run with as few rights as it needs.

What the person wrote under spec.template is laid over it; their own containers become native sidecars, which
start before the engine and end after it, so that a draining engine is never without them.
"""

import math
from typing import Final

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest
from tidemill_operator.manifests.engine_args import TERMINATION_LOG, engine_args
from tidemill_operator.manifests.merge import merge
from tidemill_operator.manifests.model_files import ModelFiles, arrange_model
from tidemill_operator.spec import ServiceSpec

USER_ID: Final = 65532
STARTUP_PERIOD_SECONDS: Final = 2
GRACE_AFTER_DRAIN_SECONDS: Final = 20
# An engine that hangs has no streams worth waiting for.
GRACE_AFTER_FAILED_PROBE_SECONDS: Final = 30
# NCCL keeps its buffers between the GPUs of a pod there; a container's own /dev/shm has 64 MiB.
SHARED_MEMORY_GIB_PER_GPU: Final = 1
LEAST_SHARED_MEMORY_GIB: Final = 2


def build_pod_template(context: Context) -> Manifest:
    """Build the template as this version of the operator would have it."""
    template = merge(_own_template(context), context.spec.template)
    return _with_sidecars(template)


def _own_template(context: Context) -> Manifest:
    spec = context.spec
    engine = _engine_container(context)
    files = arrange_model(context, engine)
    engine["args"] = engine_args(spec, files.engine_uri)
    engine["volumeMounts"] += files.mounts
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.drain_timeout_seconds + GRACE_AFTER_DRAIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": _spread(context),
        "containers": [engine],
        "volumes": [*_volumes(context), *files.volumes],
    }
    return {
        "metadata": {
            "labels": {**context.propagated_labels, **names.pod_labels(context.name, spec.revision)},
            "annotations": {"kubectl.kubernetes.io/default-container": names.ENGINE_CONTAINER},
        },
        "spec": {**pod, **_optional(files)},
    }


def _optional(files: ModelFiles) -> Manifest:
    """Give the parts that only some sources need."""
    parts = {"initContainers": list(files.init_containers), "imagePullSecrets": list(files.pull_secrets)}
    return {key: value for key, value in parts.items() if value}


def _with_sidecars(template: Manifest) -> Manifest:
    """Move containers other than the engine's beside it, as native sidecars."""
    pod = template["spec"]
    beside = [c for c in pod["containers"] if c["name"] != names.ENGINE_CONTAINER]
    if not beside:
        return template
    before = [*pod.get("initContainers", []), *({**c, "restartPolicy": "Always"} for c in beside)]
    engine = [c for c in pod["containers"] if c["name"] == names.ENGINE_CONTAINER]
    return {**template, "spec": {**pod, "initContainers": before, "containers": engine}}


def _spread(context: Context) -> list[Manifest]:
    """Spread a revision's replicas over zones and nodes as far as that keeps nothing from running."""
    labels = names.revision_selector_labels(context.name, context.spec.revision)
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]


def _engine_container(context: Context) -> Manifest:
    spec = context.spec
    container: Manifest = {
        "name": names.ENGINE_CONTAINER,
        "image": spec.engine.image or context.engine_image,
        "command": ["tidemill-engine"],
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
    if spec.num_gpus:
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
    gpus = context.spec.num_gpus
    if gpus:
        gibibytes = max(LEAST_SHARED_MEMORY_GIB, SHARED_MEMORY_GIB_PER_GPU * gpus)
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{gibibytes}Gi"}})
    return volumes

"""How a model's files reach the engine: the URI it is given, volumes, mounts, the container that downloads.

Pure. Knows one arrangement per source. The container that downloads alone has the credentials; the engine
mounts what it made, read-only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from tidemill_operator import names
from tidemill_operator.engine_spec import ModelSpec
from tidemill_operator.manifests.context import Context, Manifest
from tidemill_operator.model_source import ClaimSource, DownloadSource, EngineSource, ImageSource

MODELS_VOLUME: Final = "models"
MODELS_DIRECTORY: Final = "/models"
LINK_VOLUME: Final = "model-link"
LINK_DIRECTORY: Final = "/var/run/tidemill/model"
LINK: Final = f"{LINK_DIRECTORY}/current"

# What a Secret may hold for each source, and whether it must.
SECRET_KEYS: Final[Mapping[str, Mapping[str, bool]]] = {
    "hf": {"HF_TOKEN": True},
    "s3": {"AWS_ACCESS_KEY_ID": True, "AWS_SECRET_ACCESS_KEY": True, "AWS_SESSION_TOKEN": False},
    "gs": {"GOOGLE_SERVICE_ACCOUNT_KEY": True},
}


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """What a pod needs for its model; nothing where the engine finds it by itself."""

    engine_uri: str
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()
    init_containers: tuple[Manifest, ...] = ()
    pull_secrets: tuple[Manifest, ...] = ()


def arrange_model(context: Context, container: Manifest) -> ModelFiles:
    """Arrange the model's files around an engine container, of which only image and rights are taken."""
    model = context.spec.model
    match model.source:
        case EngineSource(uri=uri):
            return ModelFiles(engine_uri=uri)
        case ClaimSource(claim=claim, path=path):
            volume = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
            return _mounted(volume, path)
        case ImageSource(reference=reference, path=path):
            secret = model.secret_name
            files = _mounted({"image": {"reference": reference}}, path)
            return files if secret is None else _with_pull_secret(files, secret)
        case DownloadSource() as source:
            return _downloaded(context, source, container)


def _mounted(volume: Manifest, path: str) -> ModelFiles:
    return ModelFiles(
        engine_uri=f"file://{quote(f'{MODELS_DIRECTORY}/{path}'.rstrip('/'))}",
        volumes=({"name": MODELS_VOLUME, **volume},),
        mounts=(_mount(MODELS_VOLUME, MODELS_DIRECTORY, is_read_only=True),),
    )


def _with_pull_secret(files: ModelFiles, secret: str) -> ModelFiles:
    return ModelFiles(
        engine_uri=files.engine_uri,
        volumes=files.volumes,
        mounts=files.mounts,
        pull_secrets=({"name": secret},),
    )


def _downloaded(context: Context, source: DownloadSource, container: Manifest) -> ModelFiles:
    """Download into the cache volume, or one of the pod's own, and lead the engine there by a link."""
    claim = {"claimName": names.cache_claim_name(context.name)}
    cached: Manifest = {"emptyDir": {}}
    if context.spec.model.cache is not None:
        cached = {"persistentVolumeClaim": claim}
    return ModelFiles(
        engine_uri=f"file://{LINK}",
        volumes=({"name": MODELS_VOLUME, **cached}, {"name": LINK_VOLUME, "emptyDir": {}}),
        mounts=(
            _mount(MODELS_VOLUME, MODELS_DIRECTORY, is_read_only=True),
            _mount(LINK_VOLUME, LINK_DIRECTORY, is_read_only=True),
        ),
        init_containers=(_download_container(context, source, container),),
    )


def _download_container(context: Context, source: DownloadSource, engine: Manifest) -> Manifest:
    model = context.spec.model
    return {
        "name": names.DOWNLOAD_CONTAINER,
        "image": engine["image"],
        "command": ["tidemill-engine"],
        "args": _download_args(context, source),
        "env": [{"name": "HOME", "value": "/tmp"}, *_secret_environment(model, source)],  # noqa: S108
        "ports": [
            {"name": "progress", "containerPort": names.ENGINE_ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        },
        "terminationMessagePath": engine["terminationMessagePath"],
        "terminationMessagePolicy": engine["terminationMessagePolicy"],
        "securityContext": engine["securityContext"],
        "volumeMounts": [
            *(mount for mount in engine["volumeMounts"] if mount["name"] in {"tmp", "admin-token"}),
            _mount(MODELS_VOLUME, MODELS_DIRECTORY),
            _mount(LINK_VOLUME, LINK_DIRECTORY),
        ],
    }


def _download_args(context: Context, source: DownloadSource) -> list[str]:
    model, endpoint = context.spec.model, context.settings.endpoint_of(source.scheme)
    args = ["download", source.uri, "--directory", MODELS_DIRECTORY, "--link", LINK]
    args += ["--timeout", str(model.load_timeout_seconds)]
    args += ["--progress-host", "0.0.0.0", "--progress-port", str(names.ENGINE_ADMIN_PORT)]  # noqa: S104
    args += ["--progress-token-file", names.ADMIN_TOKEN_FILE]
    if model.revision is not None:
        args += ["--revision", model.revision]
    if endpoint is not None:
        args += ["--endpoint", endpoint]
    return args


def _secret_environment(model: ModelSpec, source: DownloadSource) -> list[Manifest]:
    """Take only the keys that are known, each from the Secret, so that none is ever in a manifest."""
    if model.secret_name is None:
        return []
    entries = []
    for key, is_required in SECRET_KEYS[source.scheme].items():
        reference: Manifest = {"name": model.secret_name, "key": key}
        if not is_required:
            reference["optional"] = True
        entries.append({"name": key, "valueFrom": {"secretKeyRef": reference}})
    return entries


def _mount(volume: str, path: str, *, is_read_only: bool = False) -> Manifest:
    mount: Manifest = {"name": volume, "mountPath": path}
    return {**mount, "readOnly": True} if is_read_only else mount

"""What a person wrote under spec.model and spec.engine, as frozen values.

Pure. Knows those fields and their defaults. Refuses to know the engine's flags (`manifests.engine_args`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidemill_operator.errors import InvalidSpec
from tidemill_operator.fields import parse_quantity, whole_seconds
from tidemill_operator.model_source import DownloadSource, ImageSource, ModelSource, parse_source

DEFAULT_LOAD_TIMEOUT_SECONDS: Final = 1800
SLOW_BYTES_PER_SECOND: Final = 50_000_000
DEFAULT_ACCESS_MODES: Final = ("ReadWriteOnce",)
DEFAULT_WATERMARKS: Final = (90, 70, 95)

Raw = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """A volume that keeps downloads for all replicas and for the next pod."""

    size: str
    storage_class_name: str | None = None
    access_modes: tuple[str, ...] = DEFAULT_ACCESS_MODES


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Which model is served, under which names, and how it gets to its replicas."""

    uri: str
    served_names: tuple[str, ...]
    load_timeout_seconds: int
    source: ModelSource
    revision: str | None = None
    secret_name: str | None = None
    cache: CacheSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Watermarks:
    """Shares of the KV cache in percent at which admission stops, opens again and prompts pause."""

    high_percent: int
    low_percent: int
    critical_percent: int


@dataclass(frozen=True, kw_only=True)
class KvCacheSpec:
    """The paged KV cache; what is None is the engine's own choice."""

    block_size: int | None = None
    memory_utilization_percent: int | None = None
    swap_space_bytes: int | None = None
    watermarks: Watermarks | None = None


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """How the engine runs; what is None is the engine's own choice."""

    image: str | None = None
    args: tuple[str, ...] = ()
    env: tuple[Raw, ...] = ()
    dtype: str | None = None
    quantization: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    scheduling_policy: str | None = None
    kv_cache: KvCacheSpec = field(default_factory=KvCacheSpec)


def parse_model(raw: Raw, name: str) -> ModelSpec:
    """Read spec.model of the service with that name."""
    uri = raw.get("uri")
    if not isinstance(uri, str) or not uri:
        raise InvalidSpec("spec.model.uri", "is required, for example builtin://smollm2-135m")
    cache = _parse_cache(raw.get("cache"))
    load_timeout = _load_timeout_of_size(cache)
    if "loadTimeout" in raw:
        load_timeout = whole_seconds("spec.model.loadTimeout", raw["loadTimeout"])
    if load_timeout < 1:
        raise InvalidSpec("spec.model.loadTimeout", "must be at least 1s")
    model = ModelSpec(
        uri=uri,
        served_names=tuple(raw.get("servedNames") or (name,)),
        load_timeout_seconds=load_timeout,
        source=parse_source(uri),
        revision=raw.get("revision"),
        secret_name=(raw.get("secretRef") or {}).get("name"),
        cache=cache,
    )
    _check_fits_source(model)
    return model


def _load_timeout_of_size(cache: CacheSpec | None) -> int:
    """Give a model that needs much room the time to come in over a slow connection."""
    if cache is None:
        return DEFAULT_LOAD_TIMEOUT_SECONDS
    num_bytes = parse_quantity("spec.model.cache.size", cache.size)
    return DEFAULT_LOAD_TIMEOUT_SECONDS + num_bytes // SLOW_BYTES_PER_SECOND


def parse_engine(raw: Raw) -> EngineSpec:
    """Read spec.engine."""
    return EngineSpec(
        image=raw.get("image"),
        args=tuple(raw.get("args") or ()),
        env=tuple(raw.get("env") or ()),
        dtype=raw.get("dtype"),
        quantization=raw.get("quantization"),
        max_model_len=raw.get("maxModelLen"),
        max_num_seqs=raw.get("maxNumSeqs"),
        max_num_batched_tokens=raw.get("maxNumBatchedTokens"),
        scheduling_policy=raw.get("schedulingPolicy"),
        kv_cache=_parse_kv_cache(raw.get("kvCache") or {}),
    )


def _parse_kv_cache(raw: Raw) -> KvCacheSpec:
    swap = raw.get("swapSpace")
    return KvCacheSpec(
        block_size=raw.get("blockSize"),
        memory_utilization_percent=raw.get("memoryUtilizationPercent"),
        swap_space_bytes=None if swap is None else parse_quantity("spec.engine.kvCache.swapSpace", swap),
        watermarks=_parse_watermarks(raw.get("watermarks")),
    )


def _parse_watermarks(raw: Raw | None) -> Watermarks | None:
    if not raw:
        return None
    high, low, critical = DEFAULT_WATERMARKS
    marks = Watermarks(
        high_percent=raw.get("highPercent", high),
        low_percent=raw.get("lowPercent", low),
        critical_percent=raw.get("criticalPercent", critical),
    )
    if not 0 < marks.low_percent < marks.high_percent < marks.critical_percent <= 100:
        raise InvalidSpec("spec.engine.kvCache.watermarks", "must rise from low over high to critical")
    return marks


def _parse_cache(raw: Raw | None) -> CacheSpec | None:
    if raw is None:
        return None
    size = raw.get("size")
    if size is None:
        raise InvalidSpec("spec.model.cache.size", "is required, for example 20Gi")
    parse_quantity("spec.model.cache.size", size)
    return CacheSpec(
        size=str(size),
        storage_class_name=raw.get("storageClassName"),
        access_modes=tuple(raw.get("accessModes") or DEFAULT_ACCESS_MODES),
    )


def _check_fits_source(model: ModelSpec) -> None:
    """Refuse fields that would mean nothing for the model's source."""
    is_downloaded = isinstance(model.source, DownloadSource)
    if model.revision is not None and not model.uri.startswith("hf://"):
        raise InvalidSpec("spec.model.revision", "is for hf:// models; others name a version in their URI")
    if model.cache is not None and not is_downloaded:
        raise InvalidSpec("spec.model.cache", "keeps downloads: it is for hf://, s3:// and gs:// models")
    if model.secret_name is not None and not (is_downloaded or isinstance(model.source, ImageSource)):
        raise InvalidSpec("spec.model.secretRef", "is for hf://, s3://, gs:// and oci:// models")

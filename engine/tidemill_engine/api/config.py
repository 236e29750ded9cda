"""What the API process is told at its start, as small frozen values; a bad one raises with field and value.

Knows limits and defaults. Flags and environment are read in `__main__` alone.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from tidemill_engine.api.protocol import SamplingDefaults
from tidemill_engine.config import CoreConfig
from tidemill_engine.errors import InvalidConfig

MAX_PORT = 65535


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    if not condition:
        raise InvalidConfig(f"{name} must be {wanted}, not {value!r}", param=name)


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """Where the OpenAI server listens and what it accepts. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = field(default=None, repr=False)
    api_keys_file: Path | None = None
    is_trusting_tenant_headers: bool = False
    """Whoever reaches this server may name tenants and priority classes: it is a gateway."""
    max_body_bytes: int = 8 * 1024 * 1024
    read_timeout_seconds: float = 60.0
    write_timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        _require(0 <= self.port <= MAX_PORT, "port", self.port, f"between 0 and {MAX_PORT}")
        _require(
            1024 <= self.max_body_bytes <= 1 << 30, "max_body_bytes", self.max_body_bytes, "1 KiB to 1 GiB"
        )
        _require(self.api_key is None or len(self.api_key) > 0, "api_key", "", "a non-empty string")


@dataclass(frozen=True, kw_only=True)
class AdminConfig:
    """Where the admin surface listens; without a token it may be reached from this machine only."""

    host: str = "127.0.0.1"
    port: int = 8001
    token_file: Path | None = None

    def __post_init__(self) -> None:
        _require(0 <= self.port <= MAX_PORT, "admin_port", self.port, f"between 0 and {MAX_PORT}")
        wanted = "a loopback address unless --admin-token-file is given"
        _require(self.token_file is not None or is_loopback(self.host), "admin_host", self.host, wanted)


@dataclass(frozen=True, kw_only=True)
class DrainConfig:
    """How long a draining engine still accepts, and how long it lets streams finish."""

    grace_seconds: float = 5.0
    timeout_seconds: float = 300.0

    def __post_init__(self) -> None:
        _require(0 <= self.grace_seconds <= 3600, "drain_grace", self.grace_seconds, "0 to 3600 s")
        _require(0 <= self.timeout_seconds <= 86400, "drain_timeout", self.timeout_seconds, "0 to 86400 s")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Everything that `tidemill-engine serve` was asked for."""

    core: CoreConfig
    served_model_names: tuple[str, ...]
    http: HttpConfig = field(default_factory=HttpConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    drain: DrainConfig = field(default_factory=DrainConfig)
    max_queued_requests: int = 1024
    max_num_queued_tokens: int | None = None
    is_strict_max_tokens: bool = False
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    termination_log: Path | None = None
    niceness: int = 0
    """How much lower than the core's this process's priority is."""

    def __post_init__(self) -> None:
        names = self.served_model_names
        _require(bool(names) and all(names), "served_model_name", names, "at least one non-empty name")
        queued = self.max_queued_requests
        _require(0 <= queued <= 1_000_000, "max_queued_requests", queued, "between 0 and 1000000")
        tokens = self.max_num_queued_tokens
        _require(tokens is None or tokens >= 1, "max_num_queued_tokens", tokens, ">= 1")
        _require(0 <= self.niceness <= 19, "niceness", self.niceness, "between 0 and 19")

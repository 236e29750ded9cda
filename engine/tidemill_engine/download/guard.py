"""Which addresses a download may connect to, so that no URI or redirect reaches into cluster or cloud.

Knows addresses and one exception: the endpoint that the administrator set, and what it redirects to, may be
private. Metadata services, link-local and special addresses are forbidden whatever is set. The resolver
checks what a name resolves to at the moment of connecting, so that a name can't change in between.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp.abc import AbstractResolver
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from tidemill_engine.download.errors import DownloadError, Failure

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "100.100.100.200", "fd00:ec2::254", "168.63.129.16")
)


@dataclass(frozen=True, kw_only=True)
class AddressPolicy:
    """What is allowed; `endpoint` is the administrator's own, None where the public services are used."""

    endpoint: URL | None = None

    def check_url(self, url: URL) -> None:
        """Raise unless the URL's scheme, form and literal address are allowed."""
        schemes = {"https"} if self.endpoint is None else {"https", self.endpoint.scheme}
        if url.scheme not in schemes or not url.host or url.user is not None:
            raise _forbidden(f"{url.scheme}://{url.host}", "the scheme or form is not allowed")
        try:
            address = ipaddress.ip_address(url.host)
        except ValueError:
            return
        self.check_address(url.host, address)

    def check_address(self, host: str, address: Address) -> None:
        """Raise unless a host at that address may be connected to."""
        plain = _plain(address)
        if plain in _METADATA or plain.is_link_local or plain.is_multicast or plain.is_unspecified:
            raise _forbidden(host, f"{plain} is a metadata, link-local or special address")
        if plain.is_loopback and not self._is_endpoint(host):
            raise _forbidden(host, f"{plain} is the pod itself")
        if not plain.is_global and self.endpoint is None:
            raise _forbidden(host, f"{plain} is a private address")

    def _is_endpoint(self, host: str) -> bool:
        return self.endpoint is not None and self.endpoint.host == host


class GuardedResolver(AbstractResolver):
    """Resolves names and refuses what may not be connected to."""

    def __init__(self, policy: AddressPolicy, inner: AbstractResolver | None = None) -> None:
        self._policy = policy
        self._inner = inner or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a name; one forbidden address among several is reason enough to refuse it."""
        found = await self._inner.resolve(host, port, family)
        for result in found:
            self._policy.check_address(host, ipaddress.ip_address(result["host"].partition("%")[0]))
        return found

    async def close(self) -> None:
        """Release the inner resolver."""
        await self._inner.close()


def _plain(address: Address) -> Address:
    """Unwrap an IPv4 address that is written as an IPv6 one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _forbidden(where: str, why: str) -> DownloadError:
    return DownloadError(Failure.FORBIDDEN_ADDRESS, f"a download may not connect to {where}: {why}")

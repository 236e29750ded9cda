"""Which addresses may be connected to, literally or behind a name."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver
from yarl import URL

from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.guard import AddressPolicy, GuardedResolver

PUBLIC = AddressPolicy()
OWN = AddressPolicy(endpoint=URL("http://minio.storage.svc:9000"))


class Names(AbstractResolver):
    """A resolver that knows what it is told."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[Any]:
        return [{"hostname": host, "host": a, "port": port, "family": family} for a in self._addresses]

    async def close(self) -> None:
        return None


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.1.1",
        "fe80::1",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "127.0.0.1",
        "::1",
    ],
)
@pytest.mark.parametrize("policy", [PUBLIC, OWN], ids=["public", "own"])
def test_nobody_reaches_metadata_or_the_pod_itself(policy: AddressPolicy, address: str) -> None:
    with pytest.raises(DownloadError) as refused:
        policy.check_address("evil.example.com", ipaddress.ip_address(address))
    assert refused.value.failure is Failure.FORBIDDEN_ADDRESS


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "fd12::1"])
def test_private_addresses_are_for_the_administrators_endpoint(address: str) -> None:
    OWN.check_address("minio.storage.svc", ipaddress.ip_address(address))
    with pytest.raises(DownloadError):
        PUBLIC.check_address("internal.example.com", ipaddress.ip_address(address))


def test_public_addresses_are_free() -> None:
    PUBLIC.check_address("huggingface.co", ipaddress.ip_address("18.239.50.16"))
    PUBLIC.check_address("huggingface.co", ipaddress.ip_address("2600:9000:2000::1"))


@pytest.mark.parametrize(
    "url",
    ["http://huggingface.co/x", "ftp://huggingface.co/x", "https://10.0.0.1/", "https://u:p@hub.example/"],
)
def test_only_encrypted_urls_without_credentials_are_followed(url: str) -> None:
    with pytest.raises(DownloadError):
        PUBLIC.check_url(URL(url))


async def test_a_name_with_one_forbidden_address_among_others_is_refused() -> None:
    resolver = GuardedResolver(PUBLIC, Names("18.239.50.16", "169.254.169.254"))
    with pytest.raises(DownloadError):
        await resolver.resolve("rebinding.example.com", 443)


async def test_a_name_that_resolves_to_public_addresses_is_passed_on() -> None:
    found = await GuardedResolver(PUBLIC, Names("18.239.50.16")).resolve("huggingface.co", 443)
    assert [result["host"] for result in found] == ["18.239.50.16"]

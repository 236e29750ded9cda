"""The tests' ingress turns objects into nginx' configuration; no nginx here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.ingress import nginx_config

Object = dict[str, Any]


def make_ingress(
    host: str = "chat.test", class_name: str | None = "nginx", port: Object | None = None
) -> Object:
    backend = {"service": {"name": "chat", "port": port or {"number": 80}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    spec: Object = {"rules": [{"host": host, "http": {"paths": [path]}}]}
    if class_name:
        spec["ingressClassName"] = class_name
    return {"metadata": {"namespace": "team", "name": "chat"}, "spec": spec}


def make_service() -> Object:
    ports = [{"name": "http", "port": 80}, {"name": "admin", "port": 81}]
    return {"metadata": {"namespace": "team", "name": "chat"}, "spec": {"ports": ports}}


def make_slice(*addresses: str, ready: bool = True, namespace: str = "team") -> Object:
    labels = {"kubernetes.io/service-name": "chat"}
    return {
        "metadata": {"namespace": namespace, "name": "chat-1", "labels": labels},
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}} for address in addresses],
        "ports": [{"name": "http", "port": 8080}, {"name": "admin", "port": 8081}],
    }


def config(ingresses: list[Object], slices: list[Object]) -> str:
    return nginx_config(ingresses, [make_service()], slices, Path("/folder"))


def test_sends_a_host_to_the_ready_endpoints_of_the_named_port() -> None:
    text = config([make_ingress()], [make_slice("10.0.0.2", "10.0.0.1")])
    assert "upstream team_chat_80 { server 10.0.0.1:8080; server 10.0.0.2:8080; }" in text
    assert "server_name chat.test; location / { proxy_pass http://team_chat_80; }" in text


def test_finds_a_port_by_its_name() -> None:
    text = config([make_ingress(port={"name": "admin"})], [make_slice("10.0.0.1")])
    assert "server 10.0.0.1:8081;" in text


def test_answers_503_without_a_ready_endpoint() -> None:
    text = config([make_ingress()], [make_slice("10.0.0.1", ready=False)])
    assert "location / { return 503; }" in text
    assert "upstream" not in text


def test_ignores_endpoints_of_a_service_of_the_same_name_elsewhere() -> None:
    text = config([make_ingress()], [make_slice("10.0.0.1", namespace="other")])
    assert "10.0.0.1" not in text


def test_leaves_another_class_alone_and_takes_an_ingress_without_class() -> None:
    assert "chat.test" not in config([make_ingress(class_name="traefik")], [make_slice("10.0.0.1")])
    assert "chat.test" in config([make_ingress(class_name=None)], [make_slice("10.0.0.1")])


def test_streams_without_buffering() -> None:
    assert "proxy_buffering off;" in config([], [])

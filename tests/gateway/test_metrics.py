"""Series of services that are gone: read once more, then dropped."""

from __future__ import annotations

from prometheus_client import generate_latest

from tidemill_gateway.metrics import GatewayMetrics

CHAT, OLD = ("team", "chat"), ("team", "old")


def make_metrics() -> GatewayMetrics:
    metrics = GatewayMetrics()
    for namespace, service in (CHAT, OLD):
        ended = metrics.ended(namespace, service, 200)
        ended.requests.inc()
        ended.duration.observe(0.2)
        ended.first_byte.observe(0.1)
        metrics.placements.labels(namespace, service, "prefix").inc()
    metrics.ended("", "", 404).requests.inc()
    return metrics


def text_of(metrics: GatewayMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_a_gone_services_series_are_read_once_more_and_then_dropped() -> None:
    metrics = make_metrics()
    metrics.forget_gone({CHAT})
    assert 'service="old"' in text_of(metrics)
    metrics.forget_gone({CHAT})
    assert 'service="old"' not in text_of(metrics)
    assert (
        'tidemill_gateway_placements_total{namespace="team",reason="prefix",service="chat"} 1.0'
        in text_of(metrics)
    )
    assert 'tidemill_gateway_requests_total{code="404",namespace="",service=""} 1.0' in text_of(metrics)


def test_a_service_that_comes_back_counts_anew() -> None:
    metrics = make_metrics()
    for _ in range(2):
        metrics.forget_gone({CHAT})
    metrics.ended(*OLD, 200).requests.inc()
    metrics.forget_gone({CHAT, OLD})
    assert 'tidemill_gateway_requests_total{code="200",namespace="team",service="old"} 1.0' in text_of(
        metrics
    )


def test_a_service_that_is_there_keeps_its_series() -> None:
    metrics = make_metrics()
    metrics.forget_gone({CHAT})
    for _ in range(3):
        metrics.forget_gone({CHAT, OLD})
    assert 'service="old"' in text_of(metrics)

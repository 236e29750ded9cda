"""Series of services that are gone: kept until every scraper has read them, then dropped."""

from __future__ import annotations

from prometheus_client import generate_latest

from tidemill_gateway.metrics import KEEP_SECONDS, GatewayMetrics

CHAT, OLD = ("team", "chat"), ("team", "old")


class Clock:
    """A clock that tests move."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_metrics(clock: Clock | None = None) -> GatewayMetrics:
    metrics = GatewayMetrics(clock or Clock())
    for namespace, service in (CHAT, OLD):
        ended = metrics.ended(namespace, service, 200)
        ended.requests.inc()
        ended.duration.observe(0.2)
        ended.first_byte.observe(0.1)
        metrics.decisions.placements.labels(namespace, service, "prefix").inc()
    metrics.ended("", "", 404).requests.inc()
    return metrics


def text_of(metrics: GatewayMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_a_gone_services_series_are_kept_for_every_scraper_and_then_dropped() -> None:
    clock = Clock()
    metrics = make_metrics(clock)
    for _ in range(4):
        metrics.forget_gone({CHAT})
    clock.now += KEEP_SECONDS - 1
    metrics.forget_gone({CHAT})
    assert 'service="old"' in text_of(metrics), "however often it was read"
    clock.now += 1
    metrics.forget_gone({CHAT})
    assert 'service="old"' not in text_of(metrics)
    assert (
        'tidemill_gateway_placements_total{namespace="team",reason="prefix",service="chat"} 1.0'
        in text_of(metrics)
    )
    assert 'tidemill_gateway_requests_total{code="404",namespace="",service=""} 1.0' in text_of(metrics)


def test_a_service_that_comes_back_counts_anew() -> None:
    clock = Clock()
    metrics = make_metrics(clock)
    for _ in range(2):
        metrics.forget_gone({CHAT})
        clock.now += KEEP_SECONDS
    metrics.ended(*OLD, 200).requests.inc()
    metrics.forget_gone({CHAT, OLD})
    assert 'tidemill_gateway_requests_total{code="200",namespace="team",service="old"} 1.0' in text_of(
        metrics
    )


def test_a_service_that_is_there_again_keeps_its_series() -> None:
    clock = Clock()
    metrics = make_metrics(clock)
    metrics.forget_gone({CHAT})
    for known in ({CHAT, OLD}, {CHAT}):
        clock.now += KEEP_SECONDS
        metrics.forget_gone(known)
    assert 'service="old"' in text_of(metrics), "it is gone anew"

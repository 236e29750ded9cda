"""The gateway's inner side, for the kubelet, Prometheus and the operator: health, metrics and demand.

Knows whether the gateway may get traffic. Refuses to know requests; nothing here is
reachable from the public port.
"""

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tidemill_gateway.demand import DemandBook
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.state import ClusterState
from tidemill_gateway.traffic import Traffic
from tidemill_operator import names

STATE = web.AppKey("state", ClusterState)
METRICS = web.AppKey("metrics", GatewayMetrics)
TRAFFIC = web.AppKey("traffic", Traffic)
DEMAND = web.AppKey("demand", DemandBook)


def make_admin_app(
    *, state: ClusterState, traffic: Traffic, metrics: GatewayMetrics, demand: DemandBook
) -> web.Application:
    """Build the inner application."""
    app = web.Application()
    app[STATE] = state
    app[METRICS] = metrics
    app[TRAFFIC] = traffic
    app[DEMAND] = demand
    app.router.add_get(names.HEALTH_LIVE_PATH, live)
    app.router.add_get(names.HEALTH_READY_PATH, ready)
    app.router.add_get("/metrics", write_metrics)
    app.router.add_get("/demand", write_demand)
    return app


async def live(_request: web.Request) -> web.Response:
    """Say that the event loop turns."""
    return web.json_response({"status": "live"})


async def ready(request: web.Request) -> web.Response:
    """Say whether requests may be sent here: every first list has come, and the gateway is not going away."""
    if request.app[TRAFFIC].is_closing:
        return web.json_response({"status": "closing"}, status=503)
    state = request.app[STATE]
    if not state.is_complete:
        return web.json_response({"status": "starting", "missing": state.missing}, status=503)
    return web.json_response({"status": "ready"})


async def write_metrics(request: web.Request) -> web.Response:
    """Write all metrics; what describes the world is taken from it now."""
    metrics, world = request.app[METRICS], request.app[STATE].world
    metrics.view.known_services.set(len(world.services))
    metrics.view.ready_replicas.clear()
    metrics.view.held.clear()
    metrics.forget_gone({(service.namespace, service.name) for service in world.services.values()})
    for service in world.services_by_age:
        num_ready = sum(pod.takes_requests for pod in world.replicas(service))
        metrics.view.ready_replicas.labels(service.namespace, service.name).set(num_ready)
        num_held = request.app[DEMAND].of(service.key).held_requests
        metrics.view.held.labels(service.namespace, service.name).set(num_held)
    return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def write_demand(request: web.Request) -> web.Response:
    """Write what clients ask of each service here; a service that nobody asked for has zeros."""
    services = request.app[STATE].world.services.values()
    return web.json_response(request.app[DEMAND].report(service.key for service in services))

"""Command line of the operator; reads flags and environment and nothing else does."""

import argparse
import asyncio
import json
import logging
import os
import re
import socket
import sys
import uuid

from prometheus_client import disable_created_metrics

from tidemill_operator import names
from tidemill_operator.errors import OperatorError
from tidemill_operator.leader import LeaseTiming
from tidemill_operator.manifests import NetworkSettings, PodSettings
from tidemill_operator.runtime import Settings, run_operator


def main() -> None:
    """Run the command line."""
    arguments = make_parser().parse_args()
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        asyncio.run(run_operator(settings_of(arguments)))
    except (OperatorError, OSError) as error:
        sys.exit(f"tidemill-operator: {error}")


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of flags."""
    parser = argparse.ArgumentParser(prog="tidemill-operator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="look after all InferenceServices of a cluster")
    _add_place_flags(run)
    _add_lease_flags(run)
    run.add_argument(
        "--watch-namespace",
        action="append",
        default=[],
        help="look after the services of this namespace only; may be repeated",
    )
    _add_pod_flags(run)
    _add_network_flags(run)
    run.add_argument(
        "--recording-mebibytes",
        type=int,
        default=16,
        metavar="MIB",
        help="memory for the loads of the last hours, for tidemill-bench replay; 0 keeps none",
    )
    run.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error"), help="how much to log"
    )
    return parser


def _add_place_flags(run: argparse.ArgumentParser) -> None:
    """Add where the operator is, what it starts, and where it finds gateways and keys."""
    run.add_argument("--engine-image", required=True, help="image of services that name none")
    run.add_argument(
        "--operator-namespace",
        default=os.environ.get("POD_NAMESPACE", ""),
        help="where operator and gateway run; POD_NAMESPACE if absent",
    )
    run.add_argument(
        "--gateway-selector", default=names.DEFAULT_GATEWAY_SELECTOR, help="labels of gateway pods"
    )
    run.add_argument(
        "--keys-secret", default=names.GATEWAY_KEYS_SECRET, help="where gateways find the hashes of API keys"
    )
    run.add_argument("--http-host", default="0.0.0.0", help="address of health and metrics")  # noqa: S104
    run.add_argument("--http-port", type=int, default=names.OPERATOR_HTTP_PORT)
    run.add_argument("--lease-name", default=names.DEFAULT_LEASE_NAME)


def _add_lease_flags(run: argparse.ArgumentParser) -> None:
    """Add the election's timing."""
    timing = LeaseTiming()
    run.add_argument(
        "--lease-duration",
        type=int,
        default=timing.duration_seconds,
        metavar="SECONDS",
        help="how long a standby waits for a leader that says nothing",
    )
    run.add_argument(
        "--lease-renew-deadline",
        type=float,
        default=timing.renew_deadline_seconds,
        metavar="SECONDS",
        help="how long a leader goes on when it cannot renew its lease; less than --lease-duration",
    )
    run.add_argument(
        "--lease-retry",
        type=float,
        default=timing.retry_seconds,
        metavar="SECONDS",
        help="how often the lease is renewed or asked for",
    )


def _add_pod_flags(run: argparse.ArgumentParser) -> None:
    """Add what concerns pods: where models come from, and labels that are handed on."""
    for scheme, service in names.DOWNLOAD_SERVICES.items():
        run.add_argument(
            f"--{scheme}-endpoint", metavar="URL", help=f"{scheme}:// models come from here, not {service}"
        )
    run.add_argument(
        "--propagate-label",
        action="append",
        default=[],
        metavar="KEY",
        help="hand this label of a service on to its Deployments and pods, besides Kueue's; may be repeated",
    )


def _add_network_flags(run: argparse.ArgumentParser) -> None:
    """Add who may reach the pods."""
    run.add_argument(
        "--network-policies",
        action="store_true",
        help="make a NetworkPolicy for each service: only gateway and operator reach its replicas",
    )
    run.add_argument(
        "--operator-selector", default=names.DEFAULT_OPERATOR_SELECTOR, help="labels of operator pods"
    )
    run.add_argument(
        "--metrics-peer",
        action="append",
        default=[],
        metavar="JSON",
        help="a NetworkPolicyPeer that may read the engines' metrics; may be repeated",
    )


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Make settings of parsed flags; end with a message when one that is needed is missing."""
    if not arguments.operator_namespace:
        sys.exit("tidemill-operator: give --operator-namespace, or set POD_NAMESPACE")
    return Settings(
        engine_image=arguments.engine_image,
        operator_namespace=arguments.operator_namespace,
        identity=f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
        gateway_selector=arguments.gateway_selector,
        keys_secret=arguments.keys_secret,
        lease_name=arguments.lease_name,
        lease_timing=_lease_timing(arguments),
        http_host=arguments.http_host,
        http_port=arguments.http_port,
        watch_namespaces=tuple(arguments.watch_namespace),
        recording_bytes=arguments.recording_mebibytes * 2**20,
        pods=_pod_settings(arguments),
    )


def _pod_settings(arguments: argparse.Namespace) -> PodSettings:
    """Read what concerns pods; an endpoint that is no plain URL ends the process with a message."""
    given = {scheme: getattr(arguments, f"{scheme}_endpoint") for scheme in names.DOWNLOAD_SERVICES}
    for scheme, endpoint in given.items():
        if endpoint and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", endpoint):
            form = "must be like https://hub.example.com"
            sys.exit(f"tidemill-operator: --{scheme}-endpoint {form}, not {endpoint!r}")
    return PodSettings(
        endpoints={scheme: endpoint for scheme, endpoint in given.items() if endpoint},
        propagated_labels=(*names.PROPAGATED_LABELS, *arguments.propagate_label),
        network=_network_settings(arguments),
    )


def _network_settings(arguments: argparse.Namespace) -> NetworkSettings | None:
    """Read who may reach engine pods; None unless policies are asked for."""
    if not arguments.network_policies:
        return None
    try:
        peers = tuple(json.loads(peer) for peer in arguments.metrics_peer)
    except ValueError as error:
        sys.exit(f"tidemill-operator: --metrics-peer must be a NetworkPolicyPeer in JSON: {error}")
    return NetworkSettings(
        operator_namespace=arguments.operator_namespace,
        gateway_labels=names.labels_in(arguments.gateway_selector),
        operator_labels=names.labels_in(arguments.operator_selector),
        metrics_peers=peers,
    )


def _lease_timing(arguments: argparse.Namespace) -> LeaseTiming:
    """Make the election's timing; end with a message when its parts do not fit together."""
    try:
        return LeaseTiming(
            duration_seconds=arguments.lease_duration,
            renew_deadline_seconds=arguments.lease_renew_deadline,
            retry_seconds=arguments.lease_retry,
        )
    except ValueError as error:
        sys.exit(f"tidemill-operator: {error}")


if __name__ == "__main__":
    main()

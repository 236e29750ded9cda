"""Command line of the gateway; reads flags and nothing else does."""

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence

from prometheus_client import disable_created_metrics

from tidemill_gateway import event_loop
from tidemill_gateway.parts import MIB, ServerConfig
from tidemill_gateway.process import ProcessConfig, run
from tidemill_gateway.proxy import ProxyConfig
from tidemill_gateway.waiting_room import WaitingConfig
from tidemill_gateway.watch import Home
from tidemill_operator import names


def main() -> None:
    """Run the command line."""
    arguments = parse_arguments(sys.argv[1:])
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a series per series that nobody reads
    raise SystemExit(event_loop.run(run(config_from(arguments))))


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(prog="tidemill-gateway", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run_parser = commands.add_parser("run", help="route requests to InferenceServices")
    add = run_parser.add_argument
    add("--host", default="0.0.0.0", help="address of the public port")  # noqa: S104 - it serves other pods
    add("--port", type=_port, default=names.GATEWAY_PORT)
    add("--admin-host", default="0.0.0.0", help="address of the health and metrics port")  # noqa: S104
    add("--admin-port", type=_port, default=names.OPERATOR_HTTP_PORT)
    add(
        "--watch-namespace", action="append", default=[], metavar="NAMESPACE", help="repeatable; default: all"
    )
    add("--name", default=os.environ.get("POD_NAME") or socket.gethostname(), help="this gateway's own name")
    add("--max-body-bytes", type=_positive_int, default=8 * MIB, help="larger bodies get 413")
    add("--max-bodies-bytes", type=_positive_int, default=256 * MIB, help="of all at once; more get 429")
    add("--max-in-flight", type=_positive_int, default=4096, help="more requests at once get 429")
    add("--connect-timeout", type=_seconds, default=3.0, help="seconds to connect to a replica")
    add("--idle-timeout", type=_seconds, default=600.0, help="seconds a replica may send nothing before 504")
    add("--hold-timeout", type=_seconds, default=30.0, help="seconds to wait for a replica that is not there")
    add("--namespace", default=os.environ.get("POD_NAMESPACE"), help="where the gateways and their keys are")
    add("--gateway-selector", default=names.DEFAULT_GATEWAY_SELECTOR, help="labels of the gateways' pods")
    add("--keys-secret", default=names.GATEWAY_KEYS_SECRET, help="the Secret with the hashes of API keys")
    add("--shutdown-grace", type=_seconds, default=5.0, help="seconds to go on accepting after SIGTERM")
    add(
        "--shutdown-timeout",
        type=_seconds,
        default=300.0,
        help="seconds that streams have to finish after that",
    )
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser.parse_args(arguments)


def config_from(arguments: argparse.Namespace) -> ProcessConfig:
    """Compose the configuration."""
    return ProcessConfig(
        host=arguments.host,
        port=arguments.port,
        admin_host=arguments.admin_host,
        admin_port=arguments.admin_port,
        namespaces=tuple(dict.fromkeys(arguments.watch_namespace)),
        home=_home(arguments),
        shutdown_grace_seconds=arguments.shutdown_grace,
        shutdown_timeout_seconds=arguments.shutdown_timeout,
        server=ServerConfig(
            max_body_bytes=arguments.max_body_bytes,
            max_bodies_bytes=arguments.max_bodies_bytes,
            max_in_flight=arguments.max_in_flight,
            name=arguments.name,
            waiting=WaitingConfig(hold_seconds=arguments.hold_timeout),
            proxy=ProxyConfig(
                connect_timeout_seconds=arguments.connect_timeout, idle_timeout_seconds=arguments.idle_timeout
            ),
        ),
    )


def _home(arguments: argparse.Namespace) -> Home | None:
    if arguments.namespace is None:
        return None
    return Home(
        namespace=arguments.namespace,
        gateway_selector=arguments.gateway_selector,
        keys_secret=arguments.keys_secret,
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is no port")
    return port


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds


if __name__ == "__main__":
    main()

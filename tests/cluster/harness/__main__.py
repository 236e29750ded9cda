"""`python -m harness`: a test cluster for a person to keep around."""

from __future__ import annotations

import argparse
import logging
import sys

from harness import cluster, images
from harness.errors import HarnessError
from harness.layout import MAX_INDEX, Layout
from harness.shell import tell


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness", description=__doc__)
    parser.add_argument("--index", type=int, default=0, help="several clusters can run side by side")
    parser.add_argument("--verbose", action="store_true", help="log every command")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster")
    up.add_argument("--control-plane-only", action="store_true", help="no node, no pods")
    up.add_argument("--gpus", type=int, default=2, help="fake nvidia.com/gpu of the node")
    up.add_argument("--image", action="append", choices=sorted(images.TARGETS), default=[])
    commands.add_parser("down", help="end it and remove all of it")
    commands.add_parser("status", help="say which clusters run")
    commands.add_parser("build", help="install and build what a cluster needs")
    build = commands.add_parser("images", help="build images and load them into the cluster if it runs")
    build.add_argument("image", nargs="*", default=[])
    return parser


def _images(names: list[str], index: int) -> None:
    binaries = cluster.prepare(has_node=True)
    built = images.ensure_images(names or list(images.SLIM))
    if cluster.is_up(index):
        cluster.attach(index, binaries).load(built)


def _status() -> None:
    for index in range(MAX_INDEX + 1):
        layout = Layout.of(index)
        if layout.state.exists():
            state = "up" if cluster.is_up(index) else "stale (removed by the next up or down)"
            tell(f"cluster {index}: {state}; KUBECONFIG={layout.kubeconfig}")


def main() -> None:
    """Run one command."""
    arguments = _parser().parse_args()
    logging.basicConfig(level=logging.DEBUG if arguments.verbose else logging.WARNING)
    try:
        if arguments.command == "up":
            built = images.ensure_images(arguments.image)
            has_node = not arguments.control_plane_only
            cluster.up(arguments.index, has_node=has_node, gpus=arguments.gpus, images=built)
        elif arguments.command == "down":
            cluster.down(arguments.index)
        elif arguments.command == "status":
            _status()
        elif arguments.command == "build":
            cluster.prepare(has_node=True)
        else:
            _images(arguments.image, arguments.index)
    except HarnessError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()

"""Entry of the core process: `python -m tidemill_engine.core --fd N --heartbeat-fd M --config JSON`.

Started by the API process with both descriptors inherited; reads flags and nothing else does.
"""

from __future__ import annotations

import argparse
import socket
import sys

from tidemill_engine.config import CoreConfig
from tidemill_engine.core.process import run_core
from tidemill_engine.errors import InvalidConfig
from tidemill_engine.heartbeat import HeartbeatWriter
from tidemill_engine.ipc import FrameConnection
from tidemill_engine.messages import ApiFrame
from tidemill_engine.processes import set_up_core_process

EXIT_USAGE = 2


def main() -> None:
    """Run the core until it is told to stop."""
    parser = argparse.ArgumentParser(prog="python -m tidemill_engine.core", description=main.__doc__)
    parser.add_argument("--fd", type=int, required=True, help="connected AF_UNIX socket to the API process")
    parser.add_argument("--heartbeat-fd", type=int, required=True, help="shared memory for the deadline")
    parser.add_argument("--config", required=True, help="CoreConfig as JSON")
    arguments = parser.parse_args()
    try:
        config = CoreConfig.from_json(arguments.config)
    except InvalidConfig as error:
        print(error.message, file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from error
    set_up_core_process(config.log_level)
    connection = FrameConnection(socket.socket(fileno=arguments.fd), ApiFrame)
    raise SystemExit(run_core(config, connection, HeartbeatWriter(arguments.heartbeat_fd)))


if __name__ == "__main__":
    main()

"""Entry of every rank but the first: `python -m tidemill_engine.parallel --fd N --rank R --port P ...`.

Started by rank 0 with the descriptor inherited. Loads its part of the model and does what it is told.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
from typing import TYPE_CHECKING

from tidemill_engine.config import CoreConfig
from tidemill_engine.errors import ModelLoadError, PeerGone
from tidemill_engine.ipc import FrameConnection
from tidemill_engine.models.sharding import Shard
from tidemill_engine.parallel.membership import Membership
from tidemill_engine.parallel.orders import RankFailed, RankOrder, decode_step
from tidemill_engine.processes import (
    EXIT_CLEAN,
    EXIT_CORE_FAILED,
    EXIT_LOAD_FAILED,
    set_up_core_process,
)
from tidemill_engine.runner.load import load_runner

if TYPE_CHECKING:
    from tidemill_engine.runner.base import ModelRunner

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 60.0


def main() -> None:
    """Compute this rank's part until rank 0 is gone."""
    parser = argparse.ArgumentParser(prog="python -m tidemill_engine.parallel", description=main.__doc__)
    parser.add_argument("--fd", type=int, required=True, help="connected AF_UNIX socket to rank 0")
    parser.add_argument("--rank", type=int, required=True, help="this rank's number, from 1")
    parser.add_argument("--port", type=int, required=True, help="where the ranks meet, on 127.0.0.1")
    parser.add_argument("--config", required=True, help="CoreConfig as JSON")
    arguments = parser.parse_args()
    config = CoreConfig.from_json(arguments.config)
    set_up_core_process(config.log_level, f" rank {arguments.rank}")
    connection = FrameConnection(socket.socket(fileno=arguments.fd), RankOrder)
    shard = Shard(rank=arguments.rank, size=config.device.tensor_parallel_size)
    code = run_rank(config, connection, Membership(shard=shard, port=arguments.port))
    # The interpreter's own end would wait for exchanges with ranks that are gone.
    logging.shutdown()
    os._exit(code)


def run_rank(config: CoreConfig, connection: FrameConnection[RankOrder], membership: Membership) -> int:
    """Load and follow; return the exit code."""
    try:
        follow(load_runner(config, lambda _read, _total: None, membership), connection)
    except PeerGone:
        logger.info("rank 0 is gone; this rank ends, too")
        return EXIT_CLEAN
    except ModelLoadError as error:
        _tell(connection, RankFailed(reason=error.reason, message=error.message))
        return EXIT_LOAD_FAILED
    except Exception as error:
        logger.exception("this rank fails")
        said = f"rank {membership.shard.rank}: {type(error).__name__}: {error}"
        _tell(connection, RankFailed(reason="InternalError", message=said))
        return EXIT_CORE_FAILED
    return EXIT_CLEAN


def follow(runner: ModelRunner, connection: FrameConnection[RankOrder]) -> None:
    """Do what rank 0 does, in its order, until it is gone (`PeerGone`)."""
    while True:
        for order in connection.receive(_WAIT_SECONDS):
            if order.step is None:
                runner.sample(None)
            else:
                runner.launch(decode_step(order.step))


def _tell(connection: FrameConnection[RankOrder], failure: RankFailed) -> None:
    """Send the last words, if anyone is left to hear them."""
    try:
        connection.send(failure)
    except PeerGone:
        logger.warning("rank 0 is gone before it could hear: %s", failure.message)


if __name__ == "__main__":
    main()

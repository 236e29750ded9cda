"""The core process from start to end: tie to the parent, load, say ready, loop, say why it ends.

Knows exit codes and the order of things. 0: told to shut down, or the parent is gone; 3: the model can't be
loaded; 4: a fault of our own.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tidemill_engine.core.calibration import calibrate
from tidemill_engine.core.engine import EngineCore
from tidemill_engine.core.learning import Learning
from tidemill_engine.core.loop import CoreLoop
from tidemill_engine.errors import ModelLoadError, PeerGone
from tidemill_engine.kv import KVCacheManager, PrefixRoots
from tidemill_engine.messages import CoreFailed, CoreFrame, CoreReady, LoadProgress
from tidemill_engine.models.sharding import Shard
from tidemill_engine.parallel.lead import LeadRunner
from tidemill_engine.parallel.membership import Membership
from tidemill_engine.parallel.ranks import Ranks
from tidemill_engine.processes import EXIT_CLEAN, EXIT_CORE_FAILED, EXIT_LOAD_FAILED
from tidemill_engine.request import RequestLimits
from tidemill_engine.runner.load import load_runner
from tidemill_engine.scheduler import create_scheduler

if TYPE_CHECKING:
    from tidemill_engine.config import CoreConfig
    from tidemill_engine.heartbeat import HeartbeatWriter
    from tidemill_engine.ipc import FrameConnection
    from tidemill_engine.messages import ApiFrame
    from tidemill_engine.parallel.orders import RankFailed
    from tidemill_engine.runner.base import ModelRunner

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.5
MAX_COMPILING_SECONDS = 120.0
_SIMULATED = "sim://"
"""Models whose steps take a given time: there is nothing to calibrate."""


def run_core(config: CoreConfig, connection: FrameConnection[ApiFrame], heartbeat: HeartbeatWriter) -> int:
    """Load and serve; return the exit code."""
    try:
        started = time.monotonic()
        with ExitStack() as stack:
            runner = load_with_ranks(config, connection, stack)
            engine = make_engine(config, runner)
            connection.send(CoreFrame(messages=[_ready(config, runner, time.monotonic() - started)]))
            logger.info("ready after %.1f s: %s", time.monotonic() - started, runner.info)
            CoreLoop(engine, connection, heartbeat, time.monotonic).run()
    except PeerGone as gone:
        logger.info("%s; the core ends, too", gone.message)
    except ModelLoadError as error:
        logger.error("loading failed (%s): %s", error.reason, error.message)  # noqa: TRY400 - for users
        _tell(connection, CoreFailed(reason=error.reason, message=error.message))
        return EXIT_LOAD_FAILED
    except Exception as error:
        logger.exception("the core fails")
        _tell(connection, CoreFailed(reason="InternalError", message=f"{type(error).__name__}: {error}"))
        return EXIT_CORE_FAILED
    return EXIT_CLEAN


def load_with_ranks(
    config: CoreConfig, connection: FrameConnection[ApiFrame], stack: ExitStack
) -> ModelRunner:
    """Load the model, or this process's part of it beside other ranks, which end with the stack."""
    size = config.device.tensor_parallel_size
    report = ProgressReporter(connection)
    if size == 1:
        return load_runner(config, report)

    def give_up(failed: RankFailed) -> None:
        try:
            _tell(connection, CoreFailed(reason=failed.reason, message=failed.message))
        finally:
            os._exit(EXIT_CORE_FAILED)  # the main thread may wait for the dead for ever

    ranks = Ranks.start(config, give_up)
    stack.callback(ranks.close)
    runner = load_runner(
        config, report, Membership(shard=Shard(size=size), port=ranks.port, listener_fd=ranks.listener_fd)
    )
    return LeadRunner(runner, ranks)


def make_engine(config: CoreConfig, runner: ModelRunner) -> EngineCore:
    """Put scheduler and cache bookkeeping around a loaded model."""
    info = runner.info
    limits = RequestLimits(
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        max_cached_tokens=info.num_blocks * info.block_size,
        eos_token_ids=info.eos_token_ids,
    )
    kv = KVCacheManager(
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        num_rows=config.scheduler.max_num_seqs,
        max_tokens_per_row=limits.max_sequence_tokens,
        num_swap_blocks=info.num_swap_blocks,
        roots=PrefixRoots(os.urandom(32), config.model.uri) if _shares_prefixes(config) else None,
    )
    learning = Learning(config.scheduler.chunk_tokens)
    if not config.model.uri.startswith(_SIMULATED):
        if info.compiles_late:
            passing = Learning(config.scheduler.chunk_tokens)
            calibrate(config.scheduler, runner, limits, passing, time.monotonic, MAX_COMPILING_SECONDS)
        calibrate(config.scheduler, runner, limits, learning, time.monotonic)
    scheduler = create_scheduler(config.scheduler, kv, limits, learning.seams())
    return EngineCore(scheduler, runner, time.monotonic, seed=config.model.seed, learning=learning)


def _shares_prefixes(config: CoreConfig) -> bool:
    """Say whether blocks are found again; padded batches, the baselines, compute everything."""
    return config.cache.is_prefix_caching and config.scheduler.kind == "continuous"


class ProgressReporter:
    """Tells the API process how far loading is, at most twice a second."""

    def __init__(self, connection: FrameConnection[ApiFrame]) -> None:
        self._connection = connection
        self._last = float("-inf")

    def __call__(self, loaded_bytes: int, total_bytes: int) -> None:
        """Report, unless the last report is fresh and there is more to come."""
        now = time.monotonic()
        if now - self._last < _PROGRESS_SECONDS and loaded_bytes < total_bytes:
            return
        self._last = now
        progress = LoadProgress(loaded_bytes=loaded_bytes, total_bytes=total_bytes)
        self._connection.send(CoreFrame(messages=[progress]))


def _ready(config: CoreConfig, runner: ModelRunner, load_seconds: float) -> CoreReady:
    """Say what was loaded."""
    info = runner.info
    return CoreReady(
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        dtype=info.dtype,
        load_seconds=load_seconds,
        num_swap_blocks=info.num_swap_blocks,
    )


def _tell(connection: FrameConnection[ApiFrame], failure: CoreFailed) -> None:
    """Send the reason, if anyone is left to read it."""
    try:
        connection.send(CoreFrame(messages=[failure]))
    except PeerGone:
        logger.warning("nobody is left to hear why")

"""What one scheduler is made of, in one value. Knows nothing but the names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill_engine.kv import KVCacheManager
    from tidemill_engine.scheduler.admission import AdmissionGate
    from tidemill_engine.scheduler.block_shares import BlockShares
    from tidemill_engine.scheduler.compose import Composer
    from tidemill_engine.scheduler.preemption import Preemptor
    from tidemill_engine.scheduler.rows import RowTable
    from tidemill_engine.scheduler.sharing import PrefixSharing
    from tidemill_engine.scheduler.waiting import WaitingQueue


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The collaborators of one scheduler."""

    rows: RowTable
    kv: KVCacheManager
    queue: WaitingQueue
    gate: AdmissionGate
    shares: BlockShares
    sharing: PrefixSharing
    preemptor: Preemptor
    composer: Composer

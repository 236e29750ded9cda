"""Where prompts' beginnings were sent: a bounded memory of block hashes, the oldest forgotten first.

Pure. Knows hashes and replicas' UIDs. Refuses to know what the engines really keep; it is a guess that costs
a recomputed prompt when it is wrong. Each gateway has its own.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

MAX_BLOCKS: Final = 65_536
MAX_REPLICAS_PER_BLOCK: Final = 4


class PrefixIndex:
    """For each chained block hash, the replicas that were last sent a prompt with it."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._replicas: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def known_blocks(self, prefix: Sequence[bytes], uids: Collection[str]) -> dict[str, int]:
        """Count for each of some replicas how many leading blocks of a prompt it was sent before."""
        found: dict[str, int] = {}
        for number in range(len(prefix), 0, -1):
            for uid in self._replicas.get(prefix[number - 1], ()):
                if uid in uids and uid not in found:
                    found[uid] = number
            if len(found) == len(uids):
                break
        return found

    def learn(self, prefix: Sequence[bytes], uid: str) -> None:
        """Remember that a replica was sent a prompt."""
        for block in prefix:
            others = tuple(known for known in self._replicas.get(block, ()) if known != uid)
            self._replicas[block] = (uid, *others[: MAX_REPLICAS_PER_BLOCK - 1])
            self._replicas.move_to_end(block)
        while len(self._replicas) > self._max_blocks:
            self._replicas.popitem(last=False)

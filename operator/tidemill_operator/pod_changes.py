"""Carries out what a plan wants of single pods: labels, annotations, and a word to the engine.

Knows the order that loses nothing: out of routing first and then draining; serving again first and then back
into routing. Refuses to decide which pod.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from tidemill_operator.actions import EngineCall, PodChange
from tidemill_operator.api import Object, Place
from tidemill_operator.cluster import Cluster
from tidemill_operator.engine_admin import EngineAdmin
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.errors import ApiError
from tidemill_operator.model_progress import ModelProgress
from tidemill_operator.observed import PodView

logger = logging.getLogger(__name__)


class PodChanger:
    """Changes pods and talks to their engines."""

    def __init__(self, cluster: Cluster, engines: EngineAdmin) -> None:
        self._cluster = cluster
        self._engines = engines

    async def read(self, pods: Sequence[PodView], tokens: tuple[str, ...]) -> dict[str, EngineLoad | None]:
        """Ask pods' engines for their load, by UID."""
        return await self._engines.read(pods, tokens)

    async def read_progress(
        self, pods: Sequence[PodView], tokens: tuple[str, ...]
    ) -> dict[str, ModelProgress | None]:
        """Ask pods how far their model is, by UID."""
        return await self._engines.read_progress(pods, tokens)

    async def carry_out(self, namespace: str, changes: Iterable[PodChange], tokens: tuple[str, ...]) -> bool:
        """Make all changes at once; say whether all are made. A pod that is gone or replaced needs none."""
        return all(await asyncio.gather(*(self._change(namespace, change, tokens) for change in changes)))

    async def _change(self, namespace: str, change: PodChange, tokens: tuple[str, ...]) -> bool:
        if change.call is EngineCall.TAKE_BACK and not await self._engines.take_back(change.ip, tokens):
            logger.warning("pod %s/%s stays out of routing: its engine drains on", namespace, change.pod)
            return False
        place = Place(kind="Pod", namespace=namespace, name=change.pod)
        try:
            await self._cluster.patch_pod(place, _patch_of(change))
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                logger.info("pod %s/%s has gone meanwhile", namespace, change.pod)
                return True
            raise
        if change.call is EngineCall.DRAIN:
            await self._engines.drain(change.ip, tokens)
        return True


def _patch_of(change: PodChange) -> Object:
    """Write the change so that the API server refuses it for any pod but the one that was seen."""
    metadata: Object = {"uid": change.uid}
    if change.labels:
        metadata["labels"] = dict(change.labels)
    if change.annotations:
        metadata["annotations"] = dict(change.annotations)
    return {"metadata": metadata}

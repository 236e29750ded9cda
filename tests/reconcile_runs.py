"""Runs of a reconciler over one service with a host, on an API server made of a dictionary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from operator_builders import make_service
from operator_fakes import KEY, FakeApi
from tidemill_operator.queue import Outcome

if TYPE_CHECKING:
    from tidemill_operator.reconcile import Reconciler

HOST = {"routing": {"ingress": {"host": "chat.example.com"}}}


def make_api() -> FakeApi:
    """Return an API server that has the service and nothing else."""
    fake = FakeApi()
    fake.store(make_service(HOST))
    return fake


async def converge(api: FakeApi, reconciler: Reconciler) -> None:
    """Run until there is nothing more to do."""
    await reconciler.run(KEY)
    for _ in range(2):
        assert await reconciler.run(KEY) is Outcome.DONE

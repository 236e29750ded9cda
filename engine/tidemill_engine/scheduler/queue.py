"""Requests that wait, first come first served; a preempted one keeps its place.

Knows the order only. The key of a waiting request never changes, so a heap is enough.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill_engine.request import Request


class FifoQueue:
    """A heap by arrival; a removed request stays inside, marked, until it surfaces."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Request]] = []
        self._waiting: dict[str, int] = {}
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def num_tokens(self) -> int:
        """Return the tokens of all waiting requests together, as they were when they began to wait."""
        return self._num_tokens

    def push(self, request: Request) -> None:
        """Add a request."""
        heapq.heappush(self._heap, (request.order, request))
        self._waiting[request.request_id] = request.num_tokens
        self._num_tokens += request.num_tokens

    def peek(self) -> Request | None:
        """Return the next in turn without taking it."""
        while self._heap:
            request = self._heap[0][1]
            if request.request_id in self._waiting and not request.is_finished:
                return request
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Request:
        """Take the next in turn."""
        request = self.peek()
        if request is None:
            raise IndexError("nobody waits")
        heapq.heappop(self._heap)
        self._forget(request)
        return request

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        if request.request_id in self._waiting:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        """Stop counting a request."""
        self._num_tokens -= self._waiting.pop(request.request_id)

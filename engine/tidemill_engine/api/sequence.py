"""One sequence as the client sees it: text, usage and end, made from the tokens that the core sends.

Knows detokenizing and stop strings; does not know HTTP, the core's socket or the other siblings. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import msgspec

from tidemill_engine.api.detokenizer import Detokenizer
from tidemill_engine.api.stop import StopMatcher
from tidemill_engine.messages import RequestOutput, TokenLogprobs


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new in one sequence since the last delta; the last one carries `finish_reason`."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or one of the client's stop token ids; None for the model's own end."""
    error: str | None = None

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to show, as while a character is incomplete."""
        return not self.text and self.finish_reason is None and not self.logprobs


@dataclass
class _Pieces:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Sequence:
    """Folds one request's outputs into deltas; tokens after a stop string are neither shown nor counted."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: StopMatcher,
        *,
        min_tokens: int = 0,
        stop_token_ids: Collection[int] = (),
    ) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._min_tokens = min_tokens
        self._stop_token_ids = stop_token_ids
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.finish_reason: str | None = None

    @property
    def is_finished(self) -> bool:
        """Say whether the last delta has been made."""
        return self.finish_reason is not None

    def push(self, outputs: Iterable[RequestOutput]) -> Delta:
        """Fold everything that has come since the last call into one delta."""
        pieces = _Pieces()
        for output in outputs:
            if self.is_finished:
                break
            self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
            matched = self._push_tokens(output, pieces)
            if matched is not None:
                return self._finish(pieces, "stop", stop_reason=matched)
            if output.finish_reason is not None:
                return self._push_end(output, pieces)
        return _delta(pieces)

    def _push_tokens(self, output: RequestOutput, pieces: _Pieces) -> str | None:
        last = len(output.token_ids) - 1
        for i, token_id in enumerate(output.token_ids):
            self.num_output_tokens += 1
            pieces.token_ids.append(token_id)
            if i < len(output.logprobs):
                pieces.logprobs.append(output.logprobs[i])
            if i == last and output.stop_token_id == token_id and output.finish_reason == "stop":
                return None
            matched = self._show(self._detokenizer.push(token_id), pieces)
            if matched is not None:
                return matched
        return None

    def _show(self, text: str, pieces: _Pieces) -> str | None:
        if self._stop.is_idle or self.num_output_tokens < self._min_tokens:
            pieces.texts.append(text)
            return None
        result = self._stop.feed(text)
        pieces.texts.append(result.text)
        return result.matched

    def _push_end(self, output: RequestOutput, pieces: _Pieces) -> Delta:
        matched = self._show(self._detokenizer.flush(), pieces)
        if matched is not None:
            return self._finish(pieces, "stop", stop_reason=matched)
        pieces.texts.append(self._stop.flush())
        reason = output.finish_reason or "stop"
        token_id = output.stop_token_id if output.stop_token_id in self._stop_token_ids else None
        return self._finish(pieces, reason, stop_reason=token_id, error=output.error)

    def _finish(
        self, pieces: _Pieces, reason: str, *, stop_reason: str | int | None, error: str | None = None
    ) -> Delta:
        self.finish_reason = reason
        return _delta(pieces, finish_reason=reason, stop_reason=stop_reason, error=error)


def _delta(
    pieces: _Pieces,
    *,
    finish_reason: str | None = None,
    stop_reason: str | int | None = None,
    error: str | None = None,
) -> Delta:
    return Delta(
        text="".join(pieces.texts),
        token_ids=tuple(pieces.token_ids),
        logprobs=tuple(pieces.logprobs),
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        error=error,
    )

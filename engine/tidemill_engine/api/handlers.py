"""The OpenAI endpoints: parse, tokenize, generate, answer whole or as a stream.

Knows HTTP and the order of these steps; each step itself lives elsewhere. A handler is cancelled when its
client goes away, which ends the generation.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass

import msgspec
from aiohttp import web

from tidemill_engine.api.context import ApiContext, LoadedModel
from tidemill_engine.api.generation import Generation, PreparedPrompt
from tidemill_engine.api.http_errors import INTERNAL, RequestTimeoutError, UnsupportedMediaTypeError, to_http
from tidemill_engine.api.middleware import BEARER
from tidemill_engine.api.protocol import (
    CompletionRequest,
    GenerationOptions,
    Prompt,
    decode_body,
    fit_to_context,
    parse_chat,
    parse_completion,
)
from tidemill_engine.api.protocol.fields import Fields
from tidemill_engine.api.protocol.terms import ServiceTerms, parse_terms
from tidemill_engine.api.responses import (
    ChatFormat,
    CompletionFormat,
    Envelope,
    ResponseFormat,
    Usage,
    model_object,
)
from tidemill_engine.api.sequence import Delta
from tidemill_engine.api.stream import DONE, EventStream, event
from tidemill_engine.errors import EngineError, InvalidRequest, ModelNotFound, RequestTooLarge

logger = logging.getLogger(__name__)

CONTEXT = web.AppKey("context", ApiContext)
INLINE_CHARACTERS = 8000
"""Longer prompts are tokenized in a thread, so that they hold up nobody's stream."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Everything needed to answer one valid request."""

    prompts: list[PreparedPrompt]
    options: GenerationOptions
    terms: ServiceTerms
    response_format: ResponseFormat
    arrival_time: float


async def completions(request: web.Request) -> web.StreamResponse:
    """Answer POST /v1/completions."""
    context = request.app[CONTEXT]
    fields, arrival = await _read_body(request, context)
    model = context.require_model()
    terms = _terms(request, context, fields)
    parsed = parse_completion(fields, model.limits)
    envelope = _envelope(context, model, parsed.model, "cmpl")
    prompts = [await _prepare(prompt, parsed.options, model, "prompt") for prompt in parsed.prompts]
    context.state.require_accepting()  # the drain may have begun while the prompts were tokenized
    response_format = CompletionFormat(envelope, _echoes(parsed, prompts, model))
    job = _Job(
        prompts=prompts,
        options=parsed.options,
        terms=terms,
        response_format=response_format,
        arrival_time=arrival,
    )
    if parsed.is_echo_only:
        return await _answer_echo(request, context, job)
    return await _answer(request, context, model, job)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer POST /v1/chat/completions."""
    context = request.app[CONTEXT]
    fields, arrival = await _read_body(request, context)
    model = context.require_model()
    terms = _terms(request, context, fields)
    parsed = parse_chat(fields, model.limits)
    envelope = _envelope(context, model, parsed.model, "chatcmpl")
    text = await model.template.render(parsed.messages)
    prompt = await _prepare(text, parsed.options, model, "messages")
    context.state.require_accepting()
    job = _Job(
        prompts=[prompt],
        options=parsed.options,
        terms=terms,
        response_format=ChatFormat(envelope),
        arrival_time=arrival,
    )
    return await _answer(request, context, model, job)


async def list_models(request: web.Request) -> web.Response:
    """Answer GET /v1/models."""
    context = request.app[CONTEXT]
    limits = context.require_model().limits
    names = context.served_names()
    data = [model_object(name, context.created, limits.max_model_len) for name in names]
    return web.json_response({"object": "list", "data": data})


async def get_model(request: web.Request) -> web.Response:
    """Answer GET /v1/models/{model}."""
    context = request.app[CONTEXT]
    name = _check_name(context, request.match_info["model"])
    limits = context.require_model().limits
    return web.json_response(model_object(name, context.created, limits.max_model_len))


async def _read_body(request: web.Request, context: ApiContext) -> tuple[Fields, float]:
    """Read a bounded JSON body and note when it was complete."""
    context.state.require_accepting()
    if request.content_type != "application/json":
        given = request.headers.get("Content-Type", "none")[:80]
        raise UnsupportedMediaTypeError(f"Content-Type must be application/json, got {given}")
    limit = context.config.http.max_body_bytes
    too_large = RequestTooLarge(f"the body must have at most {limit} bytes")
    if request.content_length is not None and request.content_length > limit:
        raise too_large
    try:
        async with asyncio.timeout(context.config.http.read_timeout_seconds):
            body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except TimeoutError:
        raise RequestTimeoutError("the body did not arrive in time") from None
    return decode_body(body), context.clock()


def _terms(request: web.Request, context: ApiContext, fields: Fields) -> ServiceTerms:
    """Read on what terms a request is served; who may name a tenant depends on its key and on a flag."""
    bearer = request[BEARER]
    is_trusted = bearer.is_trusted or context.config.http.is_trusting_tenant_headers
    return parse_terms(fields, request.headers, tenant=bearer.tenant, is_trusted=is_trusted)


def _check_name(context: ApiContext, name: str | None) -> str:
    """Return the served name that a request means; none given means the first."""
    names = context.served_names()
    if name is None:
        return names[0]
    if name not in names:
        message = f"the model {name[:200]!r} is not served here; served are {', '.join(names)}"
        raise ModelNotFound(message, param="model")
    return name


def _envelope(context: ApiContext, model: LoadedModel, name: str | None, prefix: str) -> Envelope:
    return Envelope(
        response_id=f"{prefix}-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=_check_name(context, name),
        token_text=model.tokenizer.token_text,
    )


async def _prepare(
    prompt: Prompt, options: GenerationOptions, model: LoadedModel, param: str
) -> PreparedPrompt:
    """Tokenize a prompt and fit its sampling behind it."""
    if isinstance(prompt, str):
        is_long = len(prompt) > INLINE_CHARACTERS
        encode = model.tokenizer.encode
        ids = await asyncio.to_thread(encode, prompt) if is_long else encode(prompt)
    else:
        ids = list(prompt)
    if not ids:
        raise InvalidRequest("the prompt is empty, and this model has no token to begin with", param=param)
    sampling = fit_to_context(options, len(ids), model.limits, param=param)
    return PreparedPrompt(token_ids=ids, is_text=isinstance(prompt, str), sampling=sampling)


def _echoes(
    parsed: CompletionRequest, prompts: list[PreparedPrompt], model: LoadedModel
) -> dict[int, str] | None:
    """Return the text of the prompt for every choice where echo is wanted."""
    if not parsed.echo:
        return None
    texts = [
        given if isinstance(given, str) else model.tokenizer.decode(prepared.token_ids)
        for given, prepared in zip(parsed.prompts, prompts, strict=True)
    ]
    n = parsed.options.n
    return {index: texts[index // n] for index in range(len(texts) * n)}


async def _answer(
    request: web.Request, context: ApiContext, model: LoadedModel, job: _Job
) -> web.StreamResponse:
    with model.generator.generate(job.prompts, job.options, job.terms, job.arrival_time) as generation:
        if job.options.stream:
            return await _stream(request, context, job, generation)
        return await _whole(job, generation)


async def _whole(job: _Job, generation: Generation) -> web.Response:
    """Gather everything and answer once."""
    parts: dict[int, list[Delta]] = {index: [] for index in generation.indices}
    async for batch in generation.batches():
        for item in batch:
            parts[item.index].append(item.delta)
    choices = [job.response_format.whole(index, _join(deltas)) for index, deltas in parts.items()]
    return _whole_response(job, choices, generation.usage())


def _whole_response(job: _Job, choices: list[dict[str, object]], usage: Usage) -> web.Response:
    response_format = job.response_format
    body = response_format.envelope.wrap(response_format.whole_kind, choices, usage=usage.to_json())
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def _join(deltas: list[Delta]) -> Delta:
    last = deltas[-1]
    return Delta(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(position for delta in deltas for position in delta.logprobs),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )


async def _stream(
    request: web.Request, context: ApiContext, job: _Job, generation: Generation
) -> web.StreamResponse:
    """Send events as tokens come; an error after the first one becomes the last event."""
    stream = EventStream(request, write_timeout_seconds=context.config.http.write_timeout_seconds)
    try:
        await _send_deltas(stream, job, generation)
    except EngineError as error:
        if not stream.is_open:
            raise
        await stream.send_raw(event(to_http(error).body()))
    except ConnectionResetError:
        raise
    except Exception:
        if not stream.is_open:
            raise
        logger.exception("a stream for %s failed inside", request.path)
        await stream.send_raw(event(INTERNAL.body()))
    await stream.close()
    return stream.response


async def _send_deltas(stream: EventStream, job: _Job, generation: Generation) -> None:
    response_format, options = job.response_format, job.options
    envelope, kind = response_format.envelope, response_format.chunk_kind
    more = {"usage": None} if options.include_usage else {}
    opening = [choice for index in generation.indices for choice in response_format.opening(index)]
    async for batch in generation.batches():
        choices = [choice for item in batch for choice in response_format.pieces(item.index, item.delta)]
        choices, opening = opening + choices, []
        await stream.send(envelope.wrap(kind, [choice], **more) for choice in choices)
    if options.include_usage:
        await stream.send([envelope.wrap(kind, [], usage=generation.usage().to_json())])
    await stream.send_raw(DONE)


async def _answer_echo(request: web.Request, context: ApiContext, job: _Job) -> web.StreamResponse:
    """Answer with the prompts alone, for max_tokens 0 beside echo: the core has nothing to do."""
    usage = Usage(prompt_tokens=sum(len(prompt.token_ids) for prompt in job.prompts), completion_tokens=0)
    indices = range(len(job.prompts) * job.options.n)
    choices = [job.response_format.whole(index, Delta(finish_reason="length")) for index in indices]
    if not job.options.stream:
        return _whole_response(job, choices, usage)
    stream = EventStream(request, write_timeout_seconds=context.config.http.write_timeout_seconds)
    envelope, kind = job.response_format.envelope, job.response_format.chunk_kind
    more = {"usage": None} if job.options.include_usage else {}
    await stream.send(envelope.wrap(kind, [choice], **more) for choice in choices)
    if job.options.include_usage:
        await stream.send([envelope.wrap(kind, [], usage=usage.to_json())])
    await stream.send_raw(DONE)
    await stream.close()
    return stream.response

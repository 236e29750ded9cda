"""The process that renders chat templates: a sandbox with bounded memory that its parent may kill.

Knows jinja2 and one template. A template is code that came with a model, so it gets no files, no network, no
names beyond the few that templates expect, and no more than the address space set here. Started as `python
-m`; never imported by the server.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tidemill_engine.api.template_messages import RenderRequest, RenderResult, TemplateMessage, TemplateSource
from tidemill_engine.errors import PeerGone
from tidemill_engine.ipc import FrameConnection

MAX_MEMORY_BYTES = 512 * 1024 * 1024
_PR_SET_PDEATHSIG = 1
_FOREVER_SECONDS = 3600.0


class TemplateError(jinja2.TemplateError):
    """What a template raises on purpose by `raise_exception`."""


class _GenerationBlock(Extension):
    """Accept `{% generation %}`, which marks assistant text for training, and render what is inside."""

    tags = {"generation"}  # noqa: RUF012 - the library reads a class attribute

    def parse(self, parser: Parser) -> Node:
        """Turn the block into a call that gives back its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        text: str = caller()
        return text


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template in a sandbox with the few names that templates expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def _tojson(value: Any, indent: int | None = None) -> str:
    """Write JSON as models were trained on it: no HTML escapes, letters of every script as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def render(template: jinja2.Template, request: RenderRequest) -> RenderResult:
    """Render one conversation; whatever goes wrong becomes a sentence."""
    try:
        text = template.render(
            messages=request.messages,
            add_generation_prompt=True,
            bos_token=request.bos_token,
            eos_token=request.eos_token,
        )
    except TemplateError as error:
        return RenderResult(error=str(error))
    except MemoryError:
        return RenderResult(error="the chat template needs too much memory for these messages")
    except Exception as error:  # a template may raise anything
        return RenderResult(error=f"the chat template can't render these messages: {error}")
    return RenderResult(text=text)


def serve(connection: FrameConnection[TemplateMessage]) -> None:
    """Answer every request in order until the parent closes the socket."""
    template: jinja2.Template | None = None
    while True:
        for message in connection.receive(_FOREVER_SECONDS):
            if isinstance(message, TemplateSource):
                try:
                    template = compile_template(message.source)
                except jinja2.TemplateError as error:
                    connection.send(RenderResult(error=f"the model's chat template is invalid: {error}"))
                else:
                    connection.send(RenderResult(text=""))
            elif template is not None:
                connection.send(render(template, message))


def main() -> None:
    """Bound this process, then serve the socket whose number is the only argument."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    connection: FrameConnection[TemplateMessage] = FrameConnection(
        socket.socket(fileno=int(sys.argv[1])),
        TemplateMessage,  # type: ignore[arg-type] # msgspec takes unions where the annotation says a type
    )
    try:
        serve(connection)
    except PeerGone:
        return


if __name__ == "__main__":
    main()

"""Command line of this package: which command, and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from tidemill_engine.api.config import ServeConfig
from tidemill_engine.api.serve import Listening, serve
from tidemill_engine.api.termination import (
    EXIT_USAGE,
    Ending,
    default_termination_log,
    write_termination_log,
)
from tidemill_engine.download.command import add_download_command, run_download
from tidemill_engine.errors import EngineError
from tidemill_engine.serve_flags import API_KEY_VARIABLE, add_serve_flags, make_config

LOG_LEVELS = ("debug", "info", "warning", "error")
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="tidemill-engine", description="Serve a language model.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("serve", help="serve one model over the OpenAI API")
    add_serve_flags(command)
    command.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    fetching = commands.add_parser("download", help="download a model, to be served by file:// afterwards")
    add_download_command(fetching)
    fetching.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    return parser


def print_first_steps(config: ServeConfig, listening: Listening) -> None:
    """Tell a person at this machine where to look and what to type; say nothing in a pod."""
    if config.http.host not in LOOPBACK_HOSTS:
        return
    url = f"http://{config.http.host}:{listening.api_port}"
    model = config.served_model_names[0]
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "What is a tide mill?"}}]}}'
    key = "-H 'Authorization: Bearer KEY' " if config.http.api_key else ""
    print(f"\n{model} is ready. A page to type into: {url}/\nOr:\n")
    print(
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' {key}\\\n  -d '{body}'\n",
        flush=True,
    )


def main() -> None:
    """Run the command line."""
    arguments = make_parser().parse_args()
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    log_path = arguments.termination_log or default_termination_log()
    if arguments.command == "download":
        _end(asyncio.run(run_download(arguments, os.environ)), log_path)
    try:
        config = make_config(arguments, os.environ.get(API_KEY_VARIABLE) or None)
    except EngineError as error:
        ending = Ending(exit_code=EXIT_USAGE, reason="InvalidConfig", message=error.message)
    else:
        ending = asyncio.run(serve(config, on_ready=lambda listening: print_first_steps(config, listening)))
    _end(ending, log_path)


def _end(ending: Ending, log_path: Path | None) -> NoReturn:
    """Leave the reason behind and end."""
    write_termination_log(log_path, ending)
    if ending.exit_code:
        print(f"tidemill-engine: {ending.message}", file=sys.stderr)
    raise SystemExit(ending.exit_code)


if __name__ == "__main__":
    main()

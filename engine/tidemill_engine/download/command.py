"""`tidemill-engine download`: flags, the choice of the service, and how the process ends.

Is given the environment; `__main__` alone reads it. Credentials come from there and are never logged.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from yarl import URL

from tidemill_engine.api.termination import EXIT_USAGE, Ending
from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.gcs import GcsService
from tidemill_engine.download.guard import AddressPolicy
from tidemill_engine.download.http import HttpClient
from tidemill_engine.download.hub import PUBLIC_ENDPOINT, HubService
from tidemill_engine.download.progress import Progress, ProgressAddress, serve_progress
from tidemill_engine.download.run import Job, download
from tidemill_engine.download.s3 import S3Service
from tidemill_engine.download.sigv4 import Credentials
from tidemill_engine.download.source import HubSource, S3Source, Source, parse_source
from tidemill_engine.errors import InvalidConfig

if TYPE_CHECKING:
    from tidemill_engine.download.service import Service

logger = logging.getLogger(__name__)

EXIT_STOPPED = 143


def add_download_command(command: argparse.ArgumentParser) -> None:
    """Add the flags."""
    command.add_argument(
        "uri", metavar="URI", help="hf://ORGANISATION/MODEL, s3://BUCKET/PATH or gs://BUCKET/PATH"
    )
    command.add_argument("--directory", type=Path, required=True, help="where downloads are kept")
    command.add_argument("--revision", help="branch, tag or commit of an hf:// model (default main)")
    command.add_argument("--link", type=Path, help="make this a link to the model once it is whole")
    command.add_argument(
        "--endpoint", metavar="URL", help="ask this service, which may have a private address"
    )
    command.add_argument("--timeout", type=float, default=3600.0, help="seconds for all of it (default 3600)")
    command.add_argument("--progress-host", default="127.0.0.1", help="address that tells how far it is")
    command.add_argument("--progress-port", type=int, help="its port (default: none)")
    command.add_argument(
        "--progress-token-file", type=Path, help="file with the bearer token that it asks for"
    )
    command.add_argument("--termination-log", type=Path, help="file for the reason of a failure")


async def run_download(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Ending:
    """Download, and say how it ended; SIGTERM ends it at once, what is there is kept."""
    try:
        source = parse_source(arguments.uri, arguments.revision)
        endpoint = _endpoint(arguments.endpoint)
    except InvalidConfig as error:
        return Ending(exit_code=EXIT_USAGE, reason="InvalidConfig", message=error.message)
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    client = HttpClient(AddressPolicy(endpoint=endpoint))
    progress = Progress()
    try:
        job = Job(
            source=source,
            service=make_service(client, source, environment, endpoint),
            client=client,
            directory=arguments.directory,
            link=arguments.link,
            timeout_seconds=arguments.timeout,
        )
        async with serve_progress(progress, _progress_address(arguments)):
            await download(job, progress)
    except DownloadError as error:
        return _ending(error.failure, f"{arguments.uri}: {error.message}")
    except OSError as error:
        return _ending(Failure.FAILED, f"{arguments.uri}: {error}")
    except asyncio.CancelledError:
        return Ending(
            exit_code=EXIT_STOPPED, reason="Stopped", message="told to stop; the next attempt goes on"
        )
    finally:
        await client.close()
    return Ending(exit_code=0)


def make_service(
    client: HttpClient, source: Source, environment: Mapping[str, str], endpoint: URL | None
) -> Service:
    """Choose the service and hand it its credentials."""
    if isinstance(source, HubSource):
        return HubService(client, source, _secret(environment, "HF_TOKEN"), endpoint or PUBLIC_ENDPOINT)
    if isinstance(source, S3Source):
        return S3Service(client, source, _aws_credentials(environment), _utc_now, endpoint)
    key = _secret(environment, "GOOGLE_SERVICE_ACCOUNT_KEY")
    return GcsService(client, source, key, _utc_now, endpoint)


def _secret(environment: Mapping[str, str], name: str) -> str | None:
    """Read a secret without the line break that a file of it ends in; an empty one is none."""
    return environment.get(name, "").strip() or None


def _aws_credentials(environment: Mapping[str, str]) -> Credentials | None:
    key_id, secret = _secret(environment, "AWS_ACCESS_KEY_ID"), _secret(environment, "AWS_SECRET_ACCESS_KEY")
    if key_id is None or secret is None:
        return None
    token = _secret(environment, "AWS_SESSION_TOKEN")
    return Credentials(access_key_id=key_id, secret_access_key=secret, session_token=token)


def _endpoint(text: str | None) -> URL | None:
    if text is None:
        return None
    url = URL(text)
    if url.scheme not in {"http", "https"} or not url.host or url.user or url.query_string or url.fragment:
        raise InvalidConfig(f"an endpoint looks like https://hub.example.com, not {text!r}", param="endpoint")
    return url


def _progress_address(arguments: argparse.Namespace) -> ProgressAddress | None:
    if arguments.progress_port is None:
        return None
    return ProgressAddress(
        host=arguments.progress_host, port=arguments.progress_port, token_file=arguments.progress_token_file
    )


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _ending(failure: Failure, message: str) -> Ending:
    return Ending(exit_code=failure.exit_code, reason=failure.reason, message=message)

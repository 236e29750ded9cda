"""Errors as OpenAI's object, and the page that explains them."""

import json
import re
from pathlib import Path

import pytest

from tidemill_gateway import errors
from tidemill_gateway.route import Refusal, RefusalKind

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateway.md"


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (RefusalKind.UNKNOWN_PATH, 404, "not_found"),
        (RefusalKind.UNKNOWN_SERVICE, 404, "service_not_found"),
        (RefusalKind.UNKNOWN_MODEL, 404, "model_not_found"),
        (RefusalKind.MODEL_MISSING, 400, "model_required"),
        (RefusalKind.AMBIGUOUS_HOST, 400, "ambiguous_host"),
        (RefusalKind.WRONG_METHOD, 405, "method_not_allowed"),
    ],
)
def test_every_refusal_has_its_status_and_code(kind: RefusalKind, status: int, code: str) -> None:
    error = errors.from_refusal(Refusal(kind=kind, message="why", allow="GET"))
    assert (error.status, error.code, error.message) == (status, code, "why")


def test_no_refusal_is_forgotten() -> None:
    codes = {errors.from_refusal(Refusal(kind=kind, message="why")).code for kind in RefusalKind}
    assert len(codes) == len(RefusalKind)


def test_an_error_event_is_one_event_with_the_error_object() -> None:
    event = errors.error_event(errors.bad_upstream("it\nbroke")).decode()
    assert event.startswith("data: ")
    assert event.endswith("\n\n")
    assert event.count("\n") == 2
    error = json.loads(event.removeprefix("data: "))["error"]
    assert error == {"message": "it\nbroke", "type": "server_error", "param": None, "code": "upstream_error"}


def test_an_errors_text_for_logs_does_not_quote_the_client() -> None:
    refusal = Refusal(kind=RefusalKind.UNKNOWN_MODEL, message="The model `secret` does not exist.")
    assert "secret" not in str(errors.from_refusal(refusal))


def test_every_error_code_is_explained() -> None:
    source = PAGE.parents[1] / "gateway" / "tidemill_gateway"
    code = "".join(
        (source / name).read_text() for name in ("errors.py", "server.py", "work.py", "proxy.py", "body.py")
    )
    codes = set(re.findall(r'code="(\w+)"', code)) | set(re.findall(r'"(no_ready_replica|starting)"', code))
    explained = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert len(codes) > 10
    assert codes - {"internal_error"} <= explained

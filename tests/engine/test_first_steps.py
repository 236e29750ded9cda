"""What a person sees once the engine is ready on their own machine."""

import shlex

import pytest

from api_builders import make_serve_config
from tidemill_engine.__main__ import print_first_steps
from tidemill_engine.api.config import HttpConfig
from tidemill_engine.api.serve import Listening

LISTENING = Listening(api_port=9123, admin_port=9124, core_pid=1)


def test_prints_the_page_and_a_command_that_a_shell_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    print_first_steps(make_serve_config(http=HttpConfig(host="127.0.0.1")), LISTENING)
    text = capsys.readouterr().out
    assert "http://127.0.0.1:9123/\n" in text
    command = shlex.split(text[text.index("curl") :])
    assert command[:2] == ["curl", "http://127.0.0.1:9123/v1/chat/completions"]
    assert '"messages"' in command[-1]


def test_names_no_key_and_says_nothing_in_a_pod(capsys: pytest.CaptureFixture[str]) -> None:
    print_first_steps(make_serve_config(http=HttpConfig(host="127.0.0.1", api_key="secret-1")), LISTENING)
    text = capsys.readouterr().out
    assert "Bearer KEY" in text
    assert "secret-1" not in text
    print_first_steps(make_serve_config(http=HttpConfig(host="0.0.0.0")), LISTENING)
    assert capsys.readouterr().out == ""

"""Builds what emulated tests need before the first test runs, outside any test's time limit."""

from __future__ import annotations

import pytest

from emulation.guest import prepare
from emulation.stand_ins import has_stand_ins
from native_paths import is_emulated, library_of
from tidemill_kernels.native.cpu import KernelPath


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install and compile for the emulated paths among the selected tests."""
    if session.config.option.collectonly or session.testsfailed:
        return
    calls = [
        item.callspec
        for item in session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    wanted = {value for call in calls for value in call.params.values() if isinstance(value, KernelPath)}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for path in sorted(filter(is_emulated, wanted), key=lambda path: path.name):
            prepare(path)
        for path in sorted(filter(has_stand_ins, wanted), key=lambda path: path.name):
            library_of(path)

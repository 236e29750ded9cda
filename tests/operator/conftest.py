"""A namespace without a node, and operators that look after it under the chart's rights."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import pytest

from operator_process import Account, Operator
from operator_world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.session import TestCluster


@pytest.fixture
def world(crds: TestCluster, namespace: str) -> World:
    return World(crds, namespace)


@pytest.fixture
def start(crds: TestCluster, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    kubeconfig = Account(crds, namespace).write_kubeconfig(tmp_path)
    started: list[Operator] = []

    def launch(image: str = "localhost/engine:test") -> Operator:
        log = tmp_path / f"operator-{len(started)}.log"
        started.append(Operator(kubeconfig, namespace, log, image=image))
        return started[-1]

    yield launch
    for operator in started:
        with contextlib.suppress(ProcessLookupError):
            operator.process.kill()
        operator.process.wait()
        print(operator.log.read_text())
        # The words for a right that is lacking; a quota refuses in others.
        assert not re.search(r"cannot \w+ resource", operator.log.read_text())

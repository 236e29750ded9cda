"""Names that fit where Kubernetes puts them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tidemill_operator import names

LONGEST = "n" * names.MAX_SERVICE_NAME_LENGTH
REVISION = "0" * names.REVISION_LENGTH


@pytest.mark.parametrize(
    "name",
    [
        names.deployment_name(LONGEST, REVISION),
        names.client_service_name(LONGEST),
        names.replicas_service_name(LONGEST),
        names.gateway_slice_name(LONGEST),
        names.admin_secret_name(LONGEST),
        names.ingress_name(LONGEST),
        names.disruption_budget_name(LONGEST),
    ],
)
def test_the_longest_service_name_leaves_room_for_its_childrens(name: str) -> None:
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_every_label_value_fits() -> None:
    assert all(len(value) <= 63 for value in names.pod_labels(LONGEST, REVISION).values())


def test_a_revisions_selector_chooses_its_own_pods_alone() -> None:
    selector = names.revision_selector_labels("chat", "a" * 8)
    assert selector.items() <= names.pod_labels("chat", "a" * 8).items()
    assert not selector.items() <= names.pod_labels("chat", "b" * 8).items()
    assert not selector.items() <= names.pod_labels("chat-a", "a" * 8).items()


def test_selectors_are_written_in_a_stable_order() -> None:
    assert names.selector_string({"b": "2", "a": "1"}) == "a=1,b=2"


def test_the_gateway_may_import_the_names_without_a_client_or_kopf() -> None:
    script = (
        "import sys; import tidemill_operator.names; "
        "bad = {'kopf', 'kubernetes', 'aiohttp', 'asyncio'} & set(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

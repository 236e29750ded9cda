"""Five hundred services on the control plane alone: what they cost in requests and memory.

Asserts counts and bytes, never seconds: how long it took is printed.
"""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from harness.kubectl import wait_until

from operator_process import Account, Admin, Operator
from tidemill_operator import names

if TYPE_CHECKING:
    from pathlib import Path

    from harness.session import TestCluster

pytestmark = pytest.mark.cluster
NUM_SERVICES = 500
NUM_WRITERS = 4
MAX_MEMORY_BYTES = 300 * 1024 * 1024
# Two runs of a service: names looked up, six objects, two events, two statuses; twenty in all.
MAX_REQUESTS_PER_SERVICE = 30
# The leader renews its Lease every two seconds: so many renewals are how long "then" is looked at.
NUM_RENEWALS = 5
# A renewal reads and writes; all else is what 500 services cost while nothing happens to them.
MAX_REQUESTS_PER_RENEWAL = 30
REQUESTS = "tidemill_operator_api_requests_total"


def write_services(cluster: TestCluster, namespace: str, numbers: range) -> None:
    admin = Admin(cluster)
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"
    for number in numbers:
        metadata = {"name": f"s{number}", "namespace": namespace}
        spec = {"model": {"uri": "sim://demo"}, "replicas": 1}
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}
        assert admin("POST", path, body)["kind"] == names.KIND


def num_told(admin: Admin, namespace: str) -> int:
    """Count the services whose status says that a pod of theirs exists."""
    found = admin.items(f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}?resourceVersion=0")
    return sum((service.get("status") or {}).get("replicas") == 1 for service in found)


def wait_for_renewals(admin: Admin, namespace: str, number: int) -> None:
    """Wait until the leader has renewed its Lease so many times."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{names.DEFAULT_LEASE_NAME}"
    seen: set[str] = set()

    def are_seen() -> bool:
        seen.add(admin("GET", path)["spec"]["renewTime"])
        return len(seen) > number

    wait_until("renewals of the lease", are_seen, timeout_seconds=120)


@pytest.mark.timeout(600)
def test_five_hundred_services_cost_bounded_requests_and_memory(
    crds: TestCluster, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = Account(crds, namespace).write_kubeconfig(tmp_path)
    share = NUM_SERVICES // NUM_WRITERS
    with ThreadPoolExecutor(NUM_WRITERS) as pool:
        for done in [
            pool.submit(write_services, crds, namespace, range(at * share, (at + 1) * share))
            for at in range(NUM_WRITERS)
        ]:
            done.result()
    admin = Admin(crds)
    operator = Operator(kubeconfig, namespace, tmp_path / "operator.log")
    try:
        began = time.monotonic()
        # Asked of the operator first: a list of all is dear, and would be what is measured.
        wait_until(
            "a status for each",
            lambda: operator.total("tidemill_operator_status_writes_total") >= NUM_SERVICES,
            timeout_seconds=400,
        )
        wait_until("a look at all", lambda: num_told(admin, namespace) == NUM_SERVICES, timeout_seconds=400)
        took = time.monotonic() - began
        converging = operator.total(REQUESTS)
        began = time.monotonic()
        wait_for_renewals(admin, namespace, NUM_RENEWALS)
        quiet = operator.total(REQUESTS) - converging
        per_minute = quiet * 60 / (time.monotonic() - began)
        memory = operator.peak_memory_bytes()
        assert operator.end(signal.SIGTERM) == 0
    finally:
        operator.process.kill()
        operator.process.wait()
        print(operator.log.read_text()[-3000:])
    figures = {
        "services": NUM_SERVICES,
        "seconds_to_converge": round(took, 1),
        "requests_to_converge": int(converging),
        "requests_per_renewal_then": quiet / NUM_RENEWALS,
        "requests_per_minute_then": int(per_minute),
        "peak_memory_mib": round(memory / 2**20),
    }
    print(json.dumps(figures))
    assert memory < MAX_MEMORY_BYTES
    assert converging < NUM_SERVICES * MAX_REQUESTS_PER_SERVICE
    assert quiet < NUM_RENEWALS * MAX_REQUESTS_PER_RENEWAL

"""Shares by both doors: the device plugin's calls, and claims."""

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from agent.enforcement.mps.backend import Mps
from agent.enforcement.mps.files import DaemonStatus
from agent.errors import EnforcementError
from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import Holding, make_key
from tests.agent.builders import BLOCK, CORE
from tests.agent.dra.claim_node import TABLE, ClaimNode
from tests.in_memory.node import CORE_FIRST, MEMORY_FIRST, Node
from tests.in_memory.pods import gpu, make_pod
from tests.mps.node import MpsNode, report

MIB = BLOCK >> 20


def serve_all(node: MpsNode, *keys: str) -> None:
    """Let daemons that allow everything serve the shares that there are, and those of *keys*."""
    served = DaemonStatus((), "1", "", 100, (1 << 20,), keys=(*node.files.read_shares(), *keys))
    report(node.files, {f"GPU-{at}": served for at in range(4)})


class Recording:
    """Notes what each pod's container gets by all responses together."""

    limits = True

    def __init__(self, mps: Mps) -> None:
        self.mps = mps
        self.edits: dict[str, ContainerEdits] = defaultdict(ContainerEdits)
        self.prepare_start, self.prune = mps.prepare_start, mps.prune
        self.identify_starting = mps.identify_starting

    def prepare_allocation(self, holding: Holding) -> ContainerEdits:
        edits = self.mps.prepare_allocation(holding)
        name = holding.ref.pod.name
        self.edits[name] = self.edits[name].merged_with(edits)
        return edits


@pytest.fixture
def mps_node(folder: Path) -> MpsNode:
    return MpsNode(folder)


def variables(percent: int, mib: int) -> dict[str, str]:
    return {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={mib}M",
    }


def test_a_burst_of_unequal_shares_by_a_device_plugin(mps_node: MpsNode) -> None:
    """Each has its own variables and its card's folder, whatever the order of the calls."""
    chance = random.Random(54)
    recording = Recording(mps_node.agent())
    node = Node(4, enforcer=recording)
    for at in range(12):
        cores, blocks = chance.randint(5, 30), chance.randint(1, 3)
        limit: dict[str, Any] = {"core_limit": str(chance.choice([40, 100]))} if at % 3 == 0 else {}
        processes: dict[str, Any] = {"gpu_processes": "2"} if at % 4 == 0 else {}
        pod = make_pod(f"p{at}", gpu(cores, blocks), **limit, **processes)
        node.admit(pod, chance.choice([CORE_FIRST, MEMORY_FIRST]))
        serve_all(mps_node)
        node.start(pod)
        (slot, *_) = node.held(pod)[CORE]
        card, of = slot.partition("::")[0], 2 if processes else 1
        edits = recording.edits[pod.name]
        percent = int(limit.get("core_limit", cores)) // of
        assert edits.envs == variables(percent, blocks * MIB // of)
        assert [each.host for each in edits.mounts] == [
            str(mps_node.files.part(card, "pipe")),
            str(mps_node.files.shm),
        ]


def test_a_claim_has_the_same_variables_in_its_spec(mps_node: MpsNode, tmp_path: Path) -> None:
    node = ClaimNode(tmp_path)
    driver = node.driver(enforcer=mps_node.agent(cards=2))
    ref = node.add("p", "gpu-1", 30, 4)
    serve_all(mps_node, make_key("uid-p/c0"))
    driver.prepare(ref)
    (device,) = node.spec(ref)["devices"]
    edits = device["containerEdits"]
    card = TABLE.inventory.cards[1].uuid
    wanted = variables(30, 4 * MIB)
    assert {f"{name}={value}" for name, value in wanted.items()} <= {*edits["env"]}
    mounts = {each["containerPath"]: each["hostPath"] for each in edits["mounts"]}
    assert mounts == {
        "/tmp/nvidia-mps": str(mps_node.files.part(card, "pipe")),
        "/dev/shm": str(mps_node.files.shm),
    }
    assert all("ro" not in each["options"] for each in edits["mounts"])


def test_a_claim_whose_daemon_does_not_serve_is_asked_for_again(
    mps_node: MpsNode, tmp_path: Path
) -> None:
    node = ClaimNode(tmp_path)
    driver = node.driver(enforcer=mps_node.agent(patience=0.0))
    ref = node.add("p", "gpu-1", 30, 4)
    card = TABLE.inventory.cards[1].uuid
    for status, problem in (
        ({}, "does not serve: it is not started yet"),
        ({card: DaemonStatus((card,), "1", "")}, "does not serve: it has not got these limits yet"),
    ):
        report(mps_node.files, status)
        with pytest.raises(EnforcementError, match=problem):
            driver.prepare(ref)
    serve_all(mps_node, make_key("uid-p/c0"))
    driver.prepare(ref)

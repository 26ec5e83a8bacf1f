"""NVIDIA's limits, seen from inside of containers: its daemon and its driver are stand-ins."""

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from agent.dra.claims import ClaimRef
from agent.injection.inject import Injection
from agent.settings import EnforcementMode
from tests.agent.builders import device_table
from tests.agent.dra.claim_node import ClaimNode
from tests.agent.fakes import short_dir
from tests.mps.node import MpsNode, eventually
from tests.runtime.conftest import MakeNode
from tests.runtime.containerd import Runtime
from tests.runtime.pods import Inside, Pod

VARIABLES = [
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
]
GIVEN, REFUSED = "0", "2"  # CUDA_ERROR_OUT_OF_MEMORY
DAEMON_ENDED = "806"  # CUDA_ERROR_MPS_RPC_FAILURE
_CUDA = "STAND_IN_CARDS=8192 cuda"

Start = Callable[[str, int, int], Inside]
"""Starts the container of a new pod, by name, cores and blocks."""


@pytest.fixture
def mps() -> Iterator[MpsNode]:
    with short_dir() as folder:
        node = MpsNode(folder)
        with node.program():
            yield node


@pytest.fixture(params=["plugin", "claims"])
def start(
    request: pytest.FixtureRequest,
    mps: MpsNode,
    make_node: MakeNode,
    runtime: Runtime,
    tmp_path: Path,
) -> Iterator[Start]:
    if request.param == "plugin":
        yield make_node(1, enforcement=EnforcementMode.MPS, mps_dir=mps.root).run
        return
    if not runtime.knows_cdi:
        pytest.skip("this runtime does not know CDI (containerd before 1.7)")
    node, pods = ClaimNode(tmp_path), dict[ClaimRef, Pod]()
    node.cdi = runtime.cdi_folder
    table = device_table(1, blocks=32)
    driver = node.driver(Injection.ENVVAR_ONLY, table, enforcer=mps.agent())

    def claim(name: str, cores: int, memory: int) -> Inside:
        ref = node.add(name, "gpu-0", cores, memory)
        devices = [{"name": each} for names in driver.prepare(ref).values() for each in names]
        pods[ref] = Pod(runtime, name, str(uuid.uuid4()), tmp_path)
        return pods[ref].start("c0", {"cdi_devices": devices})

    yield claim
    for ref, pod in pods.items():
        pod.remove()
        driver.unprepare(ref)


def use(inside: Inside, mib: int, *, without: list[str] | None = None) -> list[str]:
    """Run a program that allocates so much; return its multiprocessors, and both results."""
    drop = f"unset {' '.join(without)}; " if without else ""
    _, output = inside.run("sh", "-c", f"{drop}{_CUDA} 0={mib}")
    return output.replace(f"0={mib}", "").split()


def test_a_process_gets_less_than_its_limit_and_not_more(start: Start, mps: MpsNode) -> None:
    small, large = start("small", 25, 8), start("large", 60, 16)
    for inside, sms, limit in ((small, "27", 2048), (large, "64", 4096)):
        for mib, result in ((limit // 2, GIVEN), (limit, REFUSED)):  # the context counts, too
            assert use(inside, mib) == [sms, "SMs:", "0", ":", result]
    # Without its variables a program has what the largest share has: the daemon's own limit.
    for mib, result in ((2048, GIVEN), (4096, REFUSED)):
        assert use(small, mib, without=VARIABLES) == ["64", "SMs:", "0", ":", result]


def test_a_process_is_a_client_until_its_daemon_ends(start: Start, mps: MpsNode) -> None:
    inside = start("a", 25, 8)
    inside.sh(f"{_CUDA} 0=512 stay >/out 2>&1 &")
    (client,) = eventually(lambda: mps.daemon().clients)
    assert client.container_id == inside.id
    assert client.pid in inside.host_pids()
    before = mps.daemon().instance
    os.kill(mps.pid(), signal.SIGKILL)
    eventually(partial(inside.sh, "grep stayed /out || true"))
    assert inside.sh("cat /out").split()[-1] == DAEMON_ENDED
    eventually(lambda: mps.daemon().instance not in (before, ""))
    assert use(inside, 2048)[-1] == REFUSED  # a new process is limited as before


def test_a_whole_card_has_neither_limits_nor_a_daemon(start: Start, mps: MpsNode) -> None:
    inside = start("whole", 100, 32)
    assert not {*VARIABLES} & inside.env().keys()
    assert use(inside, 8000) == ["108", "SMs:", "0", ":", GIVEN]
    assert mps.files.read_status() == {}

"""The program that runs control daemons, on the stand-in for ``nvidia-cuda-mps-control``."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.enforcement.mps.backend import Mps
from agent.enforcement.mps.daemon import EXCLUSIVE
from agent.enforcement.mps.program import MpsProgram
from agent.errors import EnforcementError
from agent.holdings.holding import ContainerRef, Holding
from common.errors import Unavailable
from tests.agent.builders import holding, ids, pod_id
from tests.mps.node import MpsNode, eventually

pytestmark = pytest.mark.slow


def share(name: str, cores: range, blocks: int, card: str = "GPU-0") -> Holding:
    return holding(ContainerRef(pod_id(name), "c0"), ids(card, cores), {card: blocks})


A = share("a", range(25), 8)
B = share("b", range(25, 85), 16)


@pytest.fixture
def node(folder: Path) -> Iterator[MpsNode]:
    node = MpsNode(folder)
    yield node
    node.close()


@pytest.fixture
def program(node: MpsNode) -> Iterator[MpsProgram]:
    with node.program() as program:
        yield program


def _has_ended(pid: int) -> bool:
    """Whether a process runs no more; it may not be reaped yet if init is slow."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def start(mps: Mps, *shares: Holding) -> dict[str, str]:
    """Allocate and start containers; return the variables of the last one."""
    envs: dict[str, str] = {}
    for each in shares:
        envs = dict(mps.prepare_allocation(each).envs)
        mps.prepare_start(each)
    return envs


def test_each_client_has_its_own_limits_and_one_without_variables_the_largest(
    node: MpsNode, program: MpsProgram
) -> None:
    mps = node.agent()
    one, other = start(mps, A), start(mps, B)
    clients = [node.client(each) for each in (one, other, {})]
    assert [each.connected() for each in clients] == [
        (25.0, [8 * 256]),
        (60.0, [16 * 256]),
        (60.0, [16 * 256]),
    ]
    eventually(lambda: len(node.daemon().clients) == 3)
    assert [*node.daemon().servers.values()] == ["ACTIVE"]
    assert {each.pid for each in node.daemon().clients} == {os.getpid()}
    _, _, page = program.metrics()
    assert b'gpu_turnstile_mps_up{cards="GPU-0"} 1.0' in page
    assert b'gpu_turnstile_mps_clients{cards="GPU-0"} 3.0' in page
    # Once the larger one has ended, a client without variables has what the smaller one has.
    mps.prune([A.ref.pod])
    eventually(lambda: node.daemon().percent == 25)
    assert node.client({}).connected() == (25.0, [8 * 256])


def test_a_share_starts_once_the_running_server_allows_it(
    node: MpsNode, program: MpsProgram
) -> None:
    mps = node.agent()
    first = node.client(start(mps, A))
    first.connected()  # its server has the limits of A by default
    assert node.client(start(mps, B)).connected() == (60.0, [16 * 256])


def test_a_killed_daemon_is_back_and_its_containers_are_reported(
    node: MpsNode, program: MpsProgram
) -> None:
    mps = node.agent()
    start(mps, A, share("c", range(30), 4, "GPU-1"))
    client = node.client(start(mps, B))
    client.connected()
    server = eventually(lambda: [*node.daemon().servers])[0]
    before, other = node.daemon().instance, node.daemon("GPU-1").instance
    os.kill(node.pid(), signal.SIGKILL)
    eventually(lambda: node.daemon().instance not in (before, ""))
    assert (node.daemon().ends, node.daemon().ended) == (1, "SIGKILL")
    eventually(lambda: _has_ended(int(server)))  # no client of it runs on, unlimited or unseen
    mps.tick()
    mps.tick()
    why = "the MPS daemon of GPU-0 has ended (SIGKILL)"
    assert sorted(node.lost) == [(A.ref, why), (B.ref, why)]
    assert node.daemon("GPU-1").instance == other


def test_an_agent_that_comes_back_reports_what_ended_meanwhile(
    node: MpsNode, program: MpsProgram
) -> None:
    start(node.agent(), A)
    before = node.daemon().instance
    os.kill(node.pid(), signal.SIGKILL)
    eventually(lambda: node.daemon().instance not in (before, ""))
    node.agent().tick()
    assert [ref for ref, _ in node.lost] == [A.ref]


def test_another_agent_leaves_daemons_and_clients_alone(node: MpsNode, program: MpsProgram) -> None:
    client = node.client(start(node.agent(), A))
    client.connected()
    before = node.daemon().instance
    again = node.agent()
    again.open()
    again.prepare_start(A)
    again.prune([A.ref.pod])
    time.sleep(0.3)  # what the program would do, it does within 50 ms
    assert node.daemon().instance == before
    assert eventually(lambda: node.daemon().clients)
    assert node.lost == []


def test_no_share_starts_once_the_program_is_killed(node: MpsNode) -> None:
    """Its daemons end with its container: what it reported last does not count any more."""
    flags = [f"--dir={node.root}", f"--driver-dir={node.driver_dir}", "--http-port=0"]
    with subprocess.Popen([sys.executable, "-m", "agent.enforcement.mps", *flags]) as program:
        eventually(lambda: node.files.read_status() is not None)
        program.kill()
    assert node.files.read_status() is None


def test_a_second_program_waits_for_the_end_of_the_first(node: MpsNode) -> None:
    with ExitStack() as second:
        with node.program():
            start(node.agent(), A)
            pid = node.pid()
            waiting = second.enter_context(node.program())
            why = "mps-dir: another program runs its daemons"
            eventually(lambda: waiting.readiness_problem() == why)
            assert waiting.liveness_problem() == ""
            assert node.pid() == pid
        eventually(lambda: node.daemon().instance)
        assert (waiting.readiness_problem(), node.pid() != pid) == ("", True)


def test_a_hung_daemon_is_replaced(node: MpsNode) -> None:
    node.response = 3.0
    with node.program():
        start(node.agent(), A)
        before = node.daemon().instance
        os.kill(node.pid(), signal.SIGSTOP)
        eventually(lambda: node.daemon().instance not in (before, ""))
        assert node.daemon().ended.startswith("it hangs (get_server_list: no response in 3 s)")


def test_a_fault_is_shown_until_its_clients_have_ended(node: MpsNode, program: MpsProgram) -> None:
    client = node.client(start(node.agent(), A))
    client.connected()
    node.control().send("stand_in_fault")
    eventually(lambda: [*node.daemon().servers.values()] == ["FAULT"])
    assert b'gpu_turnstile_mps_faults{cards="GPU-0"} 1.0' in program.metrics()[2]
    client.end()
    eventually(lambda: [*node.daemon().servers.values()] == ["ACTIVE"])


def test_no_daemon_stays_on_a_whole_card(node: MpsNode, program: MpsProgram) -> None:
    mps = node.agent()
    start(mps, A, share("c", range(30), 4, "GPU-1"))
    pid = node.pid()
    start(mps, holding(ContainerRef(pod_id("w"), "c0"), ids("GPU-0", range(100))))
    assert "GPU-0" not in (node.files.read_status() or {})
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert node.daemon("GPU-1").instance
    start(mps, A)  # and a share again
    assert node.daemon().instance


def test_shares_of_several_cards_have_a_daemon_of_their_own(
    node: MpsNode, program: MpsProgram
) -> None:
    mps = node.agent("0000:3b:00.0", "0000:0f:00.0")
    both = ids("GPU-0", range(40)) | ids("GPU-1", range(40))
    several = holding(ContainerRef(pod_id("s"), "c0"), both, {"GPU-0": 3, "GPU-1": 3})
    envs = start(mps, share("a", range(40, 60), 8), several)
    (found,) = (each for each in node.files.read_shares().values() if len(each.cards) > 1)
    assert found.cards == ("GPU-1", "GPU-0")
    assert node.client(envs, found.set).connected() == (40.0, [768, 768])
    start(mps, holding(ContainerRef(pod_id("w"), "c0"), ids("GPU-1", range(100))))
    assert [*(node.files.read_status() or {})] == ["GPU-0"]


@pytest.mark.parametrize(("multi_user", "waits"), [(True, False), (False, True)])
def test_clients_of_another_user(
    node: MpsNode,
    multi_user: bool,
    waits: bool,
) -> None:
    """The stand-in takes the user from the socket, so it is asked what the daemon was told."""
    with node.program(multi_user=multi_user):
        start(node.agent(), A)
        command = Path(f"/proc/{node.pid()}/cmdline").read_bytes()
    assert (b"-multiuser-server" not in command) is waits


def test_an_old_driver_says_why_it_does_not_serve(node: MpsNode) -> None:
    (node.switches / "no-multi-user").touch()
    mps = node.agent(patience=1.0)
    with node.program() as program:
        eventually(lambda: node.files.read_status() is not None)
        mps.prepare_allocation(A)
        eventually(lambda: "status" in node.daemon().problem)
        with pytest.raises(
            EnforcementError,
            match="the MPS daemon of GPU-0 does not serve: status 1: Unrecognized option "
            "-multiuser-server: the start will be retried",
        ):
            start(mps, A)
        assert "GPU-0: status 1: Unrecognized option" in program.readiness_problem()
        assert "status 1" in mps.problems()["GPU-0"]
        assert program.liveness_problem() == ""


def test_a_missing_program_is_named(node: MpsNode) -> None:
    (node.driver_dir / "bin" / "nvidia-cuda-mps-control").unlink()
    missing = pytest.raises(EnforcementError, match="nvidia-cuda-mps-control: No such file")
    with node.program(), missing:
        start(node.agent(patience=20.0), A)


def test_the_compute_mode_is_set_and_restored_only_with_the_flag(node: MpsNode) -> None:
    modes = node.switches / "modes"
    mps = node.agent()
    with node.program():
        start(mps, A)
    assert not modes.exists()
    modes.mkdir()
    (modes / "GPU-0").write_text("Prohibited")
    with node.program(exclusive=True):
        mps.prepare_start(A)
        assert (modes / "GPU-0").read_text().lower() == EXCLUSIVE.lower()
        both = ids("GPU-2", range(40)) | ids("GPU-3", range(40))
        with pytest.raises(EnforcementError, match="a card has one daemon"):
            start(node.agent(patience=5.0), holding(ContainerRef(pod_id("s"), "c0"), both))
    assert (modes / "GPU-0").read_text().lower() == "prohibited"


def test_a_killed_program_restores_the_compute_mode_that_was_before(node: MpsNode) -> None:
    modes = node.switches / "modes"
    mps = node.agent()
    program = node.program(exclusive=True)
    with program:
        start(mps, A)
        (node.files.part("GPU-0", "modes") / "GPU-0").write_text("Default")
        (modes / "GPU-0").write_text("Exclusive_process")
    assert (modes / "GPU-0").read_text().lower() == "default"


def test_the_stand_in_refuses_what_the_real_one_refuses(node: MpsNode, program: MpsProgram) -> None:
    start(node.agent(), A)
    control = node.control()
    for command in (
        "unknown",
        "set_default_active_thread_percentage 0",
        "set_default_active_thread_percentage 101",
        "set_default_device_pinned_mem_limit 1 5M",
        "set_default_device_pinned_mem_limit 0 5",
        "get_server_status 1",
    ):
        with pytest.raises(Unavailable):
            control.send(command)


def test_the_agents_view_counts_clients_of_each_container(
    node: MpsNode, program: MpsProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    mps = node.agent()
    start(mps, A, B)
    by_pod = {each.share.ref.pod.name: each.clients for each in mps.limited()}
    assert by_pod == {"a": 0, "b": 0}
    assert mps.problems() == {"GPU-0": ""}

"""An agent that is killed in this process: what it leaves behind, and what it cannot do."""

import socket

import pytest

from contract.allocation import Allocation, Evidence
from simulator.node.mortal import CUT, AgentDies, Death, InCall, MortalOutbox, no_hook
from tests.agent.fakes import asks, eventually, make_pod
from tests.situations.build import a_node, a_pod, gpu, said_to, uid_of

GOT = {"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}


class Written:
    """A :class:`agent.allocator.model.ports.AnnotationWriter`."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def put(self, view: object, allocations: dict[str, Allocation]) -> None:
        self.names.append(str(getattr(view, "id", "")))


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_killed_agent_has_not_written_is_never_written(waits: bool) -> None:
    written, death = Written(), Death(no_hook)
    writer = MortalOutbox(written, death, waits=waits)
    writer.put(make_pod("a", asks(30, 8)), GOT)
    assert written.names == ([] if waits else ["default/a"])
    writer.write()
    assert written.names == ["default/a"]
    writer.put(make_pod("b", asks(30, 8)), GOT)
    death.come()
    writer.put(make_pod("c", asks(30, 8)), GOT)
    writer.write()
    assert written.names == (["default/a"] if waits else ["default/a", "default/b"])


def test_a_killed_agent_leaves_sockets_on_which_nobody_listens() -> None:
    with a_node() as node:
        node.kill_agent()
        assert not any(node.kubelet.capacity()[1].values())
        left = list(node.plugin_dir.glob("v*.sock"))
        assert len(left) == 2
        for path in left:
            assert path.is_socket()
            with socket.socket(socket.AF_UNIX) as caller, pytest.raises(ConnectionRefusedError):
                caller.connect(str(path))
        node.start_agent()
        node.wait_until_offered()
        node.admit([a_pod("a")])
        assert {*node.pods.recorded("uid-a")} == {"c0"}


def test_a_call_in_which_the_agent_dies_is_cut_and_says_so_in_the_kubelets_words() -> None:
    def hook(moment: InCall) -> None:
        if moment.call == "Allocate":
            raise AgentDies

    pod = a_pod("a", gpu("c0"))
    with a_node(agent_hook=hook) as node:
        node.bind(pod)
        eventually(lambda: said_to(node, uid_of(pod)), "the pod is rejected")
        assert said_to(node, uid_of(pod)) == (
            "Pod was rejected: Allocate failed due to rpc error: code = Unavailable desc = "
            f"{CUT}, which is unexpected"
        )
        assert node.pods.recorded(uid_of(pod)) == {}
        assert node.diary.refusals == []

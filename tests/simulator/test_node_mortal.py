"""An agent that is killed in this process: what it leaves behind, and what it cannot do."""

import socket

import pytest

from simulator.node.mortal import CUT, AgentDies, InCall
from tests.agent.fakes import eventually
from tests.situations.build import a_node, a_pod, gpu, said_to, uid_of


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

"""Situation 9: a node boots: start order, leftover state, and all pods in one batch."""

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from contract.allocation import Evidence
from simulator.node.api import PodObject
from tests.agent.fakes import eventually
from tests.situations.build import CREATED, Json, Node, a_node, a_pod, gpu, sidecar, uid_of

LATER = "2025-01-15T09:00:00Z"
"""A creation time after :data:`CREATED`: the kubelet sorts a batch by it."""

pytestmark = pytest.mark.usefixtures("quick_restarts")

both_orders = pytest.mark.parametrize("agent_first", [True, False], ids=["agent", "kubelet"])


def stale_socket(path: Path) -> None:
    """Leave a socket's file as a killed process does: no process listens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def leave_stale_sockets(node: Node) -> None:
    """Leave everything that agent and kubelet had open."""
    for name in ("kubelet.sock", "vcore-0badcafe.sock", "vmemory-0badcafe.sock"):
        stale_socket(node.plugin_dir / name)
    stale_socket(node.record_socket)


def power_cut(node: Node) -> None:
    """End everything at once; only files are left."""
    node.kubelet.kill()
    node.end_agent()
    leave_stale_sockets(node)


def power_on(node: Node, log: pytest.LogCaptureFixture, *, agent_first: bool = False) -> None:
    """Boot: no container runs, and all pods come as one batch."""
    if agent_first:
        log.clear()  # of the previous agent
        node.start_agent()
        eventually(lambda: "registration failed" in log.messages, "the agent has tried")
    node.sweep_statuses()
    node.kubelet.reboot()
    node.kubelet.add_pods(*node.manifests.values())
    if not agent_first:
        node.start_agent()
    node.wait_until_offered()


def wait_until_running(node: Node, *manifests: Json) -> None:
    wanted = {
        (uid_of(each), container["name"])
        for each in manifests
        for container in each["spec"]["containers"]
    }
    eventually(lambda: wanted <= node.kubelet.running(), f"{sorted(wanted)} run")


def held(node: Node, manifests: Sequence[Json]) -> dict[str, set[tuple[str, str]]]:
    return {uid_of(each): node.held_device_ids(uid_of(each)) for each in manifests}


@pytest.mark.parametrize("seed", range(2))
def test_a_pod_admitted_before_the_plugin_registered_is_not_taken_for_the_next(
    seed: int,
) -> None:
    """The first boot: the kubelet does not know the resource yet, so the pod never gets it."""
    with a_node(seed=seed, boot=False) as node:
        node.start_kubelet()
        node.bind(a_pod("early", at=1))
        eventually(node.kubelet.idle, "the pod was admitted")
        node.start_agent()
        node.wait_until_offered()
        node.admit([a_pod("next", at=2)])
        node.admit([a_pod("after", at=3)])
        assert node.held_device_ids("uid-early") == set()
        node.assert_right("uid-next", "uid-after")
        node.assert_sound()


@both_orders
@pytest.mark.parametrize("seed", range(2))
def test_all_pods_come_back_as_one_batch_with_their_devices(
    seed: int, agent_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    old = [
        a_pod("two", gpu("c0", 10, 4), gpu("c1", 10, 8), at=1),
        a_pod("init", gpu("c0", 10, 4), init=[gpu("init", 20, 6), sidecar("side", 5, 1)], at=2),
        a_pod("card", gpu("c0", 100, 32), at=3),
        a_pod("twin", gpu("c0", 10, 4), at=4),
    ]
    new = [a_pod(f"new-{number}", gpu("c0", 10, 4), at=5 + number) for number in range(3)]
    with a_node(seed=seed, cards=3, memory="32Gi") as node:
        node.admit(old)
        before = held(node, old)
        power_cut(node)
        for each in new:  # bound while the node was down, in the same second as the others
            node.manifests[uid_of(each)] = each
            node.api.add(PodObject(each))
        power_on(node, caplog, agent_first=agent_first)
        wait_until_running(node, *old, *new)
        assert held(node, old) == before
        node.assert_right(*map(uid_of, old + new))
        node.assert_sound()
        node.admit([a_pod("next", at=9)])
        assert {*node.evidence_of("uid-next")} == {Evidence.WITNESS}
        node.assert_right("uid-next")
        node.assert_sound()


@both_orders
@pytest.mark.parametrize("seed", range(2))
def test_a_new_pod_admitted_before_old_ones_gets_a_card_with_free_memory(
    seed: int, agent_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It waited long to be scheduled, so it is older than the running pod, and first in the queue.

    ``List`` does not show the old pod yet in the new one's calls (fact K11). An agent that has just
    started knows only from the annotation that its card has no free memory.
    """
    old = a_pod("old", gpu("c0", 50, 32), created=LATER, at=1)
    new = a_pod("new", gpu("c0", 10, 4), created=CREATED, at=2)
    with a_node(seed=seed) as node:
        node.admit([old])
        power_cut(node)
        node.manifests = {"uid-new": new, "uid-old": old}
        node.api.add(PodObject(new))
        power_on(node, caplog, agent_first=agent_first)
        eventually(node.kubelet.idle, "both pods were handled")
        assert node.refusal_message("uid-new") == ""
        assert node.cards_of("uid-old").isdisjoint(node.cards_of("uid-new"))
        wait_until_running(node, old, new)
        node.admit([a_pod("next", at=3)])
        node.assert_right("uid-old", "uid-new", "uid-next")
        node.assert_sound()

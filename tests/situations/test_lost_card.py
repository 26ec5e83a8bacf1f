"""Cards are swapped while the agent restarts: every screen names the card that a pod had.

Real agent, extender, page and command line on a simulated cluster.
"""

import html
import json
import re
import urllib.request

import pytest

from contract.allocation import decode_allocations
from simulator.burst import container, pod
from simulator.cards import cards_file
from simulator.cluster import NAMES, NODE, SimulatedCluster, reserve_port
from simulator.manifests import Json
from simulator.objects import annotations
from tests.view.terminal.conftest import Result

A, B, C = (card["uuid"] for card in cards_file(3)["cards"])
NEW_A, NEW_B = "GPU-new-a", "GPU-new-b"
pytestmark = pytest.mark.timeout(1200)


def create(cluster: SimulatedCluster, name: str, cores: int, blocks: int, wish: str = "") -> None:
    """Create a pod, and wait until it runs and has its allocation annotation."""
    made = pod(name, [container("main", cores, blocks, NAMES)])
    if wish:
        made["metadata"].setdefault("annotations", {})[NAMES.use_gpu_uuid] = wish
    cluster.create(made)
    cluster.wait(f"{name} to run", lambda: cards_of(find(cluster, name)) != ())


def find(cluster: SimulatedCluster, name: str) -> Json:
    return next(each for each in cluster.pods() if each["metadata"]["name"] == name)


def cards_of(obj: Json) -> tuple[str, ...]:
    text = annotations(obj).get(NAMES.gpu_allocation)
    running = obj.get("status", {}).get("phase") == "Running"
    return decode_allocations(text)["main"].cards if text and running else ()


def missing_events(cluster: SimulatedCluster) -> set[str]:
    listed = cluster.api.list("/api/v1/namespaces/default/events")["items"]
    found = [each for each in listed if each["reason"] == "GPUMissing"]
    return {f"{each['involvedObject']['name']} {each['message']}" for each in found}


def test_every_screen_names_the_missing_card_and_the_next_pod_gets_a_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pods have A, and B and C; then A and B are swapped, and another pod comes."""
    with SimulatedCluster(lambda _number: cards_file(3)) as cluster:
        cluster.start_nodes(NODE)
        cluster.wait_for_nodes()
        cluster.enable_extender()
        create(cluster, "lost", 60, 24, A)
        create(cluster, "half", 200, 192, f"{B},{C}")
        cluster.kill(f"agent-{NODE}")
        cards = cluster.root / NODE / "cards.yaml"
        cards.write_text(cards.read_text().replace(A, NEW_A).replace(B, NEW_B))
        cluster.start(f"agent-{NODE}")
        cluster.wait("the new cards", lambda: NEW_A in str(cluster.inventories()[NODE]))
        cluster.wait("the Events", lambda: len(missing_events(cluster)) == 4)
        create(cluster, "next", 40, 24)

        check_events(cluster)
        check_placement(cluster)
        check_command_line(cluster, capsys)
        check_page(cluster)


def check_events(cluster: SimulatedCluster) -> None:
    text = "container main holds a card that this node does not have any more"
    assert missing_events(cluster) == {
        f"lost {text} ({A}), and cannot compute on it: delete the pod",
        f"half {text} ({B}), and cannot compute on it: delete the pod",
        f"{NODE} card {A} is gone or cannot be served; held by default/lost",
        f"{NODE} card {B} is gone or cannot be served; held by default/half",
    }


def check_placement(cluster: SimulatedCluster) -> None:
    """The extender and the agent count the lost cards' pods on no other card."""
    assert cards_of(find(cluster, "lost")) == (A,)
    (card,) = cards_of(find(cluster, "next"))
    assert card in (NEW_A, NEW_B)
    other = NEW_B if card == NEW_A else NEW_A

    def free() -> dict[str, int]:
        found = cluster.inventories()[NODE]
        return {each.uuid: cores for each, (cores, _) in zip(found.cards, found.free, strict=True)}

    cluster.wait("the inventory", lambda: free() == {card: 60, other: 100, C: 0})


def check_command_line(cluster: SimulatedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = ("--kubeconfig", f"{cluster.root}/kubeconfig")
    for words, expected in (
        (f"nodes {NODE}", f"pod default/lost holds a missing card ({A})"),
        (f"nodes {NODE}", f"pod default/half holds a missing card ({B})"),
        ("pods", f"container main holds a missing card ({A})"),
        (
            "explain lost",
            f"Pod default/lost runs on {NODE}; container main holds a missing card ({A})",
        ),
        ("explain half", f"card 2 and a missing card ({B}), reported by the agent"),
        ("doctor", f"holds a missing card ({A}) and cannot compute on it: delete the pod"),
    ):
        assert expected in Result([*words.split(), "--no-color", *kubeconfig], capsys).out
    (node,) = json.loads(Result(["nodes", "-o", "json", *kubeconfig], capsys).out)["items"]
    holders = {
        card["uuid"]: {each["pod"] for each in card["holders"]} - {"next"} for card in node["cards"]
    }
    assert holders == {NEW_A: set(), NEW_B: set(), C: {"half"}}


def check_page(cluster: SimulatedCluster) -> None:
    with reserve_port() as port:
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        cluster.start("view", f"--port={port.getsockname()[1]}")
        cluster.wait("page", lambda: cluster.reaches(f"{url}/readyz"))

    def text(path: str) -> str:
        with urllib.request.urlopen(url + path, timeout=60) as response:
            return html.unescape(re.sub(r"<[^>]*>", "", response.read().decode()))

    assert f"pod default/lost holds a missing card ({A})" in text("/")
    pod = text("/pods/default/lost")
    assert f"container main holds a missing card ({A})" in pod
    assert f"missing card: 60 cores, 24 blocks (6 GiB) {A}" in " ".join(pod.split())

"""Cards are swapped while the agent restarts: every screen names the card that a pod had.

Real agent, extender, page and command line on a simulated cluster.
"""

import html
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.allocation import decode_allocations
from simulator.burst import container, pod
from simulator.cards import cards_file
from simulator.cluster import NAMES, NODE, SimulatedCluster, free_port
from simulator.manifests import Json
from simulator.objects import annotations
from tests.view.terminal.conftest import Result

A, B, C = (card["uuid"] for card in cards_file(3)["cards"])
NEW_A, NEW_B = "GPU-new-a", "GPU-new-b"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def create(cluster: SimulatedCluster, name: str, cores: int, blocks: int, wish: str = "") -> None:
    """Create a pod, and wait until it runs and is recorded."""
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


@pytest.fixture(scope="module", name="cluster")
def _cluster() -> Iterator[SimulatedCluster]:
    """Pods on A, and on B and C; then A and B are swapped, and another pod comes."""
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
        yield cluster


def missing_events(cluster: SimulatedCluster) -> dict[str, str]:
    listed = cluster.api.list("/api/v1/namespaces/default/events")["items"]
    found = [each for each in listed if each["reason"] == "GPUMissing"]
    return {f"{each['involvedObject']['name']} {each['message']}": each["type"] for each in found}


def test_a_pod_that_fits_on_the_new_cards_is_placed_there(cluster: SimulatedCluster) -> None:
    """The extender and the agent count the lost cards' pods on no other card."""
    assert cards_of(find(cluster, "lost")) == (A,)
    (card,) = cards_of(find(cluster, "next"))
    assert card in (NEW_A, NEW_B)
    other = NEW_B if card == NEW_A else NEW_A

    def free() -> dict[str, int]:
        found = cluster.inventories()[NODE]
        return {each.uuid: cores for each, (cores, _) in zip(found.cards, found.free, strict=True)}

    cluster.wait("the inventory", lambda: free() == {card: 60, other: 100, C: 0})


def test_events_name_card_and_pods(cluster: SimulatedCluster) -> None:
    text = "container main holds a card that this node does not have any more"
    assert set(missing_events(cluster)) == {
        f"lost {text} ({A}), and cannot compute on it: delete the pod",
        f"half {text} ({B}), and cannot compute on it: delete the pod",
        f"{NODE} card {A} is gone or cannot be served; held by default/lost",
        f"{NODE} card {B} is gone or cannot be served; held by default/half",
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"nodes {NODE}", f"pod default/lost holds a missing card ({A})"),
        (f"nodes {NODE}", f"pod default/half holds a missing card ({B})"),
        ("pods", f"container main holds a missing card ({A})"),
        (
            "explain lost",
            f"Pod default/lost runs on {NODE}; container main holds a missing card ({A})",
        ),
        ("explain half", f"card 2 and a missing card ({B}), reported by the agent"),
        ("doctor", f"holds a missing card ({A}) and cannot compute on it: delete the pod"),
    ],
)
def test_the_command_line_names_the_card(
    cluster: SimulatedCluster, capsys: pytest.CaptureFixture[str], words: str, expected: str
) -> None:
    kubeconfig = str(Path(cluster.root) / "kubeconfig")
    result = Result([*words.split(), "--no-color", "--kubeconfig", kubeconfig], capsys)
    assert expected in result.out


def test_json_shows_no_present_card_of_the_pod(
    cluster: SimulatedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = str(Path(cluster.root) / "kubeconfig")
    result = Result(["nodes", "-o", "json", "--kubeconfig", kubeconfig], capsys)
    (node,) = json.loads(result.out)["items"]
    holders = {
        card["uuid"]: {each["pod"] for each in card["holders"]} - {"next"} for card in node["cards"]
    }
    assert holders == {NEW_A: set(), NEW_B: set(), C: {"half"}}


def test_the_page_names_the_card(cluster: SimulatedCluster) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    cluster.start("view", f"--port={url.rpartition(':')[2]}")
    cluster.wait("page", lambda: cluster.reaches(f"{url}/readyz"))

    def text(path: str) -> str:
        with urllib.request.urlopen(url + path, timeout=20) as answer:
            return html.unescape(re.sub(r"<[^>]*>", "", answer.read().decode()))

    assert f"pod default/lost holds a missing card ({A})" in text("/")
    assert f"container main holds a missing card ({A})" in text("/pods/default/lost")
    parts = " ".join(text("/pods/default/lost").split())
    assert f"missing card: 60 cores, 24 blocks (6 GiB) {A}" in parts

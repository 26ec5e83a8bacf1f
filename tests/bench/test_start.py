"""The question ``start``, with an API server and a clock in memory."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from click.testing import CliRunner

from bench import __main__ as command
from bench.process import ProcessFailed
from bench.result import NotPossible, Result
from bench.start import MODES, Bursts, Target, choose, namespace, run, table
from common.apiserver.client import Client
from common.errors import Unavailable
from contract.claims import DRA_MODE, MODE_LABEL
from contract.inventory import Amounts, Card, PublishedInventory, encode_inventory
from contract.names import Names

Json = dict[str, Any]
NAMES = Names()
DEVICE_PLUGIN, CLAIMS = MODES


def node(name: str, *free: Amounts, pods: int = 110, claims: bool = False, **spec: Any) -> Json:
    """A node with a card for each of the free amounts."""
    cards = tuple(Card(f"GPU-{index}", index, "A", 1 << 35) for index in range(len(free)))
    text = encode_inventory(PublishedInventory(1 << 28, cards, (), free))
    labels = {MODE_LABEL: DRA_MODE} if claims else {}
    allocatable = {NAMES.core: f"{100 * len(free)}", "pods": f"{pods}"}
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": name, "annotations": {NAMES.gpu_cards: text}, "labels": labels},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": [ready]},
    }


FREE = Amounts(100, 128)


@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [
        ([node("a", FREE, FREE)], ("a", 5)),
        ([node("a", FREE)], ("a", 2)),
        ([node("a", FREE), node("b", Amounts(36, 36), FREE)], ("b", 3)),
        ([node("a", Amounts(9, 100), Amounts(100, 27))], ("a", 1)),
    ],
    ids=["largest", "smaller", "node with larger shares", "cores and blocks of each card"],
)
def test_the_node_with_the_largest_shares_is_chosen(
    nodes: list[Json], chosen: tuple[str, int]
) -> None:
    assert choose(DEVICE_PLUGIN, nodes, lambda _: 0, 36) == Target(DEVICE_PLUGIN, *chosen)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([], "no node has cards"),
        ([node("a", FREE, claims=True)], "no node has cards"),
        ([node("a", FREE, unschedulable=True)], "no node has cards"),
        ([node("a", Amounts(20, 128))], "only 20 of 36 pods fit on node a"),
        ([node("a", FREE, pods=40)], "only 30 of 36 pods fit on node a"),
    ],
    ids=["no node", "other mode", "cordoned", "cards", "pods of the node"],
)
def test_a_mode_without_room_is_not_measured(nodes: list[Json], reason: str) -> None:
    with pytest.raises(NotPossible, match=f"^device plugin: {reason}$"):
        choose(DEVICE_PLUGIN, nodes, lambda _: 10, 36)


class Cluster:
    """An API server whose pods all run, or fail, some seconds after the first was created.

    Those of pods with a share, and those of pods without a GPU.
    """

    def __init__(self, seconds: tuple[float, float] = (3.0, 2.0), *, failing: bool = False) -> None:
        self.now = 0.0
        self.bursts: list[tuple[bool, int]] = []
        self.namespaces: list[str] = []
        self._seconds, self._failing = seconds, failing
        self._pods: list[Json] = []
        self._runs_at = 0.0

    def call(self, method: str, path: str, body: Json | None = None, **_: object) -> Json:
        if body is None:
            if path.endswith("/pods"):
                limits = self._pods[0]["spec"]["containers"][0]["resources"]["limits"]
                self.bursts.append((bool(limits), len(self._pods)))
                self._pods = []
            else:
                self.namespaces.remove(path.rpartition("/")[2])
        elif path.endswith("/pods"):
            limits = body["spec"]["containers"][0]["resources"]["limits"]
            if not self._pods:
                self._runs_at = self.now + self._seconds[not limits]
            self._pods.append(body)
        else:
            self.namespaces.append(f"{body['metadata']['generateName']}x")
            return {"metadata": {"name": self.namespaces[-1]}}
        return {}

    def find(self, path: str, **_: object) -> Json | None:
        assert path == "/api/v1/namespaces/bench/serviceaccounts/default"
        return {} if self.now else None  # it is created after the namespace

    def list(self, path: str, query: Mapping[str, str]) -> tuple[list[Json], str, str]:
        if path.endswith("resourceclaims"):
            return [], "", ""
        phase = "Failed" if self._failing else "Running"
        status = {"phase": phase, "message": "no card"} if self.now >= self._runs_at else {}
        return [{**each, "status": status} for each in self._pods], "", ""

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def bursts(cluster: Cluster) -> Bursts:
    client = cast(Client, cluster)
    return Bursts(client, "bench", "pause", clock=lambda: cluster.now, sleep=cluster.sleep)


@pytest.mark.parametrize("mode", MODES)
def test_shares_and_pods_without_a_gpu_take_turns_after_one_of_each(mode: str) -> None:
    cluster = Cluster()
    seconds = bursts(cluster).measure(Target(mode, "a", 2), 36, 3)
    assert len(seconds) == 3
    assert all(each == pytest.approx((3.0, 2.0), abs=0.2) for each in seconds)
    assert cluster.bursts == [(True, 1), (False, 1), *[(True, 36), (False, 36)] * 3]


def test_a_pod_that_fails_or_does_not_run_ends_the_measurement() -> None:
    with pytest.raises(ProcessFailed, match=r"^pod burst-0 failed: no card$"):
        bursts(Cluster(failing=True)).measure(Target(DEVICE_PLUGIN, "a", 2), 36, 1)
    with pytest.raises(ProcessFailed, match=r"^not within 300 s: all 1 pods run$"):
        bursts(Cluster((1000.0, 1.0))).measure(Target(DEVICE_PLUGIN, "a", 2), 36, 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ProcessFailed, Unavailable])
def test_the_namespace_is_deleted_whatever_happens(error: type[BaseException]) -> None:
    cluster = Cluster()

    def fail() -> None:
        with namespace(cast(Client, cluster)):
            assert cluster.namespaces == ["gpu-turnstile-bench-x"]
            raise error

    with pytest.raises(error):
        fail()
    assert cluster.namespaces == []


def test_the_table_has_medians_each_turn_and_what_is_missing() -> None:
    turns = [(10.0, 8.0), (9.0, 9.0), (12.0, 10.0)]
    found = table({Target(CLAIMS, "a", 5): turns}, 36, ["device plugin: no node has cards"])
    assert found.rows == [(CLAIMS, 10.0, 9.0, 1.2, "10.0 : 8.0, 9.0 : 9.0, 12.0 : 10.0")]
    assert found.notes == (
        "claims: 5 cores and 1 memory block a pod, node a",
        "not measured: device plugin: no node has cards",
    )


def test_start_without_a_cluster_is_skipped_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "QUESTIONS", {"start": lambda **_: run({})})
    done = CliRunner().invoke(command.main, [])
    assert (done.exit_code, done.output) == (0, "start: skipped: KUBECONFIG names no cluster\n")
    monkeypatch.setattr("sys.argv", ["bench", "start"])
    with pytest.raises(SystemExit, match="2"):
        command.entry()
    assert capsys.readouterr().err == "error: KUBECONFIG names no cluster\n"


def test_options_reach_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*, pods: int, image: str) -> Result:
        raise NotPossible(f"{pods} of {image}")

    monkeypatch.setattr(command, "QUESTIONS", {"start": measure})
    done = CliRunner().invoke(command.main, ["--pods", "7"])
    assert done.output == "start: skipped: 7 of registry.k8s.io/pause:3.10\n"

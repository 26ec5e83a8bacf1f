"""Pods of a PodGroup, as kube-scheduler asks about them: one after the other, then it binds all."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from placement.cluster.nominations import CardPromise, Nomination
from scheduler.groups import KEPT_ELSEWHERE
from scheduler.nominations import TOLD_SECONDS
from scheduler.refused import RefusedPods
from scheduler.state import State
from scheduler.victims import VictimSearch
from tests.placement.cluster.builders import NAMES, Json, a_pod, hint, make_node, make_pod
from tests.scheduler.states import free_amounts
from tests.scheduler.test_handler import Stage

PROMISE = {NAMES.gpu_promise: "train/main"}


class Cluster(Stage):
    """An extender, and a kube-scheduler that schedules groups."""

    def __init__(self, *nodes: Json) -> None:
        super().__init__()
        self.now = 1_800_000_000.0
        self.state.now = lambda: self.now
        self.state.replace_nodes(nodes)
        self.objects = nodes
        self.nodes = [each["metadata"]["name"] for each in nodes]

    def create(self, name: str, *limits: tuple[int, int], group: str = "", **more: Any) -> None:
        pod = self.api.pods[name] = make_pod(name, *limits, **more)
        if group:
            pod["spec"]["schedulingGroup"] = {"podGroupName": group}
        self.state.put_pod(pod)

    def ask(self, name: str) -> Sequence[str]:
        args = {"Pod": self.api.pods[name], "Nodes": None, "NodeNames": self.nodes}
        found: list[str] = self.post("filter", args)["NodeNames"]
        return found

    def bind(self, name: str, node: str) -> str:
        pod = {"PodName": name, "PodNamespace": "default", "PodUID": f"u-{name}", "Node": node}
        error: str = self.post("bind", pod)["Error"]
        if not error:
            self.state.put_pod(self.api.pods[name])
        return error

    def schedule(self, *names: str, between: Sequence[str] = ()) -> list[str]:
        """Bind all of a group or none, after pods *between*; return the errors."""
        chosen = {name: found[0] for name in names if (found := self.ask(name))}
        errors = [self.bind(each, found[0]) for each in between if (found := self.ask(each))]
        assert not any(errors)
        if len(chosen) < len(names):
            return ["waits"]
        return [error for name, node in chosen.items() if (error := self.bind(name, node))]


@pytest.mark.parametrize(
    ("cards", "pods", "bound"),
    [(4, 6, 0), (4, 4, 4), (4, 5, 0), (2, 2, 2)],
)
def test_a_group_starts_whole_or_not_at_all(cards: int, pods: int, bound: int) -> None:
    cluster = Cluster(make_node("n1", cards // 2), make_node("n2", cards // 2))
    names = [f"p{number}" for number in range(pods)]
    for name in names:
        cluster.create(name, (60, 4), group="g")
    assert cluster.schedule(*names) == ([] if bound else ["waits"])
    assert sum("nodeName" in each["spec"] for each in cluster.api.pods.values()) == bound


@pytest.mark.parametrize("seed", range(50))
def test_no_group_is_started_by_halves_whatever_comes_between(seed: int) -> None:
    """Four groups in each of 50 clusters: none of 200."""
    random = Random(seed)
    sizes = [(30, 4), (50, 8), (60, 10), (100, 0), (200, 0)]
    nodes = [make_node(f"n{number}", random.choice([1, 2, 4])) for number in range(3)]
    cluster = Cluster(*nodes)
    for gang in range(4):
        names = [f"g{gang}-{number}" for number in range(random.randint(1, 6))]
        for name in names:
            cluster.create(name, random.choice(sizes), group=f"g{gang}")
        alone = [f"s{gang}-{number}" for number in range(random.randint(0, 3))]
        for name in alone:
            cluster.create(name, random.choice(sizes))
        assert cluster.schedule(*names, between=alone) in ([], ["waits"])
        cluster.now += random.choice([0, 1, 10])
        cluster.state.end_expired_promises()


def test_a_pod_of_a_group_gets_one_node_and_its_cards() -> None:
    cluster = Cluster(make_node("n1", 2), make_node("n2", 1))
    cluster.create("old", (30, 4), node="n2", annotations=hint("0"))
    for name in ("a", "b"):
        cluster.create(name, (60, 4), group="g")
    args = {"Pod": cluster.api.pods["a"], "Nodes": None, "NodeNames": cluster.nodes}
    found = cluster.post("filter", args)
    assert found["NodeNames"] == ["n2"]  # the fuller one
    assert found["FailedNodes"] == {"n1": f"gpu-turnstile: {KEPT_ELSEWHERE}"}
    assert cluster.ask("b") == ["n1"]
    assert cluster.ask("a") == ["n2"]  # again: its own cards are no obstacle


def test_kept_cards_are_free_again_once_the_group_is_given_up() -> None:
    cluster = Cluster(make_node("n1", 1))
    cluster.create("a", (60, 4), group="g")
    cluster.create("other", (60, 4))
    assert cluster.ask("a") == ["n1"]
    assert cluster.ask("other") == []
    cluster.now += TOLD_SECONDS + 1
    cluster.state.end_expired_promises()
    assert cluster.ask("other") == ["n1"]
    assert cluster.ask("a") == ["n1"]
    cluster.state.drop_pod("u-a")
    assert cluster.ask("other") == ["n1"]


def test_a_group_of_which_one_fits_nowhere_keeps_its_cards_for_a_shorter_time() -> None:
    cluster = Cluster(make_node("n1", 2))
    for name in ("a", "b", "c", "d"):
        cluster.create(name, (60, 4) if name != "d" else (10, 4), group="g")
    cluster.create("other", (60, 4))
    assert [cluster.ask(name) for name in "abcd"] == [["n1"], ["n1"], [], ["n1"]]
    cluster.now += 3
    assert cluster.state.end_expired_promises() == {"default/g"}
    assert cluster.ask("other") == ["n1"]


@pytest.mark.parametrize(
    ("enough", "bound", "free"),
    [(3, 0, True), (2, 0, False), (3, 1, False), (None, 0, False)],
)
def test_a_group_that_has_too_few_cards_keeps_none_from_the_next_pod(
    enough: int | None, bound: int, free: bool
) -> None:
    """kube-scheduler has decided about the group when it asks about another pod."""
    cluster = Cluster(make_node("n1", 2 + bound))
    read: list[str] = []

    def read_enough(group: str) -> int | None:
        read.append(group)
        return enough

    cluster.handler.read_enough = read_enough
    for number in range(bound):
        cluster.create(f"old-{number}", (100, 0), group="g")
        assert cluster.schedule(f"old-{number}") == []
    for name in ("a", "b", "c"):
        cluster.create(name, (60, 4), group="g")
    for name in ("x", "y"):
        cluster.create(name, (60, 4), group="other")
    assert [cluster.ask(name) for name in "abc"] == [["n1"], ["n1"], []]
    assert cluster.ask("x") == (["n1"] if free else [])
    assert cluster.ask("y") == (["n1"] if free else [])
    cluster.ask("c")
    assert read.count("default/g") == 1  # also if it cannot be read: each request would wait
    if not free and enough:  # its Bindings follow
        assert [cluster.bind(name, "n1") for name in "ab"] == ["", ""]


def test_a_group_is_not_asked_about_again_because_of_its_own_cards() -> None:
    """Else a group that never fits would be tried every few seconds, for ever."""
    cluster = Cluster(make_node("n1", 1))
    clock = 0.0
    refused = cluster.handler.refused = RefusedPods(cluster.state, lambda: clock)
    search = VictimSearch(cluster.state)
    for name in ("a", "b"):
        cluster.create(name, (60, 4), group="g")
    cluster.create("other", (60, 4))
    assert [cluster.ask(name) for name in ("a", "b", "other")] == [["n1"], [], []]
    cluster.now += 3
    clock = 3.0
    refused.pass_over(cluster.state.end_expired_promises())
    assert [str(each) for each in refused.take_released(search)] == ["default/other"]


def test_a_binding_that_fails_gives_the_cards_back() -> None:
    cluster = Cluster(make_node("n1", 1))
    cluster.create("a", (60, 4), group="g")
    (node,) = cluster.ask("a")
    del cluster.api.pods["a"]["spec"]["schedulingGroup"]
    cluster.api.before = [lambda: cluster.state.drop_pod("u-a")]
    assert not cluster.bind("a", node)
    cluster.state.drop_pod("u-a")
    assert free_amounts(cluster.state) == [(100, 32)]


# --- cards that an admission check keeps for the pods of a pod set ---------------------------


def promise(state: State, *nodes: str, until: float = 2e9) -> None:
    cards = [
        CardPromise(
            a_pod("", (60, 4), uid=""),
            Nomination(node, {"c0": (nodes[:at].count(node),)}, (), int(until)),
        )
        for at, node in enumerate(nodes)
    ]
    state.nominations.promise("default/train/main", cards, until)


def test_promised_cards_go_to_the_pods_of_the_workload_one_each() -> None:
    cluster = Cluster(make_node("n1", 2), make_node("n2", 1))
    promise(cluster.state, "n1", "n1", "n2")
    cluster.create("other", (60, 4))
    cluster.create("high", (60, 4))
    cluster.api.pods["high"]["spec"]["priority"] = 1000
    assert cluster.ask("other") == cluster.ask("high") == []
    for number in range(4):
        cluster.create(f"p{number}", (60, 4), annotations=PROMISE)
    told = [cluster.ask(f"p{number}") for number in range(3)]
    assert sorted(node for (node,) in told) == ["n1", "n1", "n2"]
    assert cluster.ask("p3") == []  # nothing is left, and nothing else is free
    assert [cluster.bind(f"p{number}", node) for number, (node,) in enumerate(told)] == [""] * 3
    assert cluster.ask("other") == []
    cluster.state.drop_pod("u-p0")  # it has failed: its Job creates another
    assert cluster.ask("other") == []
    assert cluster.ask("p3") == told[0]


def test_promised_cards_are_free_once_the_time_is_over_or_the_workload_has_ended() -> None:
    cluster = Cluster(make_node("n1", 1))
    cluster.create("other", (60, 4))
    promise(cluster.state, "n1", until=cluster.now + 10)
    cluster.now += 11
    cluster.state.end_expired_promises()
    assert cluster.ask("other") == ["n1"]
    promise(cluster.state, "n1")
    assert cluster.ask("other") == []
    cluster.state.nominations.end_promise("default/train/main")
    assert cluster.ask("other") == ["n1"]


def test_a_promise_that_is_read_after_its_pods_counts_only_for_the_others() -> None:
    """As after a start, when pods are listed first."""
    cluster = Cluster(make_node("n1", 2))
    cluster.create("p0", (60, 4), node="n1", annotations=PROMISE | hint("0"))
    promise(cluster.state, "n1", "n1")
    cluster.create("p1", (60, 4), annotations=PROMISE)
    cluster.create("other", (40, 4))
    assert cluster.ask("p1") == ["n1"]
    assert cluster.ask("other") == ["n1"]  # beside the first pod
    cluster.create("more", (60, 4))
    assert cluster.ask("more") == []

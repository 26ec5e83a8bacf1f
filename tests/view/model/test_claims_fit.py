"""How manifests fit on nodes that serve claims, where kube-scheduler chooses the cards."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod, record
from tests.view import scenes
from tests.view.model.test_claims import dra_node
from tests.view.model.test_state import state_of
from tests.view.scenes import claimed
from view.model.state import ClusterState


def manifest(cores: int = 40, *, replicas: int = 1, **pod: Any) -> Json:
    limits = {"limits": {NAMES.core: str(cores), NAMES.memory: "4"}}
    template = {"spec": {"containers": [{"name": "main", "resources": limits}], **pod}}
    return {"kind": "Deployment", "spec": {"replicas": replicas, "template": template}}


def fit(state: ClusterState, *manifests: Json) -> list[tuple[str, int, str]]:
    return [(each.result.value, each.room, each.claims) for each in state.fit(*manifests)]


FIRST = (
    "By a claim: kube-scheduler takes the first cards that fit, without scores, and preempts no "
    "pod for a card"
)
EITHER = (
    "Some nodes serve claims, and the webhook's --claims decides whether pods get one: with a "
    "claim "
)


def test_the_first_card_that_fits_is_taken_and_not_the_fullest() -> None:
    """The agent's own placement would take card 1, so that card 0 stays whole."""
    held = scenes.running("b", (50, 4), "n1", 1)
    pod = manifest()
    (by_plugin,) = state_of([make_node("n1", 2)], [held]).fit(pod)
    assert by_plugin.nodes[0].placement == (("main", (1,)),)
    (by_claim,) = state_of([dra_node(cards=2)], [claimed(held, "b-gpus")]).fit(pod)
    assert by_claim.nodes[0].placement == (("main", (0,)),)


def test_by_first_fit_fewer_pods_may_fit_than_by_the_agents_placement() -> None:
    """60 takes card 0 of 100 although 60 are free on card 1, so that 100 do not fit any more."""
    held = scenes.running("b", (40, 4), "n1", 1)
    manifests = [manifest(60), manifest(100)]
    by_plugin = state_of([make_node("n1", 2)], [held])
    assert [room for _, room, _ in fit(by_plugin, *manifests)] == [1, 1]
    by_claim = state_of([dra_node(cards=2)], [claimed(held, "b-gpus")])
    assert fit(by_claim, *manifests) == [("fits", 1, FIRST), ("does not fit", 0, FIRST)]


def test_an_init_container_with_another_request_holds_its_share_until_the_pod_ends() -> None:
    pod = make_pod("a", (50, 4), inits=[(60, 4)])
    assert fit(state_of([make_node("n1", 1)]), pod) == [("fits", 1, "")]
    assert fit(state_of([dra_node()]), pod) == [("does not fit", 0, FIRST)]
    same = make_pod("a", (60, 4), inits=[(60, 4)])
    assert fit(state_of([dra_node()]), same) == [("fits", 1, FIRST)]
    prepared = record(i0=(["GPU-n1-0"], 30, 4), c0=(["GPU-n1-0"], 50, 4))
    runs = make_pod("a", (50, 4), inits=[(30, 4)], node="n1", annotations=prepared)
    (node,) = state_of([dra_node()], [claimed(runs, "a-gpus")]).report().nodes
    assert (node.cores_held, node.blocks_held) == (80, 8)


def test_with_both_kinds_of_nodes_fit_reports_what_both_have_in_common() -> None:
    state = state_of([dra_node("n1", 2), make_node("n2", 1)])
    assert fit(state, manifest(60)) == [("fits", 1, f"{EITHER}1 of 1 fit, without one 1 of 1 fit")]
    assert fit(state, manifest(60, replicas=2)) == [
        ("unknown", 1, f"{EITHER}2 of 2 fit, without one 1 of 2 fit")
    ]
    assert fit(state, manifest(60, replicas=3)) == [
        ("does not fit", 1, f"{EITHER}2 of 3 fit, without one 1 of 3 fit")
    ]
    (found,) = state.fit(manifest(60))
    assert [(each.node, each.fits) for each in found.nodes] == [("n1", True), ("n2", True)]
    assert found.placed == ()


def test_a_pod_that_has_its_claim_fits_only_where_claims_are_served() -> None:
    """As ``kubectl create --dry-run=server -o yaml`` prints it."""
    pod = claimed(make_pod("a", (60, 4)))
    (found,) = state_of([dra_node("n1"), make_node("n2", 1)]).fit(pod)
    assert [(each.node, each.fits, each.reason) for each in found.nodes] == [
        ("n1", True, ""),
        ("n2", False, "the node serves no claims"),
    ]
    assert (found.room, found.claims) == (1, FIRST)
    (found,) = state_of([make_node("n2", 1)]).fit(pod)
    assert (found.result.value, found.claims) == ("does not fit", "")
    assert found.short == "the node serves no claims (1 node)"


NAMED = (
    'spec.nodeName: Invalid value: "n1": the scheduler chooses the cards of a claim, and does not '
    "see a pod that names its node: use nodeSelector or affinity"
)


def test_requests_that_no_claim_can_have_would_be_denied() -> None:
    named = manifest(40, nodeName="n1")
    (found,) = state_of([dra_node()]).fit(named)
    assert (found.result.value, found.errors, found.nodes) == ("would be denied", (NAMED,), ())
    (found,) = state_of([make_node("n1", 1)]).fit(named)
    assert found.fits
    mixed = state_of([dra_node("n1"), make_node("n2", 1)])
    assert fit(mixed, named) == [
        ("unknown", 0, f"{EITHER}would be denied ({NAMED}), without one 1 of 1 fit")
    ]
    (found,) = state_of([dra_node(cards=1)]).fit(manifest(3300))
    assert "request 33 cards, a claim has at most 32" in found.errors[0]
    exists = make_pod("a", (40, 4), node="n1")  # its node says nothing of a new one
    (found,) = state_of([dra_node()]).fit(exists)
    assert found.fits


CHAIN = {(0, 1): "NV4", (1, 2): "NV4"}
TRIANGLE = {**CHAIN, (0, 2): "NV4"}
NVLINK = {NAMES.gpu_link: "nvlink"}
UNGROUPED = "NVLinks connect enough others, but a claim gets cards of one group"


@pytest.mark.parametrize(
    ("links", "held", "cards", "by_plugin", "by_claim"),
    [
        (CHAIN, [], 2, (0, 1), (0, 1)),
        (CHAIN, [0], 2, (1, 2), f"no 2 cards of one NVLink group are free; {UNGROUPED}"),
        (CHAIN, [1], 2, *("no 2 cards connected by NVLink are free",) * 2),
        (CHAIN, [], 3, (0, 1, 2), f"no 3 cards of one NVLink group are free; {UNGROUPED}"),
        (TRIANGLE, [0], 2, (1, 2), (1, 2)),
        (TRIANGLE, [1], 2, (0, 2), (0, 2)),
        (TRIANGLE, [], 3, (0, 1, 2), (0, 1, 2)),
    ],
)
def test_a_claim_gets_cards_of_one_nvlink_group(
    links: dict[tuple[int, int], str],
    held: list[int],
    cards: int,
    by_plugin: tuple[int, ...] | str,
    by_claim: tuple[int, ...] | str,
) -> None:
    """The device plugin also gives cards that a card of the same container connects."""
    pod = make_pod("a", (100 * cards, 0), annotations=NVLINK)
    for claims, expected in enumerate((by_plugin, by_claim)):
        node = (dra_node if claims else make_node)("n1", 3, links=links)
        pods = [scenes.running(f"b{at}", (30, 1), "n1", at) for at in held]
        (found,) = state_of([node], [claimed(each, "b") for each in pods] if claims else pods).fit(
            pod
        )
        if isinstance(expected, str):
            assert found.nodes[0].reason == expected
            texts = {each.text for each in found.changes}
            assert "remove the annotation tencent.com/gpu-link" in texts
        else:
            assert found.nodes[0].placement == (("c0", expected),)


_CORES = st.sampled_from([10, 30, 50, 70, 100, 200])
_HELD = st.lists(st.sampled_from([0, 30, 60]), min_size=1, max_size=4)


@patient
@given(st.lists(_CORES, min_size=1, max_size=2), _HELD, _HELD, st.integers(1, 3))
def test_fit_on_both_kinds_of_nodes_equals_fit_on_each_kind(
    cores: list[int], by_claim: list[int], by_plugin: list[int], replicas: int
) -> None:
    def pods_on(name: str, held: list[int]) -> list[Json]:
        amounts = [(at, (cores, 1)) for at, cores in enumerate(held) if cores]
        return [scenes.running(f"{name}-{at}", limit, name, at) for at, limit in amounts]

    first, claimants = dra_node("n1", len(by_claim)), pods_on("n1", by_claim)
    second, plain = make_node("n2", len(by_plugin)), pods_on("n2", by_plugin)
    claimants = [claimed(each, "c") for each in claimants]
    template = make_pod("a", *((each, 4) for each in cores))
    wanted = {"kind": "Deployment", "spec": {"replicas": replicas, "template": template}}
    alone = [state_of([first], claimants).fit(wanted)[0], state_of([second], plain).fit(wanted)[0]]
    (both,) = state_of([first, second], [*claimants, *plain]).fit(wanted)
    assert both.room == min(each.room for each in alone)
    results = {each.result.value for each in alone}
    assert both.result.value == (results.pop() if len(results) == 1 else "unknown")

"""The report of a whole cluster: tables, and placement and arithmetic as oracles."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract.cordon import describe_unknown
from contract.demand import CORES_PER_CARD
from contract.inventory import decode_inventory, encode_inventory
from placement.cluster.fit import Fit, check
from placement.cluster.holdings import Provenance
from placement.cluster.node_allocations import NodeAllocations
from placement.cluster.nodes import parse_node
from placement.pods import read_gpu_pod
from placement.scoring import Policy
from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, Json, hint, make_node, make_pod, record
from tests.view import scenes
from view.model.pod_explanation import PodExplanation
from view.model.reports import ClusterReport, Gap, NodeReport, PodReport, Stage
from view.model.state import ClusterState

ALL_PODS = Gap("pods", "default", "pods is forbidden")


def state_of(nodes: Sequence[Json], pods: Sequence[Json] = (), *gaps: Gap) -> ClusterState:
    state = ClusterState(NAMES, now=lambda: scenes.NOW)
    for node in nodes:
        state.put_node(node)
    for pod in pods:
        state.put_pod(pod)
    state.set_gaps(gaps)
    return state


def scene() -> ClusterState:
    state = state_of(scenes.nodes(), scenes.pods())
    for event in scenes.events():
        state.put_event(event)
    return state


def explanation_of(state: ClusterState, name: str) -> PodExplanation:
    found = state.explain("default", name)
    assert found is not None
    return found


def node_in(report: ClusterReport, name: str) -> NodeReport:
    return next(each for each in report.nodes if each.name == name)


def pod_in(report: ClusterReport, name: str) -> PodReport:
    return next(each for each in report.pods if each.name == name)


def _status(pod: Json, **status: Any) -> Json:
    return {**pod, "status": {**pod["status"], **status}}


CREATING = _status(
    scenes.running("a", (30, 4), "n1", 0),
    containerStatuses=[{"name": "c0", "state": {"waiting": {"reason": "ContainerCreating"}}}],
)
WAITS = make_pod("a", (30, 4))
GATED = _status(WAITS, conditions=[scenes.unschedulable("gate", "SchedulingGated")])
ODD = make_pod("a", (30, 4), annotations={NAMES.gpu_policy: "x"})
OUT = "OutOftencent.com/vcuda-core"
FITS = "it fits on the cards of n1; default-scheduler has not reported anything yet"
INVALID = (
    'metadata.annotations[tencent.com/gpu-policy]: Invalid value: "x": must be binpack or spread'
)


@pytest.mark.parametrize(
    ("pod", "stage", "why"),
    [
        (CREATING, Stage.RUNNING, ""),
        (make_pod("a", (30, 4), node="n1", phase="Succeeded"), Stage.SUCCEEDED, ""),
        (_status(make_pod("a", (30, 4), phase="Failed"), reason=OUT), Stage.REFUSED, OUT),
        (GATED, Stage.PENDING, "SchedulingGated: gate"),
        (WAITS, Stage.PENDING, FITS),
        (ODD, Stage.PENDING, INVALID),
    ],
)
def test_the_reason_of_a_pending_pod_is_one_line(pod: Json, stage: Stage, why: str) -> None:
    report = state_of([make_node("n1", 1)], [pod]).report()
    assert (report.pods[0].stage, report.pods[0].why) == (stage, why)


def test_a_pod_for_which_others_are_evicted_waits_for_their_end() -> None:
    victim = scenes.running("a", (80, 4), "n1", 0)
    pod = _status(make_pod("b", (30, 4)), nominatedNodeName="n1")
    assert state_of([make_node("n1", 1)], [victim, pod]).report().pods[1].why == (
        "no card has 30 cores and 4 blocks free (1 node); "
        "pods of lower priority are evicted for it on n1"
    )


def test_without_nodes_it_shows_that_there_are_none() -> None:
    pods = state_of([], [make_pod("a", (30, 4))]).report().pods
    assert pods[0].why == "no node of this cluster has GPUs"


def test_cards_of_a_pod_are_named_also_where_its_node_may_not_be_read() -> None:
    pods = [
        scenes.running("a", (30, 4), "n1", 0),
        make_pod("b", (30, 4), node="n1", annotations=hint("1")),
        make_pod("c", (30, 4), node="n1"),
    ]
    unread = Gap("nodes", "", "nodes is forbidden")
    by_record, by_choice, unknown = state_of([], pods, unread).report().pods
    assert by_record.containers[0].parts[0].uuid == "GPU-n1-0"
    assert by_record.containers[0].parts[0].index is None
    assert (by_choice.containers[0].parts[0].index, by_choice.containers[0].source) == (1, "chosen")
    assert unknown.containers[0].source is None


GONE = "node ghost does not exist: delete the pod"
ON_GHOST = [
    scenes.running("runs", (30, 4), "ghost", 0),
    make_pod("named", (30, 4), node="ghost"),
    make_pod("chosen", (30, 4), node="ghost", annotations={**scenes.stamps("ghost"), **hint("1")}),
]


@pytest.mark.parametrize("pod", ON_GHOST, ids=["runs", "named", "chosen"])
def test_a_pod_on_a_node_that_does_not_exist_fails_for_that_reason(pod: Json) -> None:
    state, name = state_of([make_node("n1", 1)], [pod]), pod["metadata"]["name"]
    (report,) = state.report([Stage.FAILING]).pods
    assert (report.why, report.node_missing) == (GONE, True)
    assert all(part.lost for each in report.containers for part in each.parts)
    found = explanation_of(state, name)
    assert found.summary == f"is bound to ghost and fails: {GONE}"
    bound = next(each for each in found.steps if each.name == "bound")
    assert (bound.text, bound.state) == ("to ghost: node ghost does not exist", "wrong")
    assert found.steps[-1].state != "done"
    assert (found.nodes, found.cards, found.changes) == ((), (), ())
    # What cannot be read is unknown, and what has ended needs no node.
    state.set_gaps([Gap("nodes", "", "no", some=True)])
    assert "exist" not in str(explanation_of(state, name))
    ended = state_of([], [{**pod, "status": {"phase": "Failed"}}]).report().pods[0]
    assert (ended.stage, ended.node_missing) == (Stage.FAILED, False)
    # Its node is deleted, and comes back.
    later = state_of([make_node("ghost", 2)], [pod])
    before = later.report().pods
    later.drop_node("ghost")
    assert later.report().pods[0].why == GONE
    later.put_node(make_node("ghost", 2))
    assert later.report().pods == before


def test_a_pod_is_not_said_to_evict_others_on_a_node_that_does_not_exist() -> None:
    pod = _status(make_pod("b", (60, 4)), nominatedNodeName="ghost")
    state = state_of([make_node("n1", 1)], [scenes.running("a", (80, 4), "n1", 0), pod])
    assert pod_in(state.report(), "b").why == "no card has 60 cores and 4 blocks free (1 node)"


def test_amounts_held_by_hidden_pods_are_reported_by_the_agent() -> None:
    node = scenes.free(make_node("n1", 1), cores=30, blocks=10)
    seen = scenes.running("a", (30, 4), "n1", 0)
    state = state_of([node], [seen], ALL_PODS)
    card = state.report().nodes[0].cards[0]
    assert [(each.cores, each.blocks, each.source) for each in card.holders] == [
        (30, 4, Provenance.RECORDED),
        (40, 18, Provenance.UNSEEN),
    ]
    assert (card.cores_free, card.blocks_free) == (30, 10)
    assert not state.fit(make_pod("b", (40, 4)))[0].fits
    state.set_gaps([])
    assert state.fit(make_pod("b", (40, 4)))[0].fits


NOT_READY = scenes.free(make_node("n1", 1))
NOT_READY["status"]["conditions"] = [
    {"type": "MemoryPressure", "status": "False"},
    {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"},
]


NOTES = {
    "cards 0, 1: the agent reports less free than the pods in the API leave: a pod has just ended, "
    "or was force-deleted and still runs": (make_node("n1", 2), []),
    "card 0: overcommitted": (
        scenes.free(make_node("n1", 1)),
        [scenes.running(name, (60, 4), "n1", 0) for name in ("a", "b")],
    ),
    "the node is cordoned: it gets no new pods": (
        {**scenes.free(make_node("n1", 1)), "spec": {"unschedulable": True}},
        [],
    ),
    "NotReady: NodeStatusUnknown": (NOT_READY, []),
    describe_unknown(["all"], NAMES): (
        scenes.free(make_node("n1", 1, cordoned=["all"])),
        [],
    ),
}


@pytest.mark.parametrize(("note", "objects"), NOTES.items())
def test_a_node_has_notes_on_what_is_odd(note: str, objects: tuple[Json, list[Json]]) -> None:
    node, pods = objects
    assert state_of([node], pods).report().nodes[0].notes == (note,)


def test_an_inventory_may_have_its_cards_in_any_order() -> None:
    node = make_node("n1", 2, unhealthy=[1])
    annotations = node["metadata"]["annotations"]
    inventory = decode_inventory(annotations[NAMES.gpu_cards])
    turned = replace(inventory, cards=inventory.cards[::-1], free=inventory.free[::-1])
    annotations[NAMES.gpu_cards] = encode_inventory(turned)
    cards = state_of([node]).report().nodes[0].cards
    assert [(each.index, each.unhealthy) for each in cards] == [(0, ""), (1, "Xid 79")]


def test_only_workloads_refused_for_their_gpus_are_listed() -> None:
    state = scene()
    other = scenes.denied()
    other["metadata"]["name"] = "quota"
    state.put_event({**other, "message": "exceeded quota"})
    assert [each.name for each in state.report().denied] == ["web-5d"]
    state.drop_event(scenes.denied())
    assert state.report().denied == ()


def test_events_about_several_names_of_pods_are_one_denied_workload() -> None:
    state = state_of([make_node("n1", 1)], [])
    for second in (3, 9, 5):  # a quota names the pod, so each try has an Event of its own
        event = {**scenes.denied(), "count": 2, "lastTimestamp": f"2025-11-22T08:57:0{second}Z"}
        event["metadata"] = {**event["metadata"], "name": str(second), "uid": f"u-{second}"}
        text = f'pods "web-5d-{second}" is forbidden: exceeded quota: gpus, requested: '
        state.put_event({**event, "message": f"{text}requests.tencent.com/vcuda-core=50"})
    (found,) = state.report().denied
    assert (found.at[-3:], found.count, "web-5d-9" in found.message) == ("09Z", 6, True)
    assert len(state.denied_workloads()) == 1


def test_a_state_after_changes_equals_a_new_one() -> None:
    """A state that saw everything come and go equals one that saw the end alone."""
    state = scene()
    state.report()
    moved = scenes.running("big", (60, 8), "n1", 0)
    state.drop_pod("u-train")
    state.put_pod(moved)
    state.put_node(scenes.free(make_node("n4", 1)))
    state.drop_event(scenes.events()[0])
    state.drop_node("n3")
    nodes = {each["metadata"]["name"]: each for each in scenes.nodes()}
    nodes["n4"] = scenes.free(make_node("n4", 1))
    del nodes["n3"]
    pods = [each for each in scenes.pods() if each["metadata"]["name"] not in ("train", "big")]
    fresh = state_of(list(nodes.values()), [*pods, moved])
    fresh.put_event(scenes.denied())
    assert state.report() == fresh.report()


def test_a_whole_card_holds_all_of_its_memory() -> None:
    recorded = record(c0=(["GPU-n1-0"], 100, 0), c1=(["GPU-n1-1"], 10, 4))
    both = make_pod("both", (100, 0), (10, 4), node="n1", annotations=recorded)
    expected = make_pod("expected", (200, 0), node="n1", annotations=scenes.stamps("n1", 1))
    report = state_of([make_node("n1", 4, blocks=16)], [both, expected]).report()
    node = node_in(report, "n1")
    assert [each.blocks_held for each in node.cards] == [16, 4, 16, 16]
    assert [each.blocks_free for each in node.cards] == [0, 12, 0, 0]
    assert [[one.blocks for one in each.holders] for each in node.cards] == [[16], [4], [16], [16]]
    assert not any(each.overbooked for each in node.cards)
    parts = [part for each in pod_in(report, "both").containers for part in each.parts]
    assert [(part.cores, part.blocks) for part in parts] == [(100, 16), (10, 4)]


def test_an_ended_pod_holds_nothing_and_shows_its_cards() -> None:
    state = state_of([make_node("n1", 1)], [pod := scenes.running("a", (30, 4), "n1", 0)])
    assert state.report().nodes[0].cores_held == 30
    state.put_pod(_status(pod, phase="Succeeded"))
    report = state.report()
    assert report.nodes[0].cores_held == 0
    assert report.pods[0].containers[0].parts[0].index == 0
    state.drop_node("n1")
    state.drop_pod("u-a")
    assert state.report() == ClusterReport((), (), (), ())


def _of_web(name: str, created: str, node: str = "n1", **more: Any) -> Json:
    pod = make_pod(name, (30, 4), node=node, **more)
    return scenes.owned(pod, "ReplicaSet", "web-5d", created)


@pytest.mark.parametrize(
    ("at", "created", "shown"),
    [
        ("2025-11-22T08:57:00Z", "", True),
        # The controller would have tried again, and said so.
        ("2025-11-22T08:39:00Z", "", False),
        # It could create a pod since, or could not again.
        ("2025-11-22T08:57:00Z", "2025-11-22T08:58:00Z", False),
        ("2025-11-22T08:57:00Z", "2025-11-22T08:56:00Z", True),
    ],
)
def test_a_denial_that_no_longer_applies_is_not_shown(at: str, created: str, shown: bool) -> None:
    state = state_of([make_node("n1", 1)], [_of_web("a", created)] if created else [])
    state.put_event({**scenes.denied(), "lastTimestamp": at})
    assert [each.at for each in state.report().denied] == [at] * shown


def test_a_failed_pod_with_a_newer_sibling_is_marked_as_replaced() -> None:
    failed = _of_web("a", "2025-11-22T08:50:00Z", phase="Failed")
    state = state_of([make_node("n1", 1)], [failed])
    assert not state.report().pods[0].replaced
    state.put_pod(_of_web("b", "2025-11-22T08:51:00Z", node=""))  # it touches no node
    assert [each.replaced for each in state.report().pods] == [True, False]
    assert state.report().pods[0].owner == "ReplicaSet/web-5d"


def test_a_deleted_pod_is_explained_for_15_minutes() -> None:
    now = scenes.NOW
    state = ClusterState(NAMES, now=lambda: now)
    state.put_node(make_node("n1", 1))
    state.put_pod(scenes.running("a", (30, 4), "n1", 0))
    state.put_pod(scenes.waiting("b", (30, 400)))
    for uid in ("u-a", "u-b"):
        state.drop_pod(uid)
    summaries = {"a": "runs on n1", "b": "is pending: no card has 400 blocks (1 node)"}
    for name, summary in summaries.items():
        found = explanation_of(state, name)
        assert found.deleted == "2025-11-22T09:00:00Z"
        assert found.summary == f"was deleted at {found.deleted}; before that it {summary}"
        assert (found.nodes, found.cards, found.changes) == ((), (), ())
    assert state.report().pods == ()
    now += timedelta(minutes=16)
    assert state.explain("default", "a") is None
    state.put_pod(scenes.running("a", (30, 4), "n1", 0))
    assert explanation_of(state, "a").deleted == ""


# --- properties -------------------------------------------------------------------------

_limit = st.tuples(st.sampled_from([10, 30, 50, 60, 100, 200]), st.sampled_from([1, 4, 9]))
_pods = st.lists(
    st.tuples(
        st.lists(_limit, min_size=1, max_size=2),
        st.lists(_limit, max_size=1),
        st.sampled_from(["record", "hint", "none"]),
        st.integers(0, 2),
    ),
    max_size=6,
)


def _bound(number: int, limits: Any, inits: Any, known: str, card: int) -> Json:
    annotations: dict[str, str] = {}
    first = limits[0]
    cards = [(card + each) % 3 for each in range(max(first[0] // 100, 1))]
    if known == "record":
        annotations = record(c0=([f"GPU-n1-{each}" for each in cards], *first))
    elif known == "hint":
        annotations = hint(",".join(map(str, cards)))
    annotations |= scenes.stamps("n1", scenes.STAMPED + number)
    return make_pod(f"p{number}", *limits, inits=inits, node="n1", annotations=annotations)


@patient
@example([([(200, 1)], [], "record", 0)], [(10, 1)])
@example([([(200, 4)], [(10, 4)], "hint", 0)], [(10, 1)])
@given(_pods, st.lists(_limit, min_size=1, max_size=2))
def test_held_and_free_add_up_and_the_largest_fit_matches_placement(
    pods: list[Any], limits: list[tuple[int, int]]
) -> None:
    objects = [_bound(number, *each) for number, each in enumerate(pods)]
    state = state_of([make_node("n1", 3, blocks=16)], objects)
    room = NodeAllocations("n1", Policy.BINPACK)
    room.set_node(parse_node(make_node("n1", 3, blocks=16), NAMES))
    for obj in objects:
        pod = read_gpu_pod(obj, NAMES)
        assert pod is not None
        room.add_pod(pod)
    report = state.report().nodes[0]
    for card, row in zip(report.cards, room.snapshot().free, strict=True):
        free = (card.cores_free, card.blocks_free)
        # The memory of a whole card that was requested without memory is not free.
        assert free == row or (free == (0, 0) and row[0] == 0)
        assert card.cores_held + card.cores_free == CORES_PER_CARD
        assert card.blocks_held + card.blocks_free == card.blocks
        if not card.overbooked:
            assert sum(each.cores for each in card.holders) == card.cores_held
            assert sum(each.blocks for each in card.holders) == card.blocks_held
    new = make_pod("new", *limits)
    parsed = read_gpu_pod(new, NAMES)
    assert parsed is not None
    (fit,) = state.fit(new)
    assert fit.fits == isinstance(check(parsed.pod_class, room.snapshot()), Fit)
    if fit.fits:
        assert fit.nodes[0].placement
    for change in fit.changes:
        assert change.nodes == ("n1",)


def test_a_mig_instance_is_no_whole_card() -> None:
    a100 = "NVIDIA A100-SXM4-40GB"
    node = make_node("n1", blocks=[158, 19], models=[a100, f"{a100} MIG 1g.5gb"])
    annotations = node["metadata"]["annotations"]
    annotations[NAMES.gpu_cards] = annotations[NAMES.gpu_cards].replace("GPU-n1-1", "MIG-n1-1")
    pods = [
        make_pod("holder", (50, 8), node="n1", annotations=record(c0=(["GPU-n1-0"], 50, 8))),
        make_pod("whole", (100, 0)),
        make_pod("named", (100, 0), annotations={NAMES.use_gpu_type: "1g.5gb"}),
    ]
    state = state_of([node], pods)
    assert node_in(state.report(), "n1").whole_cards == 0
    (fit,) = explanation_of(state, "whole").nodes
    assert not fit.fits
    assert fit.reason == "no card has 100 cores free, not counting MIG instances"
    assert [each.why_not for each in fit.cards] == [
        "50 cores free, 100 needed",
        "MIG instance: only for shares of one card, unless use-gpu-type or use-gpu-uuid names it",
    ]
    assert explanation_of(state, "named").nodes[0].placement == (("c0", (1,)),)

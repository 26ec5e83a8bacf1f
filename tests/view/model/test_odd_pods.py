"""Pods whose cards are missing or not recorded, and pods that are refused again and again."""

from datetime import UTC, datetime, timedelta

import pytest

from placement.cluster.holdings import Provenance
from tests.placement.cluster.builders import (
    NAMES,
    Json,
    bare_node,
    hint,
    make_node,
    make_pod,
    record,
)
from tests.view import scenes
from tests.view.conftest import ManualTime
from tests.view.model.test_state import explanation_of, node_in, pod_in, state_of
from tests.view.terminal.test_pages import drawn
from view.model.pod_groups import group_pods, most_urgent
from view.model.reports import Part, Stage
from view.model.state import ClusterState
from view.terminal.explanation import show_fits
from view.terminal.nodes import show_nodes
from view.web.filters import Filter
from view.web.summary import free_panel, problems_panel

# --- a recorded card that the node lacks ------------------------------------------------

ONE, TWO, MISSING = "GPU-n1-0", "GPU-n1-1", "GPU-gone-0"
LOST_TWO = "delete pod default/lost on card 1 of n1 (frees 50 cores, 8 blocks)"


def lost(name: str = "lost", cards: tuple[str, ...] = (MISSING,), cores: int = 50) -> Json:
    annotations = record(c0=(cards, cores, 8)) | hint("0")
    return make_pod(name, (cores, 8), node="n1", annotations=annotations, phase="Running")


def test_a_lost_card_is_shown_in_all_views() -> None:
    state = state_of([make_node("n1", 2)], [lost()])
    report = state.report()
    assert [card.holders for card in node_in(report, "n1").cards] == [(), ()]
    (container,) = pod_in(report, "lost").containers
    assert container.parts == (Part(MISSING, None, "", 50, 8, lost=True),)
    assert container.source is Provenance.RECORDED
    text = "container c0 holds a missing card (GPU-gone-0)"
    assert pod_in(report, "lost").why == text
    note = "pod default/lost holds a missing card (GPU-gone-0)"
    assert note in node_in(report, "n1").notes
    explanation = explanation_of(state, "lost")
    assert explanation.summary == f"runs on n1; {text}"
    allocated = next(each for each in explanation.steps if each.name == "allocated")
    held = "c0: 50 cores and 8 blocks of a missing card (GPU-gone-0), reported by the agent"
    assert (allocated.state, allocated.text.rpartition(", evidence")[0]) == ("wrong", held)


def test_one_of_two_cards_may_be_lost() -> None:
    state = state_of([make_node("n1", 2)], [lost(cards=(MISSING, TWO), cores=200)])
    report = state.report()
    one, two = node_in(report, "n1").cards
    assert (one.holders, two.cores_held) == ((), 100)
    (container,) = pod_in(report, "lost").containers
    assert [(each.uuid, each.lost) for each in container.parts] == [(TWO, False), (MISSING, True)]
    held = "c0: 200 cores and 8 blocks of card 1 and a missing card (GPU-gone-0), "
    assert explanation_of(state, "lost").steps[3].text.startswith(held)


def test_another_pod_fits_beside_it_and_its_deletion_is_not_suggested() -> None:
    node = make_node("n1", 1)
    state = state_of([node], [lost(), make_pod("new", (50, 4))])
    assert [each.fits for each in explanation_of(state, "new").nodes] == [True]
    state = state_of([node], [lost(), lost("held", (ONE,), 60), make_pod("new", (50, 4))])
    changes = explanation_of(state, "new").changes
    assert [each.text for each in changes if each.kind == "delete-pods"] == [
        "delete pod default/held on card 0 of n1 (frees 60 cores, 8 blocks)"
    ]


STILL = "kube-scheduler still counts pod default/lost, whose card is"
OF_MISSING = "delete pod default/lost on a missing card of n1 (counts as 50 cores, 8 blocks)"
SHORT = "0/1 nodes are available: 1 Insufficient tencent.com/vcuda-core."
TOO_MUCH = make_node("n1", 2, unhealthy=[1]), make_node("n1", 2, cordoned=[1])


@pytest.mark.parametrize(
    ("node", "held", "why", "ways"),
    [
        (make_node("n1", 1), lost(), "missing: delete it", [OF_MISSING]),
        (TOO_MUCH[0], lost(cards=(TWO,)), "unhealthy", ["repair card 1 of n1: Xid 79", LOST_TWO]),
        (TOO_MUCH[1], lost(cards=(TWO,)), "cordoned", ["uncordon card 1 of n1", LOST_TWO]),
    ],
    ids=["missing", "unhealthy", "cordoned"],
)
def test_a_pod_that_only_kube_scheduler_still_counts_is_named_with_what_to_do(
    node: Json, held: Json, why: str, ways: list[str]
) -> None:
    """kube-scheduler counts all pods of a node, but only the cards that are offered (K24)."""
    new = scenes.waiting("new", (60, 4), message=SHORT)
    state = state_of([node], [held, new])
    found = explanation_of(state, "new")
    assert found.summary.startswith(f"is pending: {STILL} {why} (1 node). Smallest change: ")
    assert [each.text for each in found.changes if each.by == "admin"] == ways
    assert pod_in(state.report(), "new").why == f"{STILL} {why} (1 node)"
    (fits,) = state.fit(make_pod("other", (60, 4)))
    assert (fits.fits, fits.nodes[0].reason) == (False, f"{STILL} {why}")
    # It fits if it requests less, or once that pod is gone; and two do not fit where one does.
    assert [each.fits for each in state.fit(*(make_pod(each, (25, 4)) for each in "abc"))] == [
        *(True, True, False)
    ]
    several = {"kind": "Deployment", "spec": {"replicas": 3, "template": make_pod("a", (25, 4))}}
    assert state.fit(several)[0].room == 2
    state.drop_pod(held["metadata"]["uid"])
    assert explanation_of(state, "new").summary.startswith("is pending: it fits on the cards of n1")


def test_a_pod_of_a_lost_card_is_not_blamed_for_what_others_hold() -> None:
    held = [lost(cores=10), lost("on", (ONE,), 50), make_pod("new", (60, 4))]
    why = pod_in(state_of([make_node("n1", 1)], held).report(), "new").why
    assert why == "no card has 60 cores and 4 blocks free (1 node)"


def test_a_chosen_card_that_the_node_lacks_is_not_shown_as_chosen() -> None:
    """The agent will place the pod; it shows where it is expected."""
    pod = make_pod("early", (50, 8), node="n1", annotations=hint("7"))
    (container,) = pod_in(state_of([make_node("n1", 2)], [pod]).report(), "early").containers
    assert container.source is Provenance.EXPECTED
    assert [each.index for each in container.parts] == [0]


def test_an_ended_pod_has_no_lost_card() -> None:
    pod = lost() | {"status": {"phase": "Succeeded"}}
    (container,) = pod_in(state_of([make_node("n1", 2)], [pod]).report(), "lost").containers
    assert container.parts == (Part(MISSING, None, "", 50, 8),)


# --- a pod that runs without recorded cards ---------------------------------------------

ESTIMATE = "not recorded by the agent: the cards shown are an estimate"


def unrecorded(name: str = "dark", phase: str = "Running", **annotations: str) -> Json:
    return make_pod(name, (50, 8), node="n1", annotations=annotations, phase=phase)


def test_node_pod_and_explanation_show_that_the_card_is_an_estimate() -> None:
    state = state_of([make_node("n1", 2)], [unrecorded(), lost("known", (TWO,))])
    report = state.report()
    assert f"1 running pod (default/dark) {ESTIMATE}" in node_in(report, "n1").notes
    assert pod_in(report, "dark").why == f"container c0 is {ESTIMATE}"
    assert pod_in(report, "known").why == ""
    explanation = explanation_of(state, "dark")
    assert explanation.summary == f"runs on n1; container c0 is {ESTIMATE}"
    allocated = next(each for each in explanation.steps if each.name == "allocated")
    assert (allocated.state, allocated.text) == ("wrong", f"not reported by the agent: {UNTOLD}")


UNTOLD = "it has just started, lacks a permission or does not run: kubectl gpu doctor"
AWAY = "the agent is not connected to the kubelet: nothing is allocatable"


@pytest.mark.parametrize(
    ("node", "pod", "why"),
    [
        (make_node("n1", 1), unrecorded(), UNTOLD),
        (make_node("n1", 1, allocatable="0"), unrecorded(), AWAY),
        (make_node("n1", 1, allocatable="0"), unrecorded(phase="Pending"), AWAY),
        (bare_node("n1"), unrecorded(), "no inventory of cards: no agent has written gpu-cards"),
        (
            make_node("n1", 1),
            unrecorded(**{NAMES.gpu_allocation: "{"}),
            "its annotation cannot be read: ",
        ),
        (
            make_node("n1", 1),
            scenes.refused("dark", (50, 8), "n1", "full"),
            "the pod was refused before",
        ),
        (make_node("n1", 1), unrecorded(phase="Pending"), ""),
    ],
)
def test_a_missing_record_comes_with_the_reason_that_is_known(
    node: Json, pod: Json, why: str
) -> None:
    steps = explanation_of(state_of([node], [pod]), "dark").steps
    text = next(each.text for each in steps if each.name == "allocated")
    assert text.startswith(f"not reported by the agent{': ' * bool(why)}{why}")


def test_no_card_is_free_while_the_card_of_a_running_pod_is_not_known() -> None:
    state = state_of([make_node("n1", 2)], [unrecorded(**hint("0"))])
    node = node_in(state.report(), "n1")
    assert (node.unconfirmed, node.whole_cards, node.largest_share) == (("default/dark",), 0, None)
    row, one, two = drawn(show_nodes(state.report(), scenes.NOW))[1:4]
    assert "unknown; " in row
    assert "default/dark/c0 50+8 (chosen)" in one
    assert two.endswith("may be held")
    (free,) = [free_panel([(node, node.cards)], Filter())]
    assert (free.number, free.lines) == (0, ())
    state.put_pod(unrecorded(**record(c0=((ONE,), 50, 8))))
    node = node_in(state.report(), "n1")
    assert (node.unconfirmed, node.whole_cards) == ((), 1)


def test_a_schedulers_choice_is_an_estimate_too() -> None:
    """The agent takes another card if the chosen one does not fit."""
    state = state_of([make_node("n1", 2)], [unrecorded(**hint("0"))])
    assert f"1 running pod (default/dark) {ESTIMATE}" in node_in(state.report(), "n1").notes


def test_a_starting_pod_is_not_shown_as_unrecorded() -> None:
    state = state_of([make_node("n1", 2)], [unrecorded(phase="Pending")])
    report = state.report()
    assert not [each for each in node_in(report, "n1").notes if ESTIMATE in each]
    assert pod_in(report, "dark").why == ""


# --- pods of one owner that are refused again and again ---------------------------------


def test_repeatedly_refused_pods_are_counted_and_the_cause_is_named() -> None:
    storm = scenes.storm()
    state = state_of([make_node("n1", 1)], storm)
    starting = make_pod("web-5d-next", (50, 4), node="n1")  # the controller's next try
    state.put_pod(scenes.owned(starting, "ReplicaSet", "web-5d", "2025-11-22T09:00:01Z", "5d"))
    (group,) = group_pods([each for each in state.report().pods if each.stage is Stage.REFUSED])
    assert group.headline == (
        "Deployment default/web: refused 137 times in 20 s: default-scheduler does not see cards; "
        "gpu-turnstile: no card fits 50 cores: GPU-n1-0: 11 of 50 cores free"
    )
    assert not any(each.replaced for each in state.report().pods)
    assert (
        "Deployment/web was refused 137 times in 20 s: default-scheduler does not see cards"
        in explanation_of(state, "web-5d-3").summary
    )
    # One that runs ends it, also one of the next revision.
    running = scenes.running("web-6e-0", (50, 4), "n1", 0)
    state.put_pod(scenes.owned(running, "ReplicaSet", "web-6e", "2025-11-22T09:00:02Z", "6e"))
    left = [each.name for each in state.report().pods if not each.replaced]
    assert left == ["web-5d-next", "web-6e-0"]
    state.drop_pod("u-web-6e-0")
    assert not any(each.replaced for each in state.report().pods)


def test_a_pod_refused_in_the_second_of_an_admitted_one_is_replaced() -> None:
    at = "2025-11-22T09:00:00Z"
    state = state_of([make_node("n1", 1)], scenes.storm(3))  # the last one at this time
    running = scenes.running("web-5d-next", (30, 4), "n1", 0)
    state.put_pod(scenes.owned(running, "ReplicaSet", "web-5d", at, "5d"))
    pods = state.report().pods
    assert [each.name for each in pods if not each.replaced] == ["web-5d-next"]
    assert most_urgent(pods).name == "web-5d-next"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, "default-scheduler does not see cards; "),
        ({"annotations": {**scenes.stamps("n1"), **hint("0")}}, ""),  # cards were chosen
        ({"message": "Pod was rejected: OutOfcpu"}, ""),  # not for want of a card
    ],
)
def test_a_scheduler_is_named_only_if_it_is_the_cause(change: Json, named: str) -> None:
    storm = scenes.storm(2)
    for pod in storm:
        pod["metadata"]["annotations"] = change.get("annotations", pod["metadata"]["annotations"])
        pod["status"]["message"] = change.get("message", pod["status"]["message"])
    (group,) = group_pods(state_of([make_node("n1", 1)], storm).report().pods)
    assert group.name == "Deployment default/web: refused 2 times in 20 s"
    assert group.why.startswith(named)
    assert ("does not see cards" in group.why) is bool(named)


def test_pods_refused_at_the_same_time_are_not_refused_repeatedly() -> None:
    (group,) = group_pods(state_of([], scenes.storm(4, seconds=0)).report().pods)
    assert group.name == "Deployment default/web: 4 pods"


FULL = (
    "state-dir: cannot make the directory of a container's limits: No space left on device: the "
    "node's admin must free space there"
)
NO_LIBRARY = "hami-library-dir: the node has no libvgpu.so, which enforces the limits"
NO_CDI = "the containers would start without their cards: containerd 1.6.20 reads no CDI specs"


@pytest.mark.parametrize(
    ("why", "refusing"),
    [
        (FULL, FULL),
        (FULL.replace("No space left on device", "Read-only file system"), None),
        (NO_LIBRARY, NO_LIBRARY),
        ("driver-dir: architecture x is not supported", None),
        (NO_CDI, NO_CDI),
        ("no container waits for 50 cores; held by another container", ""),
        ("no card fits 50 cores: GPU-n1-0: state-dir: 10 of 50 cores free", ""),
    ],
)
def test_a_node_that_refuses_pods_for_a_fault_of_its_own_is_not_available(
    why: str, refusing: str | None
) -> None:
    fault = why if refusing is None else refusing
    state = state_of([make_node("n1", 1)], scenes.storm(97, 60, why))
    node = node_in(state.report(), "n1")
    assert (node.refusing, node.whole_cards) == (fault, int(not fault))
    row = drawn(show_nodes(state.report(), scenes.NOW))[1]
    assert ("Refusing" in row, "Available" in row) == (bool(fault), not fault)
    count = "97 pods refused since it last admitted one, the last at 2025-11-22T09:00:00Z"
    assert (f"its agent refuses pods: {fault}; {count}" in row) is bool(fault)
    report = state.report()
    panel = problems_panel(report, [(node, node.cards)], (), Filter()).lines
    assert (f"1 node: its agent refuses pods: {fault}" in [each.text for each in panel]) is bool(
        fault
    )
    summary = explanation_of(state, "web-5d-0").summary
    assert ("A new pod would now fit" in summary) is not bool(fault)
    assert state.fit(make_pod("new", (50, 4)))[0].fits is not bool(fault)
    if fault:
        assert f"Deployment/web was refused 97 times in 60 s. Smallest change: {ENABLE}" in summary


ENABLE = "make n1 usable: its agent refuses pods (fits on n1)"


FRESH = ("does not fit", True)


def row_of(state: ClusterState) -> str:
    return drawn(show_nodes(state.report(), scenes.NOW))[1]


def not_known(state: ClusterState) -> bool:
    """Whether row and ``fit`` say so of the node: it refused pods, and nothing newer is known."""
    (found,) = state.fit(make_pod("new", (50, 4)))
    text = f"unknown whether its agent still refuses pods: {FULL}"
    assert f"Pod new unknown: {text} (1 node)" in drawn(show_fits([found]))
    assert [each.text for each in found.changes][:1] == [
        "make n1 usable: unknown whether its agent still refuses pods"
    ]
    row = row_of(state)
    assert text in row
    return (found.result, "Unknown" in row, "Refusing" in row) == ("unknown", True, False)


def agent_pod(ready: str = "True", at: datetime = scenes.NOW) -> Json:
    pod = scenes.plain("agent")
    pod["metadata"]["labels"] = {"app.kubernetes.io/name": "gpu-turnstile-agent"}
    pod["spec"]["nodeName"] = "n1"
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": at.isoformat()}
    pod["status"]["conditions"] = [condition]
    return pod


def test_a_node_whose_agent_is_not_ready_is_not_available() -> None:
    time = ManualTime(scenes.NOW.timestamp())
    state = ClusterState(NAMES, now=lambda: datetime.fromtimestamp(time.now, UTC))
    state.put_node(make_node("n1", 2))
    new, why = make_pod("new", (50, 4)), "the agent is not ready: kubectl gpu doctor says why"
    state.put_pod(agent_pod("False"))
    assert state.fit(new)[0].fits  # as in an update
    time.now += 31
    assert ("Unavailable" in row_of(state), why in row_of(state)) == (True, True)
    (found,) = state.fit(new)
    assert (found.result, found.short) == ("does not fit", f"{why} (1 node)")
    assert [each.text for each in found.changes] == ["make n1 usable: its agent is not ready"]
    state.put_pod(scenes.waiting("waits", (50, 4)))
    assert pod_in(state.report(), "waits").why == "1 node without a working agent"
    state.put_pod({**agent_pod(), "metadata": agent_pod()["metadata"] | {"uid": "u-next"}})
    assert "Available" in row_of(state)  # the next one is ready beside it
    state.drop_pod("u-next")
    assert "Unavailable" in row_of(state)
    state.put_pod(agent_pod())
    assert state.fit(new)[0].fits


def test_a_node_refuses_no_longer_once_it_admits_a_pod_or_after_an_hour() -> None:
    time = ManualTime(scenes.NOW.timestamp())
    state = ClusterState(NAMES, now=lambda: datetime.fromtimestamp(time.now, UTC))
    state.put_node(make_node("n1", 2))
    for each in scenes.storm(2, why=FULL):
        state.put_pod(each)
    assert node_in(state.report(), "n1").refusing == FULL
    later = scenes.running("later", (30, 4), "n1", 0)
    later["metadata"]["annotations"] |= scenes.stamps("n1", int(time.now) + 1)
    state.put_pod(later)
    assert not node_in(state.report(), "n1").refusing
    state.drop_pod("u-later")
    assert node_in(state.report(), "n1").refusing == FULL
    assert (state.fit(make_pod("new", (50, 4)))[0].result, "Refusing" in row_of(state)) == FRESH
    time.now += 301
    assert not_known(state)
    state.put_pod(agent_pod(at=scenes.NOW + timedelta(seconds=60)))  # once it is newer, in minutes
    assert "Available" in row_of(state)
    state.put_pod(agent_pod(at=scenes.NOW - timedelta(seconds=60)))
    time.now -= 200
    state.put_pod(agent_pod(at=scenes.NOW + timedelta(seconds=60)))
    assert not_known(state)
    time.now += 200
    assert state.fit(make_pod("new", (50, 4)))[0].fits
    state.drop_pod("u-agent")
    assert not_known(state)
    time.now += 3300
    assert not node_in(state.report(), "n1").refusing


def test_a_node_that_prepares_no_claim_refuses_pods_too() -> None:
    pod = scenes.claimed(make_pod("a", (30, 4), node="n1", annotations=scenes.stamps("n1")), "c")
    node = make_node("n1", 1)
    node["metadata"]["labels"] = {"gpu-turnstile.io/mode": "dra"}
    state = state_of([node], [pod])
    assert not node_in(state.report(), "n1").refusing
    state.put_event(scenes.event(pod, "GPURefused", f"container c0: {FULL}", "gpu-turnstile"))
    assert node_in(state.report(), "n1").refusing == FULL


def test_of_pods_that_are_refused_again_and_again_the_last_one_is_explained() -> None:
    state = state_of([make_node("n1", 1)], scenes.storm(97, 60, FULL))
    next_one = scenes.owned(
        scenes.waiting("web-5d-next", (50, 4)),
        *("ReplicaSet", "web-5d", "2025-11-22T09:00:01Z", "5d"),
    )
    state.put_pod(next_one)
    assert most_urgent(state.report().pods).name == "web-5d-96"
    again = "Deployment/web was refused 97 times in 60 s, the last one because: gpu-turnstile: "
    assert again + FULL in explanation_of(state, "web-5d-next").summary

"""Pods with and without a claim: their explanations, and how manifests fit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.allocation import Allocation, Evidence, encode_allocations
from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod, record
from tests.view import scenes
from tests.view.model.test_state import explanation_of, state_of
from tests.view.scenes import SHAPE, claimed
from view.model.claims import TemplateFacts
from view.model.pod_explanation import PodExplanation
from view.model.state import ClusterState

FULL = "0/1 nodes are available: 1 cannot allocate all claims."
NO_TEMPLATE, TEMPLATE = TemplateFacts(exists=False), TemplateFacts(exists=True)
UNREAD_TEMPLATE = TemplateFacts(exists=False, unread="it is forbidden")
Event = tuple[str, str, str]
"""Reason, message and source."""


def dra_node(name: str = "n1", cards: int = 1, **more: Any) -> Json:
    node = make_node(name, cards, **more)
    node["metadata"]["labels"] = {"gpu-turnstile.io/mode": "dra"}
    return node


def explained(
    pod: Json, *events: Event, template: TemplateFacts | None = None, node: Json | None = None
) -> PodExplanation:
    state = state_of([node or dra_node()], [pod])
    for each in events:
        state.put_event(scenes.event(pod, *each))
    if template is not None:
        state.put_template("default", pod["metadata"]["name"], template)
    return explanation_of(state, pod["metadata"]["name"])


def step(found: PodExplanation, name: str) -> tuple[str, str]:
    (text,) = [(each.state, each.text) for each in found.steps if each.name == name]
    return text


CAP = f"template {SHAPE} is not made: namespace default has 200 templates, no more are allowed"
MISSING = (
    f'PodResourceClaim gpus: resource claim template "{SHAPE}": '
    f'resourceclaimtemplate.resource.k8s.io "{SHAPE}" not found'
)
QUOTA = "PodResourceClaim gpus: failed to create ResourceClaim: exceeded quota: team"
CAPPED = ("GPUClaimWaits", CAP, "gpu-turnstile")
NO_CLAIM = ("FailedResourceClaimCreation", MISSING, "resource_claim")
NOT_MADE = (
    f"it waits for a claim: template {SHAPE} is not made yet. If this lasts, the "
    "program that makes it does not run: kubectl gpu doctor"
)
MADE = f"its claim is not made yet, although template {SHAPE} exists"
UNKNOWN = f"it waits for a claim; whether template {SHAPE} exists is unknown (it is forbidden)"


@pytest.mark.parametrize(
    ("template", "events", "state", "text"),
    [
        (NO_TEMPLATE, [], "missing", NOT_MADE),
        (NO_TEMPLATE, [NO_CLAIM], "missing", NOT_MADE),
        (NO_TEMPLATE, [CAPPED], "wrong", f"it waits for a claim: {CAP}"),
        (None, [], "missing", f"it waits for a claim (template {SHAPE})"),
        (UNREAD_TEMPLATE, [], "missing", UNKNOWN),
        (TEMPLATE, [NO_CLAIM], "missing", MADE),
        (TEMPLATE, [(NO_CLAIM[0], QUOTA, NO_CLAIM[2])], "missing", f'{MADE}: "{QUOTA}"'),
    ],
)
def test_a_pod_without_its_claim_shows_whether_template_or_claim_is_missing(
    template: TemplateFacts | None, events: list[Event], state: str, text: str
) -> None:
    pod = claimed(scenes.waiting("a", (30, 4)))
    found = explained(pod, *events, template=template)
    assert found.summary == f"is pending: {text}"
    assert step(found, "claimed") == (state, text)
    assert [each.name for each in found.steps] == ["created", "admitted", "claimed", "bound"]


def test_a_pod_with_a_claim_and_without_a_card_quotes_the_scheduler() -> None:
    found = explained(claimed(scenes.waiting("a", (30, 4), message=FULL), "a-gpus-x7k2p"))
    assert found.summary == (
        f'is pending: it fits on the cards of n1; default-scheduler: "{FULL}" '
        "(or it does not see these cards: kubectl gpu doctor)"
    )
    assert step(found, "claimed") == ("done", f"claim a-gpus-x7k2p, by template {SHAPE}")
    assert FULL in step(found, "bound")[1]
    assert (found.pod.claim, found.pod.claim_template) == ("a-gpus-x7k2p", SHAPE)


REFUSED = "container c0: claim default/a-gpus: 30 cores of card GPU-n1-0, but 80 of 100 are held"
REFUSAL = ("GPURefused", REFUSED, "gpu-turnstile")
UNREGISTERED = "Failed to prepare dynamic resources: DRA driver gpu.tencent.com is not registered"


@pytest.mark.parametrize(
    "events", [[], [REFUSAL], [("FailedPrepareDynamicResources", UNREGISTERED, "kubelet")]]
)
def test_a_bound_pod_without_a_prepared_claim_shows_the_reason(events: list[Event]) -> None:
    pod = make_pod("a", (30, 4), node="n1", annotations=scenes.stamps("n1"))
    found = explained(claimed(pod, "a-gpus"), *events)
    why = f": {events[0][1]}" if events else ""
    text = f"by kube-scheduler; the agent has not prepared the claim{why}"
    assert step(found, "allocated") == ("wrong" if events else "missing", text)
    assert step(found, "started") == ("missing", "not yet")
    assert found.summary == f"is bound to n1 and is not running yet{why}"


def test_a_pod_that_runs_by_a_claim_shows_it_as_its_evidence() -> None:
    prepared = {"c0": Allocation(("GPU-n1-0",), 30, 4, Evidence.CLAIM)}
    annotations = {**scenes.stamps("n1"), NAMES.gpu_allocation: encode_allocations(prepared)}
    pod = make_pod("a", (30, 4), node="n1", phase="Running", annotations=annotations)
    # Refused at first, and prepared since.
    found = explained(claimed(pod, "a-gpus"), REFUSAL)
    assert found.summary == "runs on n1"
    text = "c0: 30 cores and 4 blocks of card 0, reported by the agent, evidence claim: its "
    assert step(found, "allocated") == ("done", f"{text}resource claim names it")


def test_a_deleted_pod_with_a_claim_is_not_shown_as_failing() -> None:
    pod = claimed(scenes.running("a", (30, 4), "n1", 0), "a-gpus")
    pod["metadata"]["deletionTimestamp"] = "2025-11-22T09:00:00Z"
    ended = {"exitCode": 137, "reason": "Error", "finishedAt": "2025-11-22T09:00:01Z"}
    pod["status"]["containerStatuses"] = [{"name": "c0", "state": {"terminated": ended}}]
    assert explained(pod).summary == (
        "is being deleted on n1: c0: Error, exit code 137 (SIGKILL). If this lasts, the agent or "
        "the proxy for claims has left the node"
    )


# --- without a claim, and without claims ---------------------------------------------------


def static(pod: Json) -> Json:
    """The mirror of a pod whose manifest is a file of the kubelet."""
    own = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}
    pod["metadata"]["annotations"] |= own
    return pod


MISMATCHES = {
    "runs on n1; without a claim on a node that serves claims, it has no card, or one that is not "
    "counted (GPUNotClaimed): delete it, so that it is created again with a claim": (
        scenes.running("a", (30, 4), "n1", 0),
        dra_node(),
    ),
    "runs on n1; a static pod gets no card by a claim (GPUNotClaimed): remove its manifest, and "
    "create it through the API server": (static(scenes.running("a", (30, 4), "n1", 0)), dra_node()),
    "runs on n1; it holds cards by a claim, and its node does not serve claims any more (label "
    "gpu-turnstile.io/mode=dra): deleted, it stays Terminating until the node has the label "
    "again": (claimed(scenes.running("a", (30, 4), "n1", 0), "a-gpus"), make_node("n1", 1)),
    "is pending: it has no claim, and all nodes with cards serve only pods with one: delete it, so "
    "that it is created again with a claim (webhook --claims on)": (
        scenes.waiting("a", (30, 4)),
        dra_node(),
    ),
    "is pending: it has a claim, and no node serves claims (label gpu-turnstile.io/mode=dra): if "
    "the webhook's --claims is no longer on, delete it, so that it is created again without a "
    "claim": (claimed(scenes.waiting("a", (30, 4)), "a-gpus"), make_node("n1", 1)),
}


@pytest.mark.parametrize(
    ("summary", "objects"),
    MISMATCHES.items(),
    ids=["running", "static", "undrained", "pending", "no node"],
)
def test_a_pod_that_does_not_match_its_node_shows_what_to_do(
    summary: str, objects: tuple[Json, Json]
) -> None:
    pod, node = objects
    found = explained(pod, node=node)
    assert found.summary == summary
    assert (found.changes, found.no_change) == ((), "")


def test_a_pod_fits_only_on_nodes_of_its_kind() -> None:
    nodes = [dra_node("n1"), make_node("n2", 1)]
    pods = [claimed(scenes.waiting("a", (30, 4)), "a-gpus"), scenes.waiting("b", (30, 4))]
    state = state_of(nodes, pods)
    by_claim, plain = explanation_of(state, "a"), explanation_of(state, "b")
    assert [(each.node, each.fits) for each in by_claim.nodes] == [("n1", True), ("n2", False)]
    assert [(each.node, each.fits) for each in plain.nodes] == [("n2", True), ("n1", False)]
    assert by_claim.nodes[1].reason == "the node serves no claims"
    assert plain.nodes[1].reason == "the node serves only pods with a claim"


def test_claims_of_others_are_not_ours() -> None:
    pod = scenes.waiting("a", (30, 4))
    pod["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimTemplateName": "rdma"}]
    found = explained(pod, node=make_node("n1", 1))
    assert [each.name for each in found.steps] == ["created", "admitted", "bound"]


def test_a_node_shows_that_its_kubelet_still_knows_the_device_plugin() -> None:
    state = state_of([dra_node(allocatable="0")])
    (node,) = state.report().nodes
    assert node.problem == (
        "nothing is allocatable yet: the kubelet still knows the device plugin, or the agent for "
        "claims does not run"
    )
    pod = claimed(scenes.waiting("a", (30, 4)), "a-gpus")
    found = explained(pod, node=dra_node(allocatable="0"))
    assert found.pod.why == "1 node without a working agent"
    assert [each.text for each in found.changes] == [f"make n1 usable: {node.problem}"]


def test_a_refused_pod_shows_that_the_kubelet_still_knows_the_device_plugin() -> None:
    text = "no healthy devices present; cannot allocate unhealthy devices tencent.com/vcuda-core"
    pod = claimed(scenes.refused("a", (30, 4), "n1", text), "a-gpus")
    cause = (
        ". The kubelet still knows the device plugin, which it forgets about five minutes after "
        "the plugin's end"
    )
    assert explained(pod).summary.startswith(f"was refused on n1: {text}{cause}")
    assert cause not in explained(pod, node=make_node("n1", 1)).summary


# --- how manifests fit on nodes that serve claims -----------------------------------------


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
        ("does not fit", 0, f"{EITHER}would be denied ({NAMED}), without one 0 of 1 fit")
    ]
    there = NAMED.replace("n1", "n2")
    assert fit(mixed, manifest(40, nodeName="n2")) == [
        ("unknown", 0, f"{EITHER}would be denied ({there}), without one 1 of 1 fit")
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

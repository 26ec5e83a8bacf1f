"""Explanations of pods with and without a claim."""

from typing import Any

import pytest

from contract.allocation import Allocation, Evidence, encode_allocations
from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod
from tests.view import scenes
from tests.view.model.test_state import explanation_of, state_of
from tests.view.scenes import SHAPE, claimed
from view.model.claims import TemplateFacts
from view.model.pod_explanation import PodExplanation

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
    ("summary", "objects"), MISMATCHES.items(), ids=["running", "static", "pending", "no node"]
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

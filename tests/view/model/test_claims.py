"""Explanations of pods with and without a claim, and how manifests fit with claims."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.allocation import Allocation, Evidence, encode_allocations
from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod
from tests.view import scenes
from tests.view.model.test_state import explanation_of, state_of
from view.model.claims import TemplateFacts
from view.model.pod_explanation import PodExplanation
from view.model.state import ClusterState

SHAPE = "gpu-turnstile-0123456789abcdef"
MODE = {"gpu-turnstile.io/mode": "dra"}
FULL = "0/1 nodes are available: 1 cannot allocate all claims."
NO_TEMPLATE, TEMPLATE = TemplateFacts(exists=False), TemplateFacts(exists=True)


def dra_node(name: str = "n1", cards: int = 1, **more: Any) -> Json:
    node = make_node(name, cards, **more)
    node["metadata"]["labels"] = MODE
    return node


def claimed(pod: Json, claim: str = "") -> Json:
    """The pod with the claim of the webhook; with a name of the claim it is made, too."""
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": SHAPE}]
    if claim:
        made = {"name": "gpus", "resourceClaimName": claim}
        pod["status"]["resourceClaimStatuses"] = [made]
    return pod


def explained(
    pod: Json,
    template: TemplateFacts | None = None,
    events: Sequence[tuple[str, str, str]] = (),
    nodes: Sequence[Json] = (),
) -> PodExplanation:
    state = state_of(nodes or [dra_node()], [pod])
    for reason, message, source in events:
        state.put_event(scenes.event(pod, reason, message, source))
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


@pytest.mark.parametrize(
    ("template", "events", "state", "text"),
    [
        (
            NO_TEMPLATE,
            [],
            "missing",
            (
                f"it waits for a claim: template {SHAPE} is not made yet. If this lasts, the "
                "program that makes it does not run: kubectl gpu doctor"
            ),
        ),
        (
            NO_TEMPLATE,
            [("FailedResourceClaimCreation", MISSING, "resource_claim")],
            "missing",
            (
                f"it waits for a claim: template {SHAPE} is not made yet. If this lasts, the "
                "program that makes it does not run: kubectl gpu doctor"
            ),
        ),
        (
            NO_TEMPLATE,
            [("GPUClaimWaits", CAP, "gpu-turnstile")],
            "wrong",
            f"it waits for a claim: {CAP}",
        ),
        (None, [], "missing", f"it waits for a claim (template {SHAPE})"),
        (
            TemplateFacts(exists=False, unread='User "u" cannot get resource'),
            [],
            "missing",
            (
                f"it waits for a claim; whether template {SHAPE} exists is unknown "
                '(User "u" cannot get resource)'
            ),
        ),
        (
            TEMPLATE,
            [("FailedResourceClaimCreation", MISSING, "resource_claim")],
            "missing",
            f"its claim is not made yet, although template {SHAPE} exists",
        ),
        (
            TEMPLATE,
            [("FailedResourceClaimCreation", QUOTA, "resource_claim")],
            "missing",
            f'its claim is not made yet, although template {SHAPE} exists: "{QUOTA}"',
        ),
    ],
)
def test_a_pod_without_its_claim_shows_whether_template_or_claim_is_missing(
    template: TemplateFacts | None, events: list[tuple[str, str, str]], state: str, text: str
) -> None:
    found = explained(claimed(scenes.waiting("a", (30, 4))), template, events)
    assert found.summary == f"is pending: {text}"
    assert step(found, "claimed") == (state, text)
    assert [each.name for each in found.steps] == ["created", "admitted", "claimed", "bound"]


def test_a_pod_with_a_claim_and_without_a_card_quotes_the_scheduler() -> None:
    pod = claimed(scenes.waiting("a", (30, 4), message=FULL), "a-gpus-x7k2p")
    pod["status"]["conditions"][0]["message"] = FULL
    found = explained(pod)
    assert found.summary == (
        f'is pending: it fits on the cards of n1; default-scheduler: "{FULL}" '
        "(or it does not see these cards: kubectl gpu doctor)"
    )
    assert step(found, "claimed") == ("done", f"claim a-gpus-x7k2p, by template {SHAPE}")
    assert FULL in step(found, "bound")[1]
    assert (found.pod.claim, found.pod.claim_template) == ("a-gpus-x7k2p", SHAPE)


REFUSED = "container c0: claim default/a-gpus: 30 cores of card GPU-n1-0, but 80 of 100 are held"
KUBELET = (
    "Failed to prepare dynamic resources: DRA driver gpu.tencent.com is not registered with kubelet"
)


@pytest.mark.parametrize(
    ("events", "state", "text"),
    [
        ([], "missing", "by kube-scheduler; the agent has not prepared the claim"),
        (
            [("GPURefused", REFUSED, "gpu-turnstile")],
            "wrong",
            f"by kube-scheduler; the agent has not prepared the claim: {REFUSED}",
        ),
        (
            [("FailedPrepareDynamicResources", KUBELET, "kubelet")],
            "wrong",
            f"by kube-scheduler; the agent has not prepared the claim: {KUBELET}",
        ),
    ],
)
def test_a_bound_pod_without_a_prepared_claim_shows_the_reason(
    events: list[tuple[str, str, str]], state: str, text: str
) -> None:
    pod = make_pod("a", (30, 4), node="n1", annotations=scenes.stamps("n1"))
    found = explained(claimed(pod, "a-gpus"), events=events)
    assert step(found, "allocated") == (state, text)
    assert step(found, "started") == ("missing", "not yet")
    summary = "is bound to n1 and is not running yet"
    assert found.summary == f"{summary}: {events[0][1]}" if events else summary


def test_a_pod_that_runs_by_a_claim_shows_it_as_its_evidence() -> None:
    prepared = {"c0": Allocation(("GPU-n1-0",), 30, 4, Evidence.CLAIM)}
    annotations = {**scenes.stamps("n1"), NAMES.gpu_allocation: encode_allocations(prepared)}
    pod = make_pod("a", (30, 4), node="n1", phase="Running", annotations=annotations)
    # Refused at first, and prepared since.
    found = explained(claimed(pod, "a-gpus"), events=[("GPURefused", REFUSED, "gpu-turnstile")])
    assert found.summary == "runs on n1"
    assert step(found, "allocated") == (
        "done",
        (
            "c0: 30 cores and 4 blocks of card 0, reported by the agent, evidence claim: its "
            "resource claim names it"
        ),
    )


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


@pytest.mark.parametrize(
    ("pod", "node", "summary"),
    [
        (
            scenes.running("a", (30, 4), "n1", 0),
            dra_node(),
            (
                "runs on n1; without a claim on a node that serves claims, it has no card, or one "
                "that is not counted (GPUNotClaimed): delete it, so that it is created again with "
                "a claim"
            ),
        ),
        (
            static(scenes.running("a", (30, 4), "n1", 0)),
            dra_node(),
            (
                "runs on n1; a static pod gets no card by a claim (GPUNotClaimed): remove its "
                "manifest, and create it through the API server"
            ),
        ),
        (
            scenes.waiting("a", (30, 4)),
            dra_node(),
            (
                "is pending: it has no claim, and all nodes with cards serve only pods with one: "
                "delete it, so that it is created again with a claim (webhook --claims on)"
            ),
        ),
        (
            claimed(scenes.waiting("a", (30, 4)), "a-gpus"),
            make_node("n1", 1),
            (
                "is pending: it has a claim, and no node serves claims (label "
                "gpu-turnstile.io/mode=dra): if the webhook's --claims is no longer on, delete it, "
                "so that it is created again without a claim"
            ),
        ),
    ],
    ids=["running", "static", "pending", "no node"],
)
def test_a_pod_that_does_not_match_its_node_shows_what_to_do(
    pod: Json, node: Json, summary: str
) -> None:
    found = explained(pod, nodes=[node])
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
    assert by_claim.pod.why.startswith("it fits on the cards of n1;")
    assert plain.pod.why.startswith("it fits on the cards of n2;")


def test_claims_of_others_are_not_ours() -> None:
    pod = scenes.waiting("a", (30, 4))
    pod["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimTemplateName": "rdma"}]
    found = explained(pod, nodes=[make_node("n1", 1)])
    assert [each.name for each in found.steps] == ["created", "admitted", "bound"]


def test_a_node_shows_that_its_kubelet_still_knows_the_device_plugin() -> None:
    state = state_of([dra_node(allocatable="0")])
    (node,) = state.report().nodes
    assert node.problem == (
        "nothing is allocatable yet: the kubelet still knows the device plugin, or the agent for "
        "claims does not run"
    )
    pod = claimed(scenes.waiting("a", (30, 4)), "a-gpus")
    found = explained(pod, nodes=[dra_node(allocatable="0")])
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
    assert cause not in explained(pod, nodes=[make_node("n1", 1)]).summary


# --- where kube-scheduler puts them --------------------------------------------------------


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
    (by_claim,) = state_of([dra_node(cards=2)], [claimed(held, "b-gpus")]).fit(pod)
    assert by_claim.nodes[0].placement == (("main", (0,)),)
    (by_plugin,) = state_of([make_node("n1", 2)], [scenes.running("b", (50, 4), "n1", 1)]).fit(pod)
    assert by_plugin.nodes[0].placement == (("main", (1,)),)


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
    prepared = {
        name: Allocation(("GPU-n1-0",), cores, 4, Evidence.CLAIM)
        for name, cores in (("i0", 30), ("c0", 50))
    }
    annotations = {**scenes.stamps("n1"), NAMES.gpu_allocation: encode_allocations(prepared)}
    runs = make_pod("a", (50, 4), inits=[(30, 4)], node="n1", annotations=annotations)
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
    assert (found.result.value, found.short, found.claims) == (
        "does not fit",
        "the node serves no claims (1 node)",
        "",
    )


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
    pods = [scenes.running(f"b{at}", (30, 1), "n1", at) for at in held]
    claims = [claimed(scenes.running(f"b{at}", (30, 1), "n1", at), f"b{at}") for at in held]
    pod = make_pod("a", (100 * cards, 0), annotations=NVLINK)
    for node, holders, expected in (
        (make_node("n1", 3, links=links), pods, by_plugin),
        (dra_node("n1", 3, links=links), claims, by_claim),
    ):
        (found,) = state_of([node], holders).fit(pod)
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
    def on(name: str, held: list[int], node: Json) -> tuple[Json, list[Json]]:
        pods = [
            scenes.running(f"{name}-{at}", (amount, 1), name, at)
            for at, amount in enumerate(held)
            if amount
        ]
        return node, [claimed(each, "c") if name == "n1" else each for each in pods]

    first, claimants = on("n1", by_claim, dra_node("n1", len(by_claim)))
    second, plain = on("n2", by_plugin, make_node("n2", len(by_plugin)))
    template = make_pod("a", *((each, 4) for each in cores))
    wanted = {"kind": "Deployment", "spec": {"replicas": replicas, "template": template}}
    alone = [state_of([first], claimants).fit(wanted)[0], state_of([second], plain).fit(wanted)[0]]
    (both,) = state_of([first, second], [*claimants, *plain]).fit(wanted)
    assert both.room == min(each.room for each in alone)
    results = {each.result.value for each in alone}
    assert both.result.value == (results.pop() if len(results) == 1 else "unknown")

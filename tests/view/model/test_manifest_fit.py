"""Whether the pods of manifests fit, where, why not, and which changes would help."""

import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.cluster.nominations import Nomination
from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, Json, bare_node, make_node, make_pod
from tests.view import scenes
from tests.view.model.test_state import explanation_of, state_of
from tests.view.terminal.test_pages import drawn
from view.model.manifest_fit import FitReport, InvalidManifest
from view.model.reports import Gap
from view.terminal.explanation import show_fits

HALVES = {NAMES.gpu_cards_of("c0"): "2"}
LIMITS = {"limits": {NAMES.core: "40", NAMES.memory: "4"}}
TEMPLATE = {"spec": {"containers": [{"name": "main", "resources": LIMITS}]}}


@pytest.mark.parametrize(
    ("manifest", "replicas", "room"),
    [
        ({"kind": "Pod", "metadata": {"generateName": "x-"}, **TEMPLATE}, 1, 1),
        ({"kind": "Deployment", "spec": {"replicas": 5, "template": TEMPLATE}}, 5, 3),
        ({"kind": "Job", "spec": {"parallelism": 2, "template": TEMPLATE}}, 2, 2),
        ({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}}, 1, 1),
        ({"kind": "PodTemplate", "template": TEMPLATE}, 1, 1),
    ],
)
def test_a_manifest_gets_whether_where_and_how_often_it_fits(
    manifest: Json, replicas: int, room: int
) -> None:
    state = state_of([make_node("n1", 2)], [scenes.running("a", (60, 4), "n1", 0)])
    (found,) = state.fit(manifest)
    assert (found.fits, found.replicas, found.room) == (room == replicas, replicas, room)
    assert found.nodes[0].placement == (("main", (0,)),)


OWN = "excluded by its own spec: "


def test_a_manifest_that_names_a_node_that_does_not_exist_gets_a_warning() -> None:
    named = {"spec": {**TEMPLATE["spec"], "nodeName": "n9"}}
    nodes, manifest = [make_node("n1", 1)], {"kind": "Deployment", "spec": {"template": named}}
    (found,) = state_of(nodes).fit(manifest)
    text = "remove spec.nodeName: node n9 does not exist, and no scheduler is asked"
    assert found.warnings == (text,)
    assert (found.result, found.short) == ("does not fit", f"{OWN}spec.nodeName n9 (1 node)")
    unread = Gap("nodes", "", "nodes is forbidden", some=True)
    existing = {"kind": "Pod", **named, "metadata": {"uid": "u"}}
    assert state_of(nodes).fit(existing)[0].fits
    for state, each in (
        (state_of([*nodes, bare_node("n9")]), manifest),
        (state_of(nodes, [], unread), manifest),
        (state_of(nodes), existing),
    ):
        assert state.fit(each)[0].warnings == ()


def test_a_daemonset_has_one_pod_on_each_node() -> None:
    nodes = [make_node("n1", 1), make_node("n2", 1, unhealthy=[0])]
    (found,) = state_of(nodes).fit({"kind": "DaemonSet", "spec": {"template": TEMPLATE}})
    assert (found.replicas, found.room) == (2, 1)
    assert found.short == "no healthy card (1 node)"
    named = {"spec": TEMPLATE["spec"] | _affinity({"matchFields": _NAMED})}
    (found,) = state_of([*nodes[:1], make_node("n2", 1)]).fit(
        {"kind": "DaemonSet", "spec": {"template": named}}
    )
    assert (found.replicas, found.room) == (1, 1)


def test_annotations_of_a_template_count_and_not_those_of_its_workload() -> None:
    wishes = {"annotations": {NAMES.use_gpu_type: "t4"}}
    inner = {"kind": "Deployment", "spec": {"template": {**TEMPLATE, "metadata": wishes}}}
    outer = {"kind": "Deployment", "metadata": wishes, "spec": {"template": TEMPLATE}}
    state = state_of([make_node("n1", 1)])
    assert [each.fits for each in (*state.fit(inner), *state.fit(outer))] == [False, True]


def test_nodes_that_fit_come_first_and_those_that_never_will_last() -> None:
    nodes = [make_node("n1", 1, unhealthy=[0]), make_node("n2", 1), make_node("n3", 1)]
    held = scenes.running("a", (90, 4), "n2", 0)
    (found,) = state_of(nodes, [held]).fit({"kind": "Pod", **TEMPLATE})
    assert [each.node for each in found.nodes if each.fits] == ["n3"]
    assert [each.node for each in found.nodes] == ["n3", "n2", "n1"]


def limited(limits: Json) -> Json:
    """The spec of a pod whose container has these limits."""
    return {"containers": [{"resources": {"limits": limits}}]}


NO_GPU = "requests no GPU: no container has tencent.com/vcuda-core in its limits"
FRACTION = {"name": "a", "annotations": {"gpu-fraction": "0.5"}}
FOREIGN = limited({"nvidia.com/gpu": 1, "tencent.com/vcuda": "50"})
ELASTIC = {"spec": limited({"elasticgpu.io/gpu-memory": "512"})}
INVALID: dict[str, Json] = {
    "kind: Unsupported value: 'Service'": {"kind": "Service"},
    "Pod: it has no pod spec": {"kind": "Pod"},
    "Deployment: it has no pod spec": {"kind": "Deployment", "spec": "no"},
    f'Pod "a" {NO_GPU}': {"kind": "Pod", "metadata": {"name": "a"}, "spec": {}},
    f'Pod "a" {NO_GPU}; write tencent.com/vcuda-core, tencent.com/vcuda is not served here; '
    "write tencent.com/vcuda-core (100 is one card): gpu-turnstile does not serve nvidia.com/gpu; "
    "write tencent.com/vcuda-core in limits (100 is one card): gpu-turnstile does not serve "
    "gpu-fraction; or, where pods of that system are accepted "
    "(docs/install.md#pods-of-other-systems): kubectl create --dry-run=server -o yaml -f FILE | "
    "kubectl gpu fit -f -": {"kind": "Pod", "metadata": FRACTION, "spec": FOREIGN},
    f'Deployment "a" {NO_GPU}; write tencent.com/vcuda-memory (in blocks): gpu-turnstile does not '
    "serve elasticgpu.io/gpu-memory; or, where pods of that system are accepted "
    "(docs/install.md#pods-of-other-systems): kubectl create --dry-run=server -f FILE warns of "
    "what they become": {"kind": "Deployment", "metadata": FRACTION, "spec": {"template": ELASTIC}},
}


@pytest.mark.parametrize(("text", "manifest"), INVALID.items(), ids=range(len(INVALID)))
def test_a_manifest_that_cannot_be_evaluated_is_refused(text: str, manifest: Json) -> None:
    with pytest.raises(InvalidManifest) as caught:
        state_of([]).fit(manifest)
    assert str(caught.value).startswith(text)


_KEYS = st.sampled_from(
    [
        *("annotations", "containers", "initContainers", "jobTemplate", "limits", "metadata"),
        *("name", "schedulingGates"),
        *("nodeSelector", "replicas", "requests", "resources", "restartPolicy", "spec", "template"),
        *("tolerations", NAMES.core, NAMES.memory, NAMES.use_gpu_type, NAMES.predicate_gpu_idx(0)),
    ]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@patient
@given(st.sampled_from(["Pod", "Deployment", "CronJob"]), st.dictionaries(_KEYS, _json))
def test_no_manifest_causes_an_internal_error(kind: str, manifest: Json) -> None:
    with suppress(InvalidManifest):
        state_of([make_node("n1", 1)]).fit({**manifest, "kind": kind})


def test_fit_warns_of_unread_fields_as_the_webhook_does() -> None:
    state = state_of([make_node("n1", 1)], [])
    pod = make_pod("a", (30, 4), annotations={"tencent.com/use-gputype": "h100"})
    pod["metadata"]["labels"] = {"tencent.com/gpu-policy": "spread"}
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    (found,) = state.fit(pod)
    assert found.fits
    assert [each.partition(":")[0] for each in found.warnings] == [
        "write tencent.com/vcuda-core (100 is one card)",
        "write tencent.com/use-gpu-type",
        "write tencent.com/gpu-policy in metadata.annotations, not in labels",
    ]
    misplaced = {"name": "d", "annotations": {"tencent.com/gpu-policy": "spread"}}
    spec = {"template": {"metadata": {}, "spec": make_pod("a", (30, 4))["spec"]}}
    (found,) = state.fit({"kind": "Deployment", "metadata": misplaced, "spec": spec})
    assert found.warnings == (
        "write tencent.com/gpu-policy in spec.template.metadata.annotations, not in metadata",
    )


def test_a_manifest_with_a_share_of_several_cards_fits_on_different_ones() -> None:
    state = state_of([make_node("n1", 2)], [scenes.running("a", (50, 4), "n1", 0)])
    (found,) = state.fit(make_pod("new", (100, 8), annotations=HALVES))
    assert found.fits
    assert found.nodes[0].placement == (("c0", (0, 1)),)
    (found,) = state.fit(make_pod("new", (102, 8), annotations=HALVES))
    assert [card.why_not for card in found.nodes[0].cards] == ["50 cores free, 51 needed", ""]
    twice = [make_pod(name, (100, 8), annotations=HALVES) for name in "bc"]
    assert [each.fits for each in state.fit(*twice)] == [True, False]


def test_fit_denies_a_pod_with_the_messages_of_the_webhook() -> None:
    odd = make_pod("a", (50, 4), annotations={NAMES.gpu_cards_of("c0"): "17"})
    misspelt = make_pod("a", (0, 4))
    misspelt["spec"]["containers"][0]["resources"]["limits"]["tencent.com/vcuda-cores"] = "50"
    for pod, text in (
        (odd, 'tencent.com/gpu-cards-c0]: Invalid value: "17": must be a whole number from 1 to'),
        (misspelt, 'tencent.com/vcuda-cores]: Invalid value: "50": no node has such a resource: '),
    ):
        (found,) = state_of([make_node("n1", 2)]).fit(pod)
        assert found.result == "would be denied"
        assert text in found.errors[0]


# --- suggested changes --------------------------------------------------------------------


def fit(nodes: list[Json], held: list[Json], *limits: tuple[int, int], **pod: Any) -> FitReport:
    return state_of(nodes, held).fit(make_pod("new", *limits, **pod))[0]


def texts(found: FitReport, by: str = "author") -> list[str]:
    assert not found.fits
    return [each.text for each in found.changes if each.by == by]


def on(card: int, limit: tuple[int, int], name: str = "") -> Json:
    return scenes.running(name or f"on{card}", limit, "n1", card)


CORDONED = {**make_node("n2", 1), "spec": {"unschedulable": True}}
ASLEEP = {
    **make_node("n2", 1),
    "status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "Lost"}]},
}


BOTH = "request 40 cores instead of 50 and 2 memory blocks instead of 4"
SHARE = "request 40 cores instead of 100 and 28 memory blocks instead of whole cards"
IN_EACH = [f"request 40 cores instead of 60 in container {each}" for each in ("c0", "c1")]
MANY = "request 200 cores instead of 2147483600 and 2 memory blocks instead of 8"


@pytest.mark.parametrize(
    ("cards", "held", "limits", "expected"),
    [
        (1, [on(0, (60, 4))], [(50, 4)], ["request 40 cores instead of 50"]),
        (1, [on(0, (10, 30))], [(50, 4)], ["request 2 memory blocks instead of 4"]),
        (1, [on(0, (60, 30))], [(50, 4)], [BOTH]),
        # More than any card has, so MiB were meant: a card has 32 blocks of 256 MiB.
        (1, [], [(50, 2048)], ["request 8 memory blocks (2048 MiB) instead of 2048"]),
        (1, [on(0, (10, 28))], [(50, 2048)], ["request 4 memory blocks instead of 2048"]),
        (1, [on(0, (60, 4))], [(100, 0)], [SHARE]),
        (1, [], [(60, 4), (60, 4)], IN_EACH),
        (1, [on(0, (99, 32))], [(50, 4)], []),
        (2, [], [(2_147_483_600, 8)], [MANY]),  # the webhook lets it pass: any int32 is a count
    ],
)
def test_an_author_sees_the_smaller_request_that_fits(
    cards: int, held: list[Json], limits: list[tuple[int, int]], expected: list[str]
) -> None:
    assert texts(fit([make_node("n1", cards)], held, *limits)) == expected


def test_wishes_are_removed_together() -> None:
    wishes = {NAMES.use_gpu_type: "h100", NAMES.nouse_gpu_uuid: "GPU-n1-0"}
    assert texts(fit([make_node("n1", 1)], [], (30, 4), annotations=wishes)) == [
        "remove the annotations tencent.com/use-gpu-type and tencent.com/nouse-gpu-uuid"
    ]


HELD = [on(0, (60, 4)), on(1, (50, 4), "small"), on(1, (45, 4), "other")]
SMALL = (make_node("n1", 2), HELD, (55, 4))
THREE = [on(0, (45, 4), "a"), on(0, (45, 4), "b"), on(0, (1, 1), "c")]
LOST = make_node("n1", 1, allocatable="0")
CAPACITY = {
    "delete pod default/small on card 1 of n1 (frees 50 cores, 4 blocks)": SMALL,
    "delete pod default/a on card 0 of n1 (frees 45 cores, 4 blocks) and pod default/b "
    "on card 0 of n1 (frees 45 cores, 4 blocks)": (make_node("n1", 1), THREE, (90, 4)),
    "repair card 0 of n1: Xid 79": (make_node("n1", 1, unhealthy=[0]), [], (60, 4)),
    "uncordon card 0 of n1": (make_node("n1", 1, cordoned=[0]), [], (60, 4)),
    "make n1 usable: its agent is not connected to the kubelet": (LOST, [], (60, 4)),
    "make n2 usable: the node is cordoned": (CORDONED, [], (60, 4)),
    "make n2 usable: the node is not Ready": (ASLEEP, [], (60, 4)),
}


@pytest.mark.parametrize(("expected", "given"), CAPACITY.items())
def test_an_admin_sees_the_changes_that_free_capacity(
    expected: str, given: tuple[Json, list[Json], tuple[int, int]]
) -> None:
    node, held, limits = given
    assert texts(fit([node], held, limits), "admin") == [expected]


def _affinity(*terms: Json) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    return {"affinity": {"nodeAffinity": required}}


def _labels(operator: str, *values: str, key: str = "kubernetes.io/arch") -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": [*values]}]}


def _tolerates(**fields: str) -> Json:
    return {"tolerations": [fields]}


_NAMED = [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]
_AFFINITY = "required node affinity"
TEAM = {"key": "team", "value": "a", "effect": "NoExecute"}
_TAINT = "no toleration of the taint team=a:NoExecute"
NOT_READY = {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}


def of_spec(why: str) -> str:
    """The field with the requirement, of which some rows have the end."""
    return f"nodeSelector {why}" if why.startswith("kubernetes.io") else why


@pytest.mark.parametrize(
    ("changed", "short"),
    [
        ({"status": NOT_READY}, "the node is not Ready (KubeletNotReady) (1 node)"),
        ({"metadata": {"name": "n2"}}, "no inventory of cards: no agent has written gpu-cards"),
        ({}, "no card has 95 cores and 4 blocks free (1 node)"),
    ],
)
def test_a_node_that_the_manifest_names_must_serve_the_pod(changed: Json, short: str) -> None:
    there = {**make_node("n2", 1), **changed}
    if "metadata" in changed:
        there["metadata"]["labels"] = {"gpu-turnstile.io/gpus": "true"}
    pod = {"kind": "Pod", "metadata": {}, "spec": make_pod("new", (95, 4), node="n2")["spec"]}
    state = state_of([make_node("n1", 1), there], [scenes.running("a", (10, 4), "n2", 0)])
    (found,) = state.fit(pod)
    assert found.result == "does not fit"
    assert f"{OWN}spec.nodeName n2 (1 node)" in found.short
    assert short in found.short


CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
PREFERS = {"key": "x", "effect": "PreferNoSchedule"}


@pytest.mark.parametrize(
    ("spec", "taints", "why"),
    [
        ({"os": {"name": "windows"}}, (), "spec.os windows"),
        ({"os": {"name": "linux"}}, (), ""),
        ({"nodeSelector": {"kubernetes.io/arch": "arm64"}}, (), "kubernetes.io/arch=arm64"),
        ({"nodeSelector": {"kubernetes.io/arch": "amd64"}}, (), ""),
        ({"nodeSelector": {"zone": "b"}}, (), "nodeSelector zone=b"),
        (_affinity(_labels("In", "arm64")), (), _AFFINITY),
        (_affinity(_labels("In", "arm64"), _labels("In", "amd64")), (), ""),
        (_affinity(_labels("NotIn", "amd64")), (), _AFFINITY),
        (_affinity(_labels("NotIn", "x", key="zone")), (), ""),
        (_affinity(_labels("Exists", key="zone")), (), _AFFINITY),
        (_affinity(_labels("DoesNotExist", key="zone")), (), ""),
        (_affinity(_labels("Gt", "8", key="cards")), (), _AFFINITY),
        (_affinity(_labels("Lt", "8", key="cards")), (), ""),
        (_affinity(_labels("Lt", "x", key="cards")), (), _AFFINITY),
        (_affinity(_labels("Later", "x")), (), ""),  # of a newer API server
        (_affinity({"matchFields": _NAMED}), (), _AFFINITY),
        (_affinity({}), (), _AFFINITY),
        (_affinity(), (), _AFFINITY),
        ({"nodeName": "n9"}, (), "spec.nodeName n9"),
        ({"nodeName": "n1"}, (), ""),
        ({"nodeName": "n1"}, (TEAM,), _TAINT),
        ({"nodeName": "n1"}, (TEAM | {"effect": "NoSchedule"},), ""),  # as the kubelet
        ({"nodeSelector": {"kubernetes.io/os": "windows"}}, (), "kubernetes.io/os=windows"),
        ({}, (TEAM,), _TAINT),
        ({}, (PREFERS, CORDON), ""),
        (_tolerates(operator="Exists"), (TEAM,), ""),
        (_tolerates(key="team", operator="Equal", value="a"), (TEAM,), ""),
        (_tolerates(key="team", value="b"), (TEAM,), _TAINT),
        (_tolerates(key="team", operator="Exists", effect="NoSchedule"), (TEAM,), _TAINT),
        (_tolerates(key="other", operator="Exists"), (TEAM,), _TAINT),
    ],
)
def test_a_pod_neither_fits_nor_gets_advice_for_a_node_that_its_own_spec_excludes(
    spec: Json, taints: tuple[Json, ...], why: str
) -> None:
    node = make_node("n1", 1)
    node["metadata"]["labels"] = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    node["metadata"]["labels"]["cards"] = "4"
    node["spec"] = {"taints": [*taints]}
    pod = scenes.waiting("new", (200, 8))
    manifest = {**pod, "metadata": {"name": "new"}, "spec": {**pod["spec"], **spec}}
    (found,) = state_of([node]).fit(manifest)
    answers = [(found.changes, found.no_change)]
    small = scenes.waiting("small", (30, 4), message="0/1 nodes")
    small["spec"] |= spec
    (fitting,) = state_of([node]).fit({**small, "metadata": {"name": "small"}})
    assert fitting.result == ("does not fit" if why else "fits")
    assert fitting.short == (f"{OWN}{of_spec(why)} (1 node)" if why else "")
    if "nodeName" not in spec:
        headline = explanation_of(state_of([node], [small]), "small").summary
        excluded = f"; {OWN}{of_spec(why)} (1 node)" * bool(why)
        text = f'it fits on the cards of n1{excluded}; default-scheduler: "0/1 nodes"'
        assert headline == f"is pending: {text}"
        explained = explanation_of(state_of([node], [{**pod, "spec": manifest["spec"]}]), "new")
        answers.append((explained.changes, explained.no_change))
        assert explained.checked.startswith("Checked: cards, cordons, whether a node is Ready, ")
    for changes, nothing in answers:
        assert bool(changes) == (not why)
        text = "No change would make it fit: its own spec excludes all nodes with cards, by "
        assert nothing.startswith(text) == bool(why)
        assert nothing.endswith(f"{why} (1 node)." if why else "")


def test_a_pod_that_names_its_node_fits_there_though_it_is_cordoned() -> None:
    cordoned = {**make_node("n1", 1), "spec": CORDONED["spec"]}
    named, other = make_pod("new", (60, 4)), make_pod("other", (30, 4))
    named["spec"]["nodeName"] = "n1"
    named["metadata"].pop("uid")
    found = state_of([cordoned]).fit(named, other, named)
    assert [(each.fits, each.changes[:1]) for each in found[:1]] == [(True, ())]
    assert found[1].short == "the node is cordoned (1 node)"
    assert found[2].short == "no card has 60 cores and 4 blocks free (1 node)"
    cordoned["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "Silent"}]
    assert not state_of([cordoned]).fit(named)[0].fits


@pytest.mark.parametrize(
    ("cores", "then", "change"),
    [
        (30, "would fit on n1", ""),
        (90, "would not fit: no card has 90 cores and 4 blocks free (1 node)", "instead of 90"),
    ],
)
def test_a_pod_waits_for_its_scheduling_gates_and_what_is_then_is_said(
    cores: int, then: str, change: str
) -> None:
    pod = scenes.waiting("gated", (cores, 4))
    pod["spec"]["schedulingGates"] = [{"name": "a/b"}, {"name": "c"}]
    pod["status"]["conditions"] = [scenes.unschedulable("gates", "SchedulingGated")]
    waits = f"it waits for its scheduling gates (a/b, c) to be removed; then it {then}"
    state = state_of([make_node("n1", 1)], [on(0, (50, 4)), pod])
    (found,) = state.fit(pod)
    assert (found.result, found.short, found.gates) == ("does not fit", waits, ("a/b", "c"))
    assert drawn(show_fits([found]))[0] == f"Pod gated does not start yet: {waits}"
    explained = explanation_of(state, "gated")
    assert explained.summary.startswith(f"is pending: SchedulingGated: gates; {waits}")
    for each in (*found.changes, *explained.changes):
        assert each.text.endswith(", and wait until its scheduling gates are removed")
    assert bool(found.changes) == bool(explained.changes) == bool(change)
    several = {"kind": "Deployment", "spec": {"replicas": 2, "template": {"spec": pod["spec"]}}}
    (some,) = state.fit(several)
    assert ("then it would not fit (1 of 2 pods would): no card" in some.short) is not bool(change)
    assert change in explained.summary


def test_changes_are_suggested_only_for_nodes_that_are_allowed_and_ready() -> None:
    other, down = make_node("n2", 2), make_node("n3", 2)
    other["metadata"]["labels"] = {"kubernetes.io/arch": "arm64"}
    down["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "reason": "Silent"}]
    pod = make_pod("new", (300, 8))
    pod["spec"]["nodeSelector"] = {"kubernetes.io/arch": "arm64"}
    (found,) = state_of([make_node("n1", 2), other, down]).fit(pod)
    assert {each.nodes for each in found.changes} == {("n2",)}
    del pod["spec"]["nodeSelector"]
    (found,) = state_of([make_node("n1", 2), other, down]).fit(pod)
    assert {each.nodes for each in found.changes} == {("n1", "n2")}


def test_a_refused_pod_would_not_fit_on_a_node_that_its_own_spec_excludes() -> None:
    pod = scenes.refused("a", (30, 4), "n1", "full")
    pod["spec"]["nodeSelector"] = {"zone": "b"}
    found = explanation_of(state_of([make_node("n1", 1)], [pod]), "a")
    assert found.summary == "was refused on n1: full"


HALVES, THIRDS = ({NAMES.gpu_cards_of("c0"): each} for each in ("2", "3"))
ONE_HALF = "request 50 cores instead of 100, 4 memory blocks instead of 8 and 1 card instead of 2"
MORE_CARDS = ["request 80 cores instead of 90", "request 3 cards instead of 2"]
IN_MIB = ["request 16 memory blocks (4096 MiB) instead of 4096"]
LESS = "request 80 cores instead of 100 and 4 memory blocks instead of 8"
TWO_THIRDS = (
    "request 60 cores instead of 90, 8 memory blocks instead of 12 and 2 cards instead of 3"
)


@pytest.mark.parametrize(
    ("cards", "held", "limits", "divided", "expected"),
    [
        (2, [(60, 4)], (100, 8), HALVES, ["request 80 cores instead of 100", ONE_HALF]),
        (2, [(60, 30)], (100, 8), HALVES, [ONE_HALF]),
        (2, [(60, 30)] * 2, (100, 8), HALVES, [LESS]),
        (3, [(60, 4)] * 3, (90, 12), HALVES, MORE_CARDS),
        (2, [], (100, 4096), HALVES, IN_MIB),  # more than any card has, of each card
        (2, [], (90, 12), THIRDS, ["request 2 cards instead of 3", TWO_THIRDS]),
    ],
)
def test_an_author_of_a_divided_share_sees_smaller_requests_and_other_numbers_of_cards(
    cards: int,
    held: list[tuple[int, int]],
    limits: tuple[int, int],
    divided: dict[str, str],
    expected: list[str],
) -> None:
    holders = [on(card, each) for card, each in enumerate(held)]
    found = fit([make_node("n1", cards)], holders, limits, annotations=divided)
    assert texts(found) == expected


def test_another_number_of_cards_names_the_annotation_to_write() -> None:
    found = fit([make_node("n1", 2)], [], (90, 12), annotations=THIRDS)
    assert found.changes[0].manifest == 'metadata.annotations["tencent.com/gpu-cards-c0"]: "2"'


def test_a_smaller_request_names_the_fields_to_write() -> None:
    found = fit([make_node("n1", 2)], [on(0, (60, 4))], (200, 9))
    assert found.changes[0].manifest == (
        'resources.limits["tencent.com/vcuda-core"]: 100, '
        'resources.limits["tencent.com/vcuda-memory"]: 5'
    )


@pytest.mark.parametrize(
    ("blocks", "besides"), [(28, "or one of 7 other pods"), (29, "or pods on 2 other nodes")]
)
def test_a_truncated_list_names_the_missing_permission(blocks: int, besides: str) -> None:
    nodes = [make_node(f"n{number}", 1) for number in range(5)]
    names = [(f"{name}{number}", f"n{number}") for number in range(5) for name in "ab"]
    held = [scenes.running(name, (50, 4), node, 0) for name, node in names]
    ends = [each for each in fit(nodes, held, (50, blocks)).changes if each.kind == "delete-pods"]
    assert [each.besides for each in ends] == ["", "", besides]
    assert {each.needs for each in ends} == {"permission to delete pods in default"}


def ending(pod: Json, seconds: int = 30) -> Json:
    """The pod, to end in some seconds: somebody has deleted it."""
    at = scenes.NOW + timedelta(seconds=seconds)
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": f"{at:%Y-%m-%dT%H:%M:%SZ}"}}


LEAVES = "wait for the end of pod default/a on n1, which is being deleted"
LATE = "find out why pod default/a on n1 is not deleted yet: to end at 2025-11-22T08:59:29Z"
DELETE = "delete pod default/b on card 1 of n1 (frees 50 cores, 4 blocks)"


@pytest.mark.parametrize(
    ("seconds", "limit", "expected"),
    [
        (30, (60, 4), [LEAVES]),
        (-29, (60, 4), [LEAVES]),
        (-31, (60, 4), [LATE, DELETE]),
        # Its end alone is not enough: another pod is to be deleted, but not itself.
        (30, (200, 8), [DELETE]),
    ],
)
def test_a_pod_waits_for_one_that_leaves_instead_of_another_ones_deletion(
    seconds: int, limit: tuple[int, int], expected: list[str]
) -> None:
    held = [ending(on(0, (90, 4), "a"), seconds), on(1, (50, 4), "b")]
    found = fit([make_node("n1", 2)], held, limit)
    assert texts(found, "admin") == expected
    assert found.changes[0].text == (LEAVES if LEAVES in expected else found.changes[0].text)
    state = state_of([make_node("n1", 2)], [*held, scenes.waiting("new", limit)])
    explained = explanation_of(state, "new")
    assert explained.changes == found.changes
    if LEAVES in expected:
        assert explained.summary.endswith(f". Smallest change: {LEAVES} (fits on n1)")
    # It is deleted while it is known.
    held[0]["metadata"].pop("deletionTimestamp")
    state.put_pod(held[0])
    before = explanation_of(state, "new").changes
    assert not any("being deleted" in each.text for each in before)
    state.put_pod(ending(held[0], seconds))
    assert explanation_of(state, "new").changes == found.changes


def nominated(pod: Json, priority: int, *victims: str, card: int = 0) -> Json:
    """The pending pod, for which others are evicted on n1 and one card is kept."""
    until = int(scenes.NOW.timestamp()) + 60
    condition = Nomination("n1", {"c0": (card,)}, victims, until).as_condition(0)
    status = {**pod["status"], "nominatedNodeName": "n1", "conditions": [condition]}
    return {**pod, "spec": {**pod["spec"], "priority": priority}, "status": status}


KEPT = "no card has 60 cores and 4 blocks free: cards are kept for default/urgent"


@pytest.mark.parametrize(
    ("priority", "why"),
    [
        ({}, KEPT),
        ({"priority": 10}, KEPT),
        ({"priority": 11}, ""),
        ({"priorityClassName": "unknown"}, KEPT),
    ],
)
def test_cards_that_are_kept_for_a_preemptor_are_not_free_for_others(
    priority: Json, why: str
) -> None:
    """Its victim has gone, or holds less than is kept."""
    urgent = nominated(scenes.waiting("urgent", (80, 4)), 10, "u-victim")
    for held in ([], [on(0, (30, 4), "victim")]):
        new = scenes.waiting("new", (60, 4))
        new["spec"] |= priority
        state = state_of([make_node("n1", 1)], [*held, urgent])
        (found,) = state.fit(new)
        assert (found.fits, found.nodes[0].reason) == (not why, why)
        assert not any(each.kind == "delete-pods" for each in found.changes)
        state.put_pod(new)
        assert [each.reason for each in explanation_of(state, "new").nodes] == [why]
        shown = next(each for each in state.report().pods if each.name == "new")
        assert ("cards are kept" in shown.why) == bool(why)
        own = explanation_of(state, "urgent")
        assert [each.fits for each in own.nodes] == [not held]
        assert [each.kind for each in own.changes[:1]] == ["wait-for-pods"] * bool(held)
        state.put_pod({**urgent, "status": {"phase": "Pending"}})  # withdrawn
        assert state.fit(new)[0].fits


def test_what_is_kept_counts_once_for_several_manifests_and_only_until_its_end() -> None:
    urgent = nominated(scenes.waiting("urgent", (40, 4)), 10, "u-gone")
    state = state_of([make_node("n1", 1)], [urgent])
    pods = [make_pod(name, (30, 4)) for name in ("a", "b", "c")]
    assert [each.fits for each in state.fit(*pods)] == [True, True, False]
    text = urgent["status"]["conditions"][0]
    text["message"] = text["message"].replace("2025-11-22T09:01:00Z", "2025-11-22T08:59:00Z")
    state.put_pod(urgent)
    assert [each.fits for each in state.fit(*pods)] == [True, True, True]


def test_all_reasons_against_a_node_are_one_change() -> None:
    node = make_node("n1", 1, allocatable="0") | {"spec": CORDONED["spec"]}
    (change,) = fit([node], [], (60, 4)).changes
    assert change.text == (
        "make n1 usable: the node is cordoned and its agent is not connected to the kubelet"
    )
    assert change.needs == "permission to change nodes and access to the node and its agent"


def test_a_change_that_the_webhook_would_deny_is_not_suggested() -> None:
    """One whole card has memory enough, but the init container leaves two over."""
    node = make_node("n1", 2, blocks=[16, 4])
    assert texts(fit([node], [], (300, 30))) == [
        "request 100 cores instead of 300 and 10 memory blocks instead of 30"
    ]
    assert texts(fit([node], [], (300, 30), inits=[(200, 0)])) == []


def test_the_smallest_change_is_listed_first() -> None:
    wish = {NAMES.use_gpu_type: "a100"}
    nodes = [make_node("n1", 1), make_node("n2", 1, models=["Tesla T4"])]
    little = fit(nodes, [on(0, (50, 4))], (60, 4), annotations=wish)
    much = fit(nodes, [on(0, (90, 4))], (60, 4), annotations=wish)
    assert [each.kind for each in little.changes][:2] == ["reduce-request", "remove-wish"]
    assert [each.kind for each in much.changes][:2] == ["remove-wish", "reduce-request"]


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ((900, 9 * 33), ": no node has 9 cards; the largest has 4"),
        ((100, 33), ": no card has 33 memory blocks; the largest has 32"),
        ((400, 0), ""),
    ],
)
def test_without_a_suggested_change_the_largest_amount_is_shown(
    limits: tuple[int, int], most: str
) -> None:
    """No card is free, and more pods than are offered to end hold the cards."""
    held = [on(card, (24, 8), f"p{card}-{each}") for card in range(4) for each in range(4)]
    state = state_of([make_node("n1", 4, blocks=32)], [*held, scenes.waiting("new", limits)])
    (found,), explanation = state.fit(make_pod("new", limits)), explanation_of(state, "new")
    message = f"No single change that gpu-turnstile can suggest would make it fit{most}."
    assert (found.changes, found.no_change) == ((), message)
    assert (explanation.changes, explanation.no_change) == ((), message)


_LESS = re.compile(
    r"request (?:(\d+) cores? instead of \d+)?(?:, | and )?(?:(\d+) memory blocks? instead of \d+)?"
    r"(?: and )?(?:(\d+) cards? instead of \d+)?$"
)


@patient
@given(
    st.lists(st.tuples(st.integers(1, 99), st.integers(1, 15)), min_size=1, max_size=3),
    st.tuples(st.integers(1, 100), st.integers(1, 20)),
    st.integers(1, 3),
)
def test_a_suggested_request_fits_and_a_larger_one_does_not(
    held: list[tuple[int, int]], of_each: tuple[int, int], split: int
) -> None:
    """One more of each card, for a share of several."""
    node = make_node("n1", len(held), blocks=16)
    state = state_of([node], [on(card, limit) for card, limit in enumerate(held)])
    if of_each[0] == 100:
        split = 1
    limits = of_each[0] * split, of_each[1] * split, split

    def find(cores: int, blocks: int, cards: int) -> FitReport:
        divided = {NAMES.gpu_cards_of("c0"): str(cards)} if cards > 1 else {}
        (found,) = state.fit(make_pod("new", (cores, blocks), annotations=divided))
        assert not found.errors
        return found

    for change in find(*limits).changes:
        found = _LESS.match(change.text)
        if change.kind != "reduce-request" or found is None:
            continue
        numbers = zip(found.groups(), limits, strict=True)
        cores, blocks, cards = (int(got or old) for got, old in numbers)
        assert find(cores, blocks, cards).fits
        if found[3]:
            continue
        if found[1] and not found[2] and cores < 99 * split:
            assert not find(cores + split, blocks, cards).fits
        if found[2] and not found[1]:
            assert not find(cores, blocks + split, cards).fits

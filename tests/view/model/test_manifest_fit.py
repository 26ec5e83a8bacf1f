"""Whether the pods of manifests fit, where, and why not."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod
from tests.view import scenes
from tests.view.model.test_state import state_of
from view.model.manifest_fit import InvalidManifest

HALVES = {NAMES.gpu_cards_of("c0"): "2"}
LIMITS = {"limits": {NAMES.core: "40", NAMES.memory: "4"}}
TEMPLATE = {"spec": {"containers": [{"name": "main", "resources": LIMITS}], "nodeName": "n9"}}


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


def test_a_daemonset_has_one_pod_on_each_node() -> None:
    nodes = [make_node("n1", 1), make_node("n2", 1, unhealthy=[0])]
    (found,) = state_of(nodes).fit({"kind": "DaemonSet", "spec": {"template": TEMPLATE}})
    assert (found.replicas, found.room) == (2, 1)
    assert found.short == "no healthy card (1 node)"


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
        "name",
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

"""Claims of GPU pods that the webhook adds, drops, denies and warns of."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.claims import (
    CLAIM,
    MODE_LABEL,
    PodClaim,
    has_shape,
    named_template,
    read_pod_claim,
    template_name,
)
from contract.demand import PodDemand
from contract.names import Names
from contract.quantity import parse_quantity
from contract.requests import read_pod_demand
from simulator.api.resources import PODS
from simulator.api.validation import decoded, prepared
from tests.examples import any_json, share
from tests.webhook.admission.building import Json, applied, decide, decide_template, no_stamp
from tests.webhook.admission.dialects.translating import ACCEPT
from webhook.admission.claims import Claims
from webhook.admission.options import AdmissionOptions, DefaultMemory

NAMES = Names()
D = NAMES.domain
ON = AdmissionOptions(claims=Claims.ON)
OURS = "gpu-turnstile-0123456789abcdef"
SHARE = {NAMES.core: "30", NAMES.memory: "8"}


def container(name: str, limits: Json | None = None, *claims: Any, **fields: Any) -> Json:
    resources: Json = {"limits": SHARE if limits is None else limits}
    if claims:
        resources["claims"] = [*claims]
    return {"name": name, "resources": resources, **fields}


def pod(*containers: Json, claims: list[Any] | None = None, **fields: Any) -> Json:
    spec: Json = {"containers": [*containers], **fields}
    if claims is not None:
        spec["resourceClaims"] = claims
    return {"metadata": {"annotations": {}}, "spec": spec}


def created(given: Json, options: AdmissionOptions = ON) -> Json:
    decision = decide(given, options)
    assert decision.errors == ()
    return applied(given, decision)


def claims_of(found: Json) -> tuple[Any, list[Any]]:
    spec = found["spec"]
    listed = [*spec.get("initContainers", []), *spec["containers"]]
    return spec.get("resourceClaims"), [each["resources"].get("claims") for each in listed]


def errors_of(given: Json) -> list[str]:
    return [str(each) for each in decide(given, ON, stamp=no_stamp).errors]


# --- added claims ---------------------------------------------------------------------


def test_a_gpu_pod_gets_a_claim_with_a_request_a_container_and_keeps_what_it_has() -> None:
    """Its limits, and claims of its author."""
    net = {"name": "net", "resourceClaimName": "nic"}
    given = pod(
        container("a", SHARE, {"name": "net"}),
        container("b", {}, {"name": "net"}),
        container("c", {NAMES.core: "200"}),
        claims=[net],
    )
    given["spec"]["initContainers"] = [container("i")]
    found = created(given)
    template = {"name": CLAIM, "resourceClaimTemplateName": template_name(given, NAMES)}
    assert claims_of(found) == (
        [net, template],
        [
            [{"name": CLAIM, "request": "a"}],
            [{"name": "net"}, {"name": CLAIM, "request": "a"}],
            [{"name": "net"}],
            [{"name": CLAIM, "request": "c"}],
        ],
    )
    assert [each["resources"]["limits"] for each in found["spec"]["containers"]] == [
        *(SHARE, {}),
        {NAMES.core: "200"},
    ]


def test_without_the_option_no_claim_is_added_or_denied() -> None:
    given = pod(container("a"), claims=[{"name": CLAIM, "resourceClaimName": "x"}], nodeName="n")
    assert claims_of(created(given, AdmissionOptions()))[0] == given["spec"]["resourceClaims"]
    copy = pod(container("a", {}), claims=[{"name": CLAIM, "resourceClaimTemplateName": OURS}])
    assert decide(copy, AdmissionOptions()).patch == ()


@pytest.mark.parametrize(
    ("claims", "expected"), [(Claims.ON, None), (Claims.AWAY, "theirs"), (Claims.OFF, "theirs")]
)
def test_a_pod_with_a_claim_stays_with_the_clusters_scheduler(
    claims: Claims, expected: str | None
) -> None:
    """Of two schedulers neither would know which devices the other one is about to allocate."""
    options = AdmissionOptions(claims=claims, scheduler_name="theirs")
    assert created(pod(container("a")), options)["spec"].get("schedulerName") == expected


def test_a_copy_with_other_limits_gets_its_own_template() -> None:
    copy = pod(
        container("a", SHARE, {"name": CLAIM, "request": "deleted"}),
        container("b", {}, {"name": CLAIM, "request": "a"}, {"name": "mine", "request": "a"}),
        claims=[
            {"name": CLAIM, "resourceClaimTemplateName": OURS},
            {"name": "mine", "resourceClaimTemplateName": OURS},
        ],
    )
    decision = decide(copy, ON)
    template = {"name": CLAIM, "resourceClaimTemplateName": template_name(copy, NAMES)}
    assert claims_of(applied(copy, decision)) == (
        [template],
        [[{"name": CLAIM, "request": "a"}], None],
    )
    assert decision.warnings == ("container b: claim gpus dropped, it requests no GPU",)


@pytest.mark.parametrize("options", [ON, AdmissionOptions(claims=Claims.AWAY)])
def test_a_pod_without_gpus_loses_claims_by_our_templates_only(options: AdmissionOptions) -> None:
    other = {"name": "other", "resourceClaimTemplateName": "mine"}
    copy = pod(
        container("a", {}, {"name": "x"}, {"name": "other"}),
        container("b", {}, {"name": "x"}),
        claims=[{"name": "x", "resourceClaimTemplateName": OURS}, other],
    )
    decision = decide(copy, options)
    assert claims_of(applied(copy, decision)) == ([other], [[{"name": "other"}], None])
    assert decision.warnings == ("claim x: dropped, the pod requests no GPU",)
    of_template = decide_template(copy, options=options).warnings
    assert of_template == (decision.warnings if options is ON else ())
    copy["spec"]["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": "mine"}]
    assert decide(copy, options).patch == ()


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        NAMES.core: st.sampled_from(["30", 60, "100.0", "200", "0", "3200", "150"]),
        NAMES.memory: st.sampled_from(["8", "1k", "9", 2000, "1e4"]),
        "nvidia.com/gpu": st.sampled_from(["1", "2"]),
        "nvidia.com/gpumem": st.just("4000"),
        "aliyun.com/gpu-mem": st.just("4"),
    },
)
CLAIMS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from([CLAIM, "x"])},
        optional={
            "resourceClaimTemplateName": st.sampled_from([OURS, "mine"]),
            "request": st.sampled_from(["c0", "c1"]),
        },
    )
    | any_json("name"),
    max_size=3,
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [NAMES.use_gpu_type, NAMES.nouse_gpu_uuid, NAMES.gpu_link, NAMES.gpu_cards_of("c0")]
    ),
    st.sampled_from(["2", "numa", "GPU-1", "a100,b"]),
    max_size=3,
)


@st.composite
def pods(draw: st.DrawFn) -> Json:
    def listed(prefix: str) -> list[Json]:
        most = 3
        return [
            container(f"{prefix}{at}", draw(LIMITS), *draw(CLAIMS))
            | draw(st.sampled_from([{}, {"restartPolicy": "Always"}]))
            for at in range(draw(st.integers(0, most)))
        ]

    made = pod(*listed("c"), initContainers=listed("i"))
    made["metadata"]["annotations"] = draw(ANNOTATIONS)
    if draw(st.booleans()):
        made["spec"]["resourceClaims"] = draw(CLAIMS)
    return made


def assert_sums(claim: PodClaim, demand: PodDemand) -> None:
    """Assert that each container's request has what its limits say."""
    requests = {each["name"]: each["exactly"] for each in claim.spec["spec"]["devices"]["requests"]}
    for each in demand.containers:
        exactly = requests[claim.requests[each.name]]
        amounts = exactly["capacity"]["requests"]
        cores, memory = (parse_quantity(amounts.get(name, 0)) for name in ("cores", "memory"))
        assert cores is not None
        assert memory is not None
        cards = exactly["count"]
        assert cards * cores == each.demand.cores
        # Whole cards: all have as much as the one that gets most.
        assert 0 <= cards * memory - each.demand.memory < (1 if each.demand.is_share else cards)


@given(pods(), st.sampled_from([ON, replace(ACCEPT, claims=Claims.ON)]), st.booleans())
@settings(max_examples=share(100) * 2)
def test_the_stored_pod_names_the_template_of_its_own_limits(
    given: Json, options: AdmissionOptions, fills: bool
) -> None:
    if fills:
        options = replace(options, default_memory=DefaultMemory.PROPORTIONAL, largest_card=96)
    decision = decide(given, options)
    if decision.errors:
        return
    stored = prepared(PODS, decoded(PODS, applied(given, decision)))
    claim = read_pod_claim(stored, NAMES)
    assert named_template(stored) == ("" if claim is None else claim.template)
    if claim is not None:
        assert has_shape(claim.template, json.loads(json.dumps(claim.spec)))
        assert_sums(claim, read_pod_demand(stored, NAMES)[0])
    used = {}
    for each in [*stored["spec"]["initContainers"], *stored["spec"]["containers"]]:
        for entry in each["resources"].get("claims", []):
            if claim is not None and isinstance(entry, dict) and entry.get("name") == CLAIM:
                used[each["name"]] = entry["request"]
    assert used == ({} if claim is None else claim.requests)
    # The API server calls again if another webhook changed the pod.
    again = [each["path"] for each in decide(stored, options).patch]
    assert not any("laims" in path for path in again), again


@given(any_json("metadata", "spec", "containers", "resources", "claims", "resourceClaims", "name"))
def test_a_hostile_pod_is_decided(hostile: Any) -> None:
    for spec in (hostile, {"containers": [container("a")], "resourceClaims": hostile}):
        decide({"metadata": {}, "spec": spec}, ON)
    decide(pod(container("a", SHARE, hostile), {"name": hostile, "resources": hostile}), ON)


# --- denials and warnings ------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (pod(container("a"), nodeName="n1"), "spec.nodeName"),
        (pod(container("a", {NAMES.core: "3300"})), "spec"),
    ],
)
def test_a_pod_that_cannot_have_a_claim_is_denied(given: Json, field: str) -> None:
    (error,) = errors_of(given)
    assert error.startswith(f"{field}: Invalid value: ")
    assert [str(each) for each in decide_template(given, options=ON).errors] == [
        f"spec.template.{error}"
    ]


@pytest.mark.parametrize(
    ("fields", "preempts"),
    [
        ({}, False),
        ({"priority": 0, "priorityClassName": "default"}, False),
        ({"priority": 1000}, True),
        ({"priorityClassName": "high"}, True),
        ({"priority": 1000, "preemptionPolicy": "Never"}, False),
    ],
)
def test_a_priority_that_will_not_preempt_is_warned_of(fields: Json, preempts: bool) -> None:
    given = pod(container("a"), **fields)
    text = "its priority does not preempt: no pod gives up its card for another pod's claim"
    assert (
        decide(given, ON).warnings
        == decide_template(given, options=ON).warnings
        == (text,) * preempts
    )


def test_an_init_container_that_holds_more_than_quotas_count_is_warned_of() -> None:
    given = pod(container("a"))
    own, shared = container("own", {NAMES.core: "40", NAMES.memory: "8"}), container("shared")
    sidecar = container("sidecar", {NAMES.core: "50", NAMES.memory: "8"}, restartPolicy="Always")
    given["spec"]["initContainers"] = [own, shared, sidecar]
    (warning,) = decide(given, ON).warnings
    assert warning.startswith("init container own: its claim holds cards as long as the pod lives")


# --- --claims away --------------------------------------------------------------------

AWAY = AdmissionOptions(claims=Claims.AWAY)
_NOT_IN = {"key": MODE_LABEL, "operator": "NotIn", "values": ["dra"]}
_NO_TERMS: list[Any] = [
    *(None, {"nodeAffinity": None}),
    {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}},
]
_ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
_NAMED = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}


def _required(*terms: Json) -> Json:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}


@pytest.mark.parametrize(
    ("affinity", "terms"),
    [
        *((none, [{"matchExpressions": [_NOT_IN]}]) for none in _NO_TERMS),
        (
            {"nodeAffinity": _required({"matchExpressions": [_ZONE]}, _NAMED)},
            [{"matchExpressions": [_ZONE, _NOT_IN]}, {**_NAMED, "matchExpressions": [_NOT_IN]}],
        ),
        ({"nodeAffinity": _required()}, []),  # the API server denies it
        # A term without any requirement matches no node, and must not begin to match some.
        (
            {"nodeAffinity": _required({}, {"matchExpressions": [_NOT_IN]})},
            [{}, {"matchExpressions": [_NOT_IN]}],
        ),
    ],
)
def test_away_keeps_gpu_pods_off_nodes_that_serve_claims(
    affinity: Json | None, terms: list[Json]
) -> None:
    given = pod(container("a"), affinity=affinity)
    found = created(given, AWAY)
    assert found["spec"]["affinity"]["nodeAffinity"] == _required(*terms)
    assert created(found, AWAY)["spec"] == found["spec"]
    assert claims_of(found) == (None, [None])


def test_away_drops_a_copied_claim_and_keeps_the_rest_of_an_affinity() -> None:
    copied = {"name": CLAIM, "resourceClaimTemplateName": OURS}
    given = pod(container("a", None, {"name": CLAIM, "request": "a"}), claims=[copied])
    others = {"preferredDuringSchedulingIgnoredDuringExecution": [1]}
    given["spec"]["affinity"] = {"podAffinity": {"a": 1}, "nodeAffinity": others}
    found = created(given, AWAY)
    assert claims_of(found) == (None, [None])
    required = _required({"matchExpressions": [_NOT_IN]})
    assert found["spec"]["affinity"] == {"podAffinity": {"a": 1}, "nodeAffinity": others | required}
    assert "affinity" not in created(pod(container("a", {})), AWAY)["spec"]


@settings(max_examples=share(40), deadline=None)
@given(any_json("affinity", "nodeAffinity", "nodeSelectorTerms", "matchExpressions"))
def test_away_reads_any_affinity(hostile: Any) -> None:
    decide(pod(container("a"), affinity=hostile), AWAY)

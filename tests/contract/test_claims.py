"""The claim of a pod: a request for each container, wishes as selectors, and denied pods."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.claims import (
    CLAIM,
    LONGEST_SELECTOR,
    MIRROR,
    MOST_RESULTS,
    claim_template_spec,
    driver_name,
    find_claim_errors,
    has_shape,
    is_template_name,
    named_template,
    read_pod_claim,
    request_names,
    template_name,
)
from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.errors import InvalidName
from contract.names import Names
from contract.requests import read_pod_demand
from contract.text import to_label
from contract.wishes import NO_WISHES, Wishes, read_wishes
from tests.contract.test_reusable import Requested, demand_of
from tests.deploy.cel import holds, scope_of
from tests.examples import any_json

NAMES = Names()
D = NAMES.domain
MAIN, INIT, SIDECAR = ContainerKind.MAIN, ContainerKind.INIT, ContainerKind.SIDECAR


def pod(limits: dict[str, str], **annotations: str) -> dict[str, Any]:
    given = {f"{D}/{key.replace('_', '-')}": value for key, value in annotations.items()}
    container = {"name": "main", "resources": {"limits": limits}}
    return {"metadata": {"annotations": given}, "spec": {"containers": [container]}}


SHARE = {NAMES.core: "30", NAMES.memory: "8"}


def errors_of(manifest: dict[str, Any], *, path: str = "") -> list[str]:
    demand, errors = read_pod_demand(manifest, NAMES)
    assert not errors
    wishes, wrong = read_wishes(manifest["metadata"]["annotations"], NAMES)
    assert not wrong
    return [str(each) for each in find_claim_errors(manifest, demand, wishes, NAMES, path=path)]


def test_a_container_has_a_request_with_what_it_gets_of_each_card() -> None:
    demand = demand_of((SIDECAR, 10, 1), (MAIN, 60, 9, 3), (MAIN, 200, 0), (MAIN, 200, 601))
    whole = {"deviceClassName": "gpu.tencent.com", "allocationMode": "ExactCount", "count": 2}
    spec = claim_template_spec(demand, NO_WISHES, NAMES)
    first, divided, cards, sized = spec["spec"]["devices"]["requests"]
    assert first == {
        "name": "c0",
        "exactly": {
            "deviceClassName": "gpu.tencent.com",
            "allocationMode": "ExactCount",
            "count": 1,
            "capacity": {"requests": {"cores": "10", "memory": "1"}},
        },
    }
    assert (divided["exactly"]["count"], divided["exactly"]["capacity"]) == (
        3,
        {"requests": {"cores": "20", "memory": "3"}},
    )
    del cards["exactly"]["selectors"], sized["exactly"]["selectors"]  # of MIG, below
    assert cards["exactly"] == {**whole, "capacity": {"requests": {"cores": "100"}}}
    assert sized["exactly"]["capacity"] == {"requests": {"cores": "100", "memory": "301"}}
    assert "constraints" not in spec["spec"]["devices"]


def test_an_init_container_uses_the_request_of_a_later_one_with_an_equal_demand() -> None:
    demand = demand_of(
        (INIT, 30, 8), (INIT, 20, 8), (SIDECAR, 20, 8), (INIT, 20, 8), (INIT, 30, 8), (MAIN, 30, 8)
    )
    assert request_names(demand) == {
        "c0": "c5",
        "c1": "c2",
        "c2": "c2",
        # The sidecar before it holds its cards already.
        "c3": "c3",
        "c4": "c5",
        "c5": "c5",
    }
    requests = claim_template_spec(demand, NO_WISHES, NAMES)["spec"]["devices"]["requests"]
    assert [each["name"] for each in requests] == ["c2", "c3", "c5"]


@given(st.lists(st.tuples(st.sampled_from(ContainerKind), st.integers(1, 3), st.just(1))))
def test_containers_that_run_at_once_never_have_one_request(containers: list[Requested]) -> None:
    demand = demand_of(*containers)
    found = request_names(demand)
    by_name = {each.name: each for each in demand.containers}
    kept = [found[each.name] for each in demand.containers if each.kind is not INIT]
    assert len(kept) == len({*kept})
    for user, owner in found.items():
        assert by_name[user].demand == by_name[owner].demand
        assert by_name[owner].index >= by_name[user].index
        assert found[owner] == owner


@pytest.mark.parametrize(("link", "attribute"), [("numa", "numa"), ("nvlink", "nvlinkGroup")])
def test_a_link_is_a_constraint_of_each_container_with_several_cards(
    link: str, attribute: str
) -> None:
    demand = demand_of((MAIN, 30, 8), (MAIN, 200, 0), (MAIN, 40, 8, 2))
    devices = claim_template_spec(demand, Wishes(link=link), NAMES)["spec"]["devices"]
    assert devices["constraints"] == [
        {"requests": [each], "matchAttribute": f"gpu.tencent.com/{attribute}"}
        for each in ("c1", "c2")
    ]


def test_the_name_is_the_hash_of_the_shape_and_of_nothing_else() -> None:
    found = read_pod_claim(pod(SHARE), NAMES)
    assert found is not None
    assert found.template == "gpu-turnstile-cb81bced98c7064b"
    assert found.requests == {"main": "main"}
    assert is_template_name(found.template)
    other = pod({NAMES.core: "30.0", NAMES.memory: "8e0", "cpu": "1"}, gpu_policy="spread")
    other["metadata"] |= {"name": "x", "labels": {"a": "b"}}
    assert template_name(other, NAMES) == found.template
    for limits, wish in (
        ({**SHARE, NAMES.memory: "9"}, {}),
        ({**SHARE, NAMES.core: "31"}, {}),
        (SHARE, {"gpu_cards_main": "2"}),
        (SHARE, {"use_gpu_type": "a100"}),
    ):
        assert template_name(pod(limits, **wish), NAMES) not in ("", found.template)
    elsewhere = Names("example.org")
    limits = {elsewhere.core: "30", elsewhere.memory: "8"}
    assert template_name(pod(limits), elsewhere) not in ("", found.template)


def test_a_stored_template_with_defaults_and_any_wish_has_the_shape_of_its_name() -> None:
    """Else it would be replaced again and again."""
    for link in ("numa", "nvlink"):
        manifest = pod({NAMES.core: "200", NAMES.memory: "9"}, gpu_link=link, use_gpu_type="a100")
        found = read_pod_claim(manifest, NAMES)
        assert found is not None
        stored = json.loads(json.dumps(found.spec))
        (constraint,) = stored["spec"]["devices"]["constraints"]
        constraint["distinctAttribute"] = None
        assert has_shape(found.template, stored)
        constraint["matchAttribute"] += "x"
        assert not has_shape(found.template, stored)


def test_a_pod_that_breaks_a_rule_has_no_claim() -> None:
    assert template_name(pod({}), NAMES) == ""
    assert template_name(pod({NAMES.core: "150"}), NAMES) == ""
    assert template_name(pod(SHARE, use_gpu_uuid="not a uuid"), NAMES) == ""
    assert template_name(pod({NAMES.core: "3300"}), NAMES) == ""


@given(any_json("metadata", "annotations", "spec", "containers", "resources", "resourceClaims"))
def test_any_pod_is_read(found: Any) -> None:
    if isinstance(found, dict):
        assert template_name(found, NAMES) == "" or found
        assert named_template(found) == ""


def test_only_our_claim_names_a_template_of_ours() -> None:
    ours = "gpu-turnstile-0123456789abcdef"
    for claim, expected in (
        ({"name": CLAIM, "resourceClaimTemplateName": ours}, ours),
        ({"name": CLAIM, "resourceClaimTemplateName": "gpu-turnstile-mine"}, ""),
        ({"name": CLAIM, "resourceClaimTemplateName": ours + "\n"}, ""),
        ({"name": "other", "resourceClaimTemplateName": ours}, ""),
        ({"name": CLAIM, "resourceClaimName": ours}, ""),
    ):
        assert named_template({"spec": {"resourceClaims": [{}, None, claim]}}) == expected


def selectors_of(demand: Demand, wishes: Wishes) -> list[str]:
    pod_demand = PodDemand((ContainerDemand("main", MAIN, 0, demand),))
    spec = claim_template_spec(pod_demand, wishes, NAMES)
    exactly = spec["spec"]["devices"]["requests"][0]["exactly"]
    return [each["cel"]["expression"] for each in exactly.get("selectors", [])]


def takes(demand: Demand, wishes: Wishes, *, model: str, uuid: str) -> bool:
    attributes = {"uuid": uuid, "model": model.lower()}
    device = {"driver": "gpu.tencent.com", "attributes": {"gpu.tencent.com": attributes}}
    scope = scope_of({"device": device})
    return all(holds(each, scope) for each in selectors_of(demand, wishes))


ONE, WHOLE = Demand(30, 8), Demand(100, 0)
MODELS = (
    *("NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA H100 PCIe", "Lab (b) $1"),
    *("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me"),
)
PARTS = st.one_of(
    st.sampled_from([to_label(each).lower() for each in MODELS]),
    st.sampled_from(
        ["a100", "nvidia-a100", "1g.5gb", "mig", "40gb mig", "gb", "(b) $", ".*", '" || true || "']
    ),
    st.text("abt4-_. g$*\\\"'é™", min_size=1, max_size=5),
).filter(lambda part: "--" not in part and part == part.strip() != "")


@given(
    st.lists(PARTS, max_size=3),
    st.lists(PARTS, max_size=2),
    st.lists(st.sampled_from(["gpu-1", "gpu-2", "mig-1"]), max_size=2),
    st.lists(st.sampled_from(["gpu-1", "gpu-2", "mig-1"]), max_size=2),
    st.sampled_from([ONE, WHOLE, Demand(60, 4, 2)]),
)
def test_a_selector_decides_as_plugin_and_extender_do(
    use: list[str], nouse: list[str], uuids: list[str], not_uuids: list[str], demand: Demand
) -> None:
    wishes = Wishes(tuple(use), tuple(nouse), tuple(uuids), tuple(not_uuids))
    for model in MODELS:
        uuid = "MIG-1" if " MIG " in model else "GPU-1"
        expected = not wishes.excludes(model=model, uuid=uuid)
        if demand != ONE and uuid == "MIG-1":
            expected = expected and wishes.names_instance(model=model, uuid=uuid)
        assert takes(demand, wishes, model=model, uuid=uuid) is expected, (wishes, model)


def test_a_usual_share_has_no_selector_and_whole_cards_are_no_instances() -> None:
    assert selectors_of(ONE, NO_WISHES) == []
    (selector,) = selectors_of(WHOLE, NO_WISHES)
    assert selector == '!device.attributes["gpu.tencent.com"].uuid.startsWith("MIG-")'
    assert selectors_of(Demand(60, 4, 2), NO_WISHES) == [selector]


class CountedTypes(tuple[str, ...]):  # noqa: SLOT001 - it counts
    """Parts of product names that count how often they are iterated."""

    passes = 0

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return super().__iter__()


def test_long_wishes_are_read_as_often_for_many_containers_as_for_one() -> None:
    """Else a pod of 10 KiB takes a second, of the webhook and of the claims program."""
    passes = []
    for number in (1, 32):
        types = CountedTypes(["a100", "h100"])
        claim_template_spec(demand_of(*[(MAIN, 30, 8)] * number), Wishes(types), NAMES)
        passes.append(types.passes)
    assert passes[0] == passes[1]


@given(st.text(min_size=1, max_size=30))
def test_the_text_of_a_wish_stays_in_its_string(text: str) -> None:
    wishes, _ = read_wishes({NAMES.use_gpu_type: text, NAMES.nouse_gpu_type: text}, NAMES)
    for expression in selectors_of(WHOLE, wishes):
        strings = re.findall(r'"[^"]*"', expression)
        assert all(re.fullmatch(r'"(?:[^"\\\n]|\\U[0-9a-f]{8})*"', each) for each in strings)
        skeleton = re.sub(r'"[^"]*"', "S", expression)
        assert re.fullmatch(r"[\[\]S!&|(). a-zA-Z]*", skeleton)
        assert expression.isascii()


_NAMED = (
    "the scheduler chooses the cards of a claim, and does not see a pod that names its node: use "
    "nodeSelector or affinity"
)
_TAKEN = "gpu-turnstile adds a claim with this name: choose another one"
_STATIC = "a static pod gets no GPU by a claim: create the pod through the API server"
_CLAIMS = [{"name": "x"}, {"name": "gpus", "resourceClaimName": "mine"}]


@pytest.mark.parametrize(
    ("part", "change", "field", "found"),
    [
        ("spec", {"nodeName": "n1"}, "nodeName", f'"n1": {_NAMED}'),
        ("spec", {"resourceClaims": _CLAIMS}, "resourceClaims[1].name", f'"gpus": {_TAKEN}'),
        (
            "metadata",
            {"annotations": {MIRROR: "abc"}},
            f"annotations[{MIRROR}]",
            f'"abc": {_STATIC}',
        ),
    ],
)
def test_a_pod_that_cannot_have_a_claim_is_denied(
    part: str, change: dict[str, Any], field: str, found: str
) -> None:
    reason = f"{part}.{field}: Invalid value: {found}"
    manifest = pod(SHARE)
    manifest[part] |= change
    assert errors_of(manifest) == [reason]
    assert errors_of(manifest, path="spec.template.") == [f"spec.template.{reason}"]


def test_a_claim_has_at_most_32_cards() -> None:
    most = pod({NAMES.core: "3100"})
    most["spec"]["containers"].insert(0, {"name": "b", "resources": {"limits": SHARE}})
    # An init container that uses the request of another one adds none.
    most["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": SHARE}}]
    assert errors_of(most) == []
    most["spec"]["containers"].append({"name": "c", "resources": {"limits": SHARE}})
    assert errors_of(most) == [
        (
            "spec: Invalid value: 33: its containers request 33 cards, a claim has at most "
            f"{MOST_RESULTS}: request fewer, or divide the work over several pods"
        )
    ]


def test_a_selector_is_bounded() -> None:
    most = [f"GPU-{index:047d}" for index in range(184)]
    (selector,) = selectors_of(ONE, Wishes(use_uuids=tuple(most)))
    for at in range(LONGEST_SELECTOR - len(selector)):
        most[at] += "0"
    assert errors_of(pod(SHARE, use_gpu_uuid=",".join(most))) == []
    most[-1] += "0"
    (error,) = errors_of(pod(SHARE, use_gpu_uuid=",".join(most)))
    longer = f"has {LONGEST_SELECTOR + 1} characters, Kubernetes allows {LONGEST_SELECTOR}"
    assert longer in error
    types = ",".join(f"{index:060d}" for index in range(100))
    assert errors_of(pod(SHARE, use_gpu_type=types)) == []
    (error,) = errors_of(pod({NAMES.core: "100"}, use_gpu_type=types))
    assert error.startswith(f'metadata.annotations[{NAMES.use_gpu_type}]: Invalid value: "000')


def test_all_selectors_together_are_bounded() -> None:
    lists = ("use_gpu_type", "nouse_gpu_type", "use_gpu_uuid", "nouse_gpu_uuid")
    wishes = {
        each: ",".join(f"{at}{index:030d}" for index in range(180)) for at, each in enumerate(lists)
    }
    manifest = pod(SHARE, **wishes)
    assert errors_of(manifest) == []
    manifest["spec"]["containers"] = [
        {"name": f"c{index}", "resources": {"limits": SHARE}} for index in range(32)
    ]
    (error,) = errors_of(manifest)
    assert error.startswith("metadata.annotations: Invalid value")
    assert template_name(manifest, NAMES) == ""


def test_a_domain_must_leave_room_for_the_drivers_name() -> None:
    assert len(driver_name(Names("a" * 55 + ".com"))) == 63
    with pytest.raises(InvalidName, match="must have at most 59 characters for claims"):
        driver_name(Names("a" * 56 + ".com"))

"""What holds for pods of every other system; the numbers of each are in its own tests."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.other_systems import SYSTEMS, WISHES, Dialect
from contract.requests import read_pod_demand, walk_containers
from contract.resource import Resource
from tests.examples import any_json
from tests.webhook.admission.building import ANY, Json, applied, decide, decide_template
from tests.webhook.admission.dialects.translating import (
    ACCEPT,
    NAMES,
    became,
    errors_of,
    pod_of,
    translated,
    warnings_of,
)
from webhook.admission.decision import Decision
from webhook.admission.dialects.reading import Reading
from webhook.admission.dialects.registry import READERS, read_dialects
from webhook.admission.dialects.translation import translate
from webhook.admission.options import DEFAULTS, AdmissionOptions, DefaultMemory
from webhook.admission.patches import patch_annotations
from webhook.admission.privileged import Privileged

GPU, MEM, PERCENT, CORES = (
    f"nvidia.com/{each}" for each in ("gpu", "gpumem", "gpumem-percentage", "gpucores")
)
VGPU = "nvidia.com/vgpu-"
FROM, CORE, MEMORY = NAMES.translated_from, NAMES.core, NAMES.memory
LIMITS = "spec.containers[0].resources.limits"
SHARES = {GPU: "2", MEM: "3000", CORES: "30"}


def test_without_accept_no_pod_is_changed() -> None:
    pod = pod_of(SHARES, **{"nvidia.com/use-gputype": "a100"})
    decision = decide(pod, replace(ACCEPT, accept=frozenset()))
    assert (decision.patch, decision.errors) == ((), ())
    assert decision.warnings == (
        f"write {CORE} (100 is one card): gpu-turnstile does not serve {GPU}, {CORES}",
        f"write {MEMORY} (in blocks): gpu-turnstile does not serve {MEM}",
    )
    assert translate(pod, names=NAMES, options=DEFAULTS).pod is pod


def test_all_containers_are_translated_where_they_are() -> None:
    pod = pod_of(SHARES, {GPU: "0", MEM: "0"}, {"cpu": "1"})
    pod["spec"]["initContainers"] = [
        {"name": "i", "resources": {"limits": {GPU: "1"}}},
        {"name": "side", "restartPolicy": "Always", "resources": {"requests": {GPU: 1, "cpu": 1}}},
    ]
    spec = translated(pod)["spec"]
    assert [each["resources"] for each in spec["initContainers"]] == [
        {"limits": {CORE: "100"}},
        {"requests": {CORE: "100", "cpu": 1}, "limits": {CORE: "100"}},
    ]
    assert [each["resources"]["limits"] for each in spec["containers"]] == [
        {CORE: "60", MEMORY: "24"},
        {},
        {"cpu": "1"},
    ]


@pytest.mark.parametrize(
    ("dialect", "limits", "annotations", "becomes"),
    [
        # example/kueue/sample.yaml of vgpu-manager, samples of gpushare, README of elastic-gpu
        (
            "vgpu-manager",
            {f"{VGPU}number": 2, f"{VGPU}cores": 30, f"{VGPU}memory": 1024},
            {},
            (60, 8, 2),
        ),
        ("gpushare", {"aliyun.com/gpu-mem": 2}, {}, (1, 8)),
        ("gpushare-mib", {"aliyun.com/gpu-mem": 16276}, {}, (1, 64)),
        ("elastic-gpu", {"elasticgpu.com/gpu-core": "30"}, {}, (30, 28)),
        ("kai", {}, {"gpu-fraction": "0.333"}, (1, 31)),  # three on a card
        ("kai", {}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "4"}, (4, 192, 4)),
    ],
)
def test_a_manifest_of_each_system_is_translated(
    dialect: str, limits: Json, annotations: dict[str, str], becomes: tuple[int, ...]
) -> None:
    options = replace(ACCEPT, accept=frozenset({Dialect(dialect)}))
    (found,) = became(pod_of(limits, **annotations), options)
    assert tuple(found.values()) == becomes, "cores, blocks and cards"


def test_a_percentage_needs_the_largest_card_unless_it_is_all() -> None:
    options = replace(ACCEPT, largest_card=0)
    (error,) = errors_of(pod_of({GPU: "1", PERCENT: "50"}), options)
    assert error == (
        "spec.containers[0].resources: Invalid value: 50%: a percentage of a card's memory needs "
        "the webhook's --largest-card: write MiB"
    )
    assert became(pod_of({GPU: "1", PERCENT: "100"}), options) == [{"cores": 100}]


@pytest.mark.parametrize(
    ("name", "refused"), [("a" * 53, False), ("a" * 54, True), ("", True), (None, True)]
)
def test_a_share_of_several_cards_needs_a_name_that_fits_an_annotation(
    name: str | None, refused: bool
) -> None:
    pod = pod_of(SHARES)
    pod["spec"]["containers"][0]["name"] = name
    assert [each.rule for each in decide(pod, ACCEPT).errors] == ["name-too-long"] * refused
    pod["spec"]["containers"][0]["resources"]["limits"] = {GPU: "2"}
    assert errors_of(pod) == []


POLICY, SPLIT = "tencent.com/gpu-policy", "tencent.com/gpu-cards-c0"
VOLCANO = "volcano.sh/vgpu-number"


@pytest.mark.parametrize(
    ("limits", "annotations", "found"),
    [
        ({CORE: "50", MEMORY: "0"}, {}, f'{LIMITS}[{CORE}]: Invalid value: "50": '),
        ({MEMORY: "1k"}, {}, f'{LIMITS}[{MEMORY}]: Invalid value: "1000": '),
        ({}, {POLICY: "spread"}, f'metadata.annotations[{POLICY}]: Invalid value: "spread": '),
        ({}, {SPLIT: "2"}, f'metadata.annotations[{SPLIT}]: Invalid value: "2": '),
        ({VOLCANO: "1"}, {}, f'{LIMITS}[{VOLCANO}]: Invalid value: "1": is of volcano, '),
    ],
)
def test_names_of_two_systems_are_refused(
    limits: Json, annotations: dict[str, str], found: str
) -> None:
    pod = pod_of(SHARES | limits, **annotations)
    (container,) = pod["spec"]["containers"]
    container["resources"]["requests"] = dict(container["resources"]["limits"])  # as API servers do
    assert errors_of(pod) == [f"{found}beside {GPU} of hami: write the names of one system"]


def test_zeros_and_empty_wishes_of_ours_are_no_mixture() -> None:
    pod = pod_of({**SHARES, CORE: "0"}, **{"tencent.com/gpu-policy": ""})
    assert became(pod) == [{"cores": 60, "blocks": 24, "cards": 2}]
    ours = pod_of({CORE: "50", MEMORY: "8", GPU: "0"})
    assert became(ours) == [{"cores": 50, "blocks": 8, GPU: 0}]


@pytest.mark.parametrize(
    ("accepted", "limits", "other"),
    [
        (Dialect.NVIDIA, {GPU: "1"}, MEM),  # HAMi's pods where only NVIDIA's are accepted
        (Dialect.HAMI, {GPU: "1"}, VOLCANO),
        (Dialect.HAMI, {GPU: "1", MEM: "3000"}, "nvidia.com/mig-1g.5gb"),
    ],
)
def test_no_container_is_translated_by_half(accepted: Dialect, limits: Json, other: str) -> None:
    """It would have a card here, and for ever wait for a resource of a system that is not."""
    options = AdmissionOptions(accept=frozenset({accepted}))
    (error,) = errors_of(pod_of(limits | {other: "3"}), options)
    assert error == (
        f'{LIMITS}[{other}]: Invalid value: "3": is not read as a name of {accepted}, beside '
        f"{GPU} of {accepted}: write the names of one system"
    )
    assert became(pod_of(limits | {other: "0"}), options)[0][other] == 0


BEYOND = "is more memory than any card has: it is counted in MiB"


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({GPU: "17", MEM: "1000"}, "17 cards: must be at most 16, for parts of cards"),
        ({GPU: "21474837"}, "21474837 cards: must be at most 21474836"),
        ({GPU: "16", MEM: "2147483647"}, f"2147483647 MiB: {BEYOND}"),
    ],
)
def test_requests_that_no_node_has_are_refused_in_the_authors_units(
    limits: Json, error: str
) -> None:
    expected = f"spec.containers[0].resources: Invalid value: {error}"
    assert errors_of(pod_of(limits)) == [expected]


@pytest.mark.parametrize("largest", [96, 0])
def test_memory_in_mib_is_not_taken_for_mistaken_blocks(largest: int) -> None:
    pod, options = pod_of({GPU: "1", MEM: "320000"}), replace(ACCEPT, largest_card=largest)
    line = "container c0: 1250 memory blocks, but the largest known card has 96"
    assert warnings_of(pod, options) == ((line,) if largest else ())
    assert decide(translated(pod, options), options).warnings == warnings_of(pod, options)
    became_of_template = "container c0: translated from hami: vcuda-core 1, vcuda-memory 1250"
    assert decide_template(pod, options=ACCEPT).warnings == (became_of_template, line)


def test_a_second_call_does_not_warn_of_the_variable_that_the_first_one_set() -> None:
    pod = translated(pod_of({GPU: "1", MEM: "3000"}))
    assert decide(pod, ACCEPT).warnings == ()
    # as HAMi's webhook does if its overwriteEnv is on and it is called in between
    pod["spec"]["containers"][0]["env"].append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"})
    (warning,) = decide(pod, ACCEPT).warnings
    assert warning == "container c0: env NVIDIA_VISIBLE_DEVICES overrides the node's value"


def test_our_own_checks_and_defaults_hold_for_a_translated_pod() -> None:
    share = pod_of({GPU: "1", MEM: "30000", CORES: "30"}, **{"nvidia.com/use-gpuuuid": "A 100"})
    share["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    options = replace(ACCEPT, privileged=Privileged.DENY)
    assert [each.rule for each in decide(share, options).errors] == [
        "wish-not-a-uuid",
        "privileged",
    ]
    del share["metadata"]["annotations"]
    assert warnings_of(share) == (
        "container c0: privileged, it sees every card of its node",
        "container c0: 118 memory blocks, but the largest known card has 96",
    )
    theirs = pod_of({GPU: "1"})
    theirs["spec"] |= {"schedulerName": "hami-scheduler"}
    options = replace(
        ACCEPT,
        scheduler_name="gpus",
        runtime_class="nvidia",
        default_memory=DefaultMemory.PROPORTIONAL,
    )
    spec = translated(theirs, options)["spec"]
    assert (spec["schedulerName"], spec["runtimeClassName"]) == ("gpus", "nvidia")


def test_a_copy_of_a_translated_pod_is_a_pod_of_ours() -> None:
    copied = translated(pod_of(SHARES, **{FROM: "forged"}))
    assert json.loads(copied["metadata"]["annotations"][FROM])["resources"] == {"c0": SHARES}
    copied["metadata"]["annotations"][NAMES.predicate_time] = "1"
    decision = decide(copied, ACCEPT)
    dropped = f"metadata.annotations[{FROM}]: dropped, gpu-turnstile writes it"
    assert dropped in decision.warnings
    assert FROM not in applied(copied, decision)["metadata"]["annotations"]
    plain = {"metadata": copied["metadata"], "spec": {"containers": [{"name": "c0"}]}}
    decision = decide(plain, DEFAULTS)
    assert f"metadata.annotations[{FROM}]: dropped, the pod requests no GPU" in decision.warnings


def test_a_template_is_checked_as_its_pods_will_be() -> None:
    mixed = pod_of(SHARES | {CORE: "50"})
    (error,) = decide_template(mixed, options=ACCEPT).errors
    assert error.path == f"spec.template.{LIMITS}[{CORE}]"
    assert decide_template(pod_of(SHARES), options=ACCEPT) == Decision(
        warnings=(
            "container c0: translated from hami: vcuda-core 60, vcuda-memory 24, gpu-cards 2",
        )
    )
    (warning,) = decide_template(
        mixed, mixed, ACCEPT
    ).warnings  # nothing of names that are not served
    assert warning.startswith(f"its pods are denied, as before: {error.path}")
    assert decide_template(pod_of({GPU: "1", MEM: "x"}), mixed, ACCEPT).errors


_SYSTEMS = (
    (GPU, MEM, CORES, PERCENT, "nvidia.com/priority"),
    tuple(f"volcano.sh/vgpu-{each}" for each in ("number", "memory", "cores")),
    ("volcano.sh/gpu-memory", "volcano.sh/gpu-number"),
    tuple(f"nvidia.com/vgpu-{each}" for each in ("number", "memory", "cores")),
    ("aliyun.com/gpu-mem", "aliyun.com/gpu-count"),
    ("elasticgpu.io/gpu-core", "elasticgpu.com/gpu-memory"),
    (GPU, "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"),
    (CORE, MEMORY),
)
_KEYS = (
    *(*sorted(WISHES), *sorted(NAMES.wishes), FROM, "tencent.com/gpu-cards-a"),
    *("nvidia.com/numa-bind", "nvidia.com/vgpu-mode", "volcano.sh/vgpu-mode"),
    *("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name"),
)
_ENV = [{"name": "CUDA_DISABLE_CONTROL", "value": "1"}]


@st.composite
def _pods(draw: st.DrawFn) -> Json:
    """Draw a pod as an author of some system writes it, then replace up to two of its values."""
    names = draw(st.sampled_from(_SYSTEMS))
    counts = st.dictionaries(
        st.sampled_from(names), st.sampled_from(["0", 1, "2", "30", 50, "3000", "5k"]), max_size=4
    )
    container = st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b"]), "resources": st.builds(dict, limits=counts)},
        optional={"env": st.just(_ENV)},
    )
    annotations = st.dictionaries(
        st.sampled_from(_KEYS), st.sampled_from(["", "binpack", "true", "GPU-1", "2", "0.5", "a"])
    )
    pod: Json = {
        "metadata": {"annotations": draw(st.just({}) | annotations)},
        "spec": {"containers": draw(st.lists(container, min_size=1, max_size=3))},
    }
    for _ in range(draw(st.integers(0, 2))):
        part: Any = pod
        while isinstance(part, dict | list) and part:
            keys = list(part) if isinstance(part, dict) else range(len(part))
            key = draw(st.sampled_from(keys))
            if draw(st.booleans()):
                part[key] = draw(ANY | st.sampled_from([*names, "c" * 60, {CORE: 1}, "1.5"]))
                break
            part = part[key]
    parsed: Json = json.loads(json.dumps(pod))  # as decoded: no object is in it twice
    return parsed


_ANYTHING = any_json("metadata", "spec", "annotations", "containers")
_HOSTILE = st.dictionaries(st.sampled_from(["metadata", "spec"]), _ANYTHING)
_OPTIONS = st.builds(
    AdmissionOptions,
    largest_card=st.sampled_from([0, 96]),
    scheduler_name=st.sampled_from(["", "gpus"]),
    accept=st.just(ACCEPT.accept) | st.frozensets(st.sampled_from(Dialect), min_size=1),
    memory_block=st.sampled_from([1 << 20, 1 << 28]),
)


@given(_pods() | _pods() | _HOSTILE, _OPTIONS)
def test_any_pod_is_denied_or_valid_and_a_second_call_changes_nothing(
    pod: dict[str, Any], options: AdmissionOptions
) -> None:
    before = copy.deepcopy(pod)
    decision = decide(pod, options)
    assert pod == before
    if decision.errors:
        assert not decision.patch
        return
    created = applied(pod, decision)
    demand, errors = read_pod_demand(created, NAMES)
    assert errors == ()
    if any(": translated from " in each for each in decision.warnings):
        assert demand.containers
        assert not read_dialects(created, options.accept, path="")
    again = decide(created, options)
    assert not again.errors
    if demand:
        assert applied(created, again) == created


@given(_pods(), _OPTIONS)
def test_the_patch_makes_the_pod_that_was_checked(
    pod: dict[str, Any], options: AdmissionOptions
) -> None:
    found = translate(pod, names=NAMES, options=options)
    if found.errors or not isinstance(pod.get("metadata", {}), dict):
        return
    if not isinstance(pod.get("metadata", {}).get("annotations", {}), dict | None):
        return
    operations = (*patch_annotations(pod.get("metadata"), found.changes), *found.patch)
    assert applied(pod, Decision(patch=operations)) == found.pod


@given(
    cards=st.integers(1, 16),
    cores=st.integers(0, 99),
    mib=st.integers(1, 200_000),
    block=st.sampled_from([1 << 20, 1 << 26, 1 << 28]),
    system=st.sampled_from(
        [(GPU, CORES, MEM), (VOLCANO, "volcano.sh/vgpu-cores", "volcano.sh/vgpu-memory")]
    ),
)
def test_totals_are_cards_times_parts_of_whole_blocks(
    cards: int, cores: int, mib: int, block: int, system: tuple[str, str, str]
) -> None:
    counts = dict(zip(system, (str(cards), str(cores), str(mib)), strict=True))
    options = replace(ACCEPT, memory_block=block, largest_card=0)
    demand, _ = read_pod_demand(translated(pod_of(counts), options), NAMES)
    (container,) = demand.containers
    assert container.demand.cards == cards
    assert set(container.demand.per_card(Resource.CORE)) == {cores or 1}
    (blocks,) = set(container.demand.per_card(Resource.MEMORY))
    assert (blocks - 1) * block < mib << 20 <= blocks * block


# --- the readers, whatever a pod has ------------------------------------------------------

MORE = {
    Dialect.VGPU_MANAGER: ("nvidia.com/vgpu-compute-policy",),
    Dialect.KAI: ("gpu-fraction-num-devices", "gpu-fraction-container-name", "mps"),
}


def _read_by(dialect: Dialect) -> tuple[str, ...]:
    """Return resources and annotations of a system."""
    names = SYSTEMS[dialect]
    beginnings = (f"{each}a" for each in (names.prefix, names.claims) if each)
    listed = (*names.resources, *names.requests, *names.wishes, *beginnings)
    return (*listed, *MORE.get(dialect, ()))


READ = {dialect: _read_by(dialect) for dialect in Dialect}

FIELDS = ("metadata", "annotations", "labels", "spec", "containers", "resources", "limits", "env")
CONTENT = any_json(*FIELDS, *(name for names in READ.values() for name in names))


@pytest.mark.parametrize("dialect", Dialect)
@given(content=CONTENT, data=st.data())
def test_no_pod_raises(dialect: Dialect, content: Any, data: st.DataObject) -> None:
    reader, names = READERS[dialect], st.sampled_from(READ[dialect])
    check_any_reading(reader, {"metadata": content, "spec": content})
    limits = st.dictionaries(names | st.just("cpu"), any_json(), max_size=4)
    pod = pod_of(*data.draw(st.lists(limits, max_size=3)))
    pod["metadata"] |= {"annotations": data.draw(st.dictionaries(names, any_json() | st.text()))}
    check_any_reading(reader, pod)
    pod["spec"] |= {"schedulerName": content, "containers": [content, *pod["spec"]["containers"]]}
    check_any_reading(reader, pod)


def check_any_reading(reader: Callable[..., Reading | None], pod: Json) -> None:
    """Check what holds for any reading of any pod."""
    reading = reader(pod, path="spec.template.")
    if reading is None:
        return
    there = {(field, index) for field, index, _ in walk_containers(pod.get("spec"))}
    found = [(each.field, each.index) for each in reading.containers]
    assert len(found) == len(set(found))
    assert set(found) <= there
    for error in reading.errors:
        assert error.path.startswith(("spec.template.spec.", "spec.template.metadata."))
        assert error.value
    for request in filter(None, (each.request for each in reading.containers)):
        assert request.cards >= 1
        assert request.cores is None or 1 <= request.cores <= 100
        assert request.memory is None or request.memory >= 1
        assert request.percent is None or 0 < request.percent <= 100
        assert request.memory is None or request.percent is None

"""elastic-gpu, gpushare, KAI and vgpu-manager: what is read of their pods, and what is refused.

Numbers of their documents and examples are facts, named beside the row.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.admission.dialects.translating import pod_of
from webhook.admission.dialects.elastic_gpu import read_elastic_gpu
from webhook.admission.dialects.gpushare import read_gpushare
from webhook.admission.dialects.kai import read_kai
from webhook.admission.dialects.reading import CardRequest, Reading
from webhook.admission.dialects.vgpu_manager import read_vgpu_manager

Reader = Callable[..., Reading | None]
Limits = dict[str, Any]

ELASTIC_CORE, ELASTIC_MEMORY = "elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory"
COM_CORE, COM_MEMORY = "elasticgpu.com/gpu-core", "elasticgpu.com/gpu-memory"
ALI_MEMORY, ALI_COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
ALI_CORES = "aliyun.com/gpu-core.percentage"
FRACTION, KAI_MEMORY = "gpu-fraction", "gpu-memory"
KAI_CARDS, KAI_CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
NUMBER, CORES, MEMORY = (f"nvidia.com/vgpu-{each}" for each in ("number", "cores", "memory"))
LIMITS = "spec.containers[0].resources.limits"
UUID = "GPU-49aa2e6a-33f3-99dd-e08b-ea4beb0e0d28"  # of vgpu-manager's README
read_gpushare_mib = partial(read_gpushare, memory_unit=1)


def read(reader: Reader, pod: Mapping[str, Any]) -> Reading:
    reading = reader(pod, path="")
    assert reading is not None
    return reading


def requests_of(reading: Reading) -> list[CardRequest | None]:
    return [each.request for each in reading.containers]


def errors_of(reading: Reading) -> str:
    return "\n".join(str(each) for each in reading.errors)


@pytest.mark.parametrize(
    ("reader", "limits", "request_"),
    [
        # README of elastic-gpu-scheduler, steps 4 and 5, and its scheduler_test.go
        (read_elastic_gpu, {ELASTIC_MEMORY: "256"}, CardRequest(1, memory=256)),
        (read_elastic_gpu, {ELASTIC_CORE: "200"}, CardRequest(2)),
        (read_elastic_gpu, {COM_CORE: "0", COM_MEMORY: "4"}, CardRequest(1, memory=4)),
        (
            read_elastic_gpu,
            {ELASTIC_CORE: 20, ELASTIC_MEMORY: 4096},
            CardRequest(1, cores=20, memory=4096),
        ),
        (read_elastic_gpu, {ELASTIC_CORE: 100, ELASTIC_MEMORY: 4096}, CardRequest(1)),
        (read_elastic_gpu, {ELASTIC_CORE: 0, ELASTIC_MEMORY: 0}, None),
        # samples/1.yaml of gpushare's extender, and samples/4.yaml with --memory-unit=MiB
        (read_gpushare, {ALI_MEMORY: 2}, CardRequest(1, memory=2048)),
        (read_gpushare_mib, {ALI_MEMORY: 16276}, CardRequest(1, memory=16276)),
        (read_gpushare, {ALI_MEMORY: 4, ALI_COUNT: 1}, CardRequest(1, memory=4096)),
        (read_gpushare, {ALI_MEMORY: "0", ALI_COUNT: "0", ALI_CORES: "0"}, None),
        # README.md of vgpu-manager, example/kueue/sample.yaml and topology-aware.yaml
        (read_vgpu_manager, {NUMBER: 1, CORES: 10, MEMORY: 1024}, CardRequest(1, 10, 1024)),
        (read_vgpu_manager, {NUMBER: "2", CORES: "30", MEMORY: "1024"}, CardRequest(2, 30, 1024)),
        (read_vgpu_manager, {NUMBER: "8"}, CardRequest(8)),
        # its docs/how_to_use_gpu_topology.md
        (read_vgpu_manager, {NUMBER: 2, MEMORY: 10000}, CardRequest(2, memory=10000)),
        (read_vgpu_manager, {CORES: 30}, CardRequest(1, cores=30)),
        (read_vgpu_manager, {NUMBER: 0, CORES: 100, MEMORY: 4096}, CardRequest(1, 100, 4096)),
        (read_vgpu_manager, {NUMBER: 16, CORES: 0, MEMORY: 0}, CardRequest(16)),
        (read_vgpu_manager, {NUMBER: 0, CORES: 0, MEMORY: "0"}, None),
    ],
)
def test_a_container_requests(reader: Reader, limits: Limits, request_: CardRequest | None) -> None:
    reading = read(reader, pod_of(limits))
    assert requests_of(reading) == [request_]
    assert (reading.errors, reading.warnings) == ((), ())
    assert set(reading.containers[0].resources) == set(limits)


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        # docs/gpu-sharing/gpu-sharing.yaml and gpu-memory.yaml of KAI, and its issue 1521
        ({FRACTION: "0.5"}, CardRequest(1, percent=50)),
        ({KAI_MEMORY: "2000"}, CardRequest(1, memory=2000)),
        ({KAI_MEMORY: "51200", KAI_CARDS: "8"}, CardRequest(8, memory=51200)),
        ({FRACTION: "0.333"}, CardRequest(1, percent=Fraction("33.3"))),
    ],
)
def test_the_first_main_container_requests_what_kais_annotations_say(
    annotations: dict[str, str], request_: CardRequest
) -> None:
    pod = pod_of({}, {}, **annotations)
    pod["spec"]["initContainers"] = [{"name": "init"}]
    reading = read(read_kai, pod)
    assert [(each.field, each.index) for each in reading.containers] == [("containers", 0)]
    assert requests_of(reading) == [request_]
    assert (reading.errors, reading.warnings) == ((), ())
    assert reading.annotations == tuple(annotations)


@pytest.mark.parametrize(
    ("name", "where"), [("c1", ("containers", 1)), ("gpu-init", ("initContainers", 0))]
)
def test_a_container_that_kais_annotation_names_requests(name: str, where: tuple[str, int]) -> None:
    pod = pod_of({}, {}, **{FRACTION: "0.5", KAI_CONTAINER: name})
    pod["spec"]["initContainers"] = [{"name": "gpu-init"}]
    (found,) = read(read_kai, pod).containers
    assert ((found.field, found.index), found.request) == (where, CardRequest(1, percent=50))


@pytest.mark.parametrize(
    ("reader", "limits", "annotations"),
    [
        (read_elastic_gpu, {"cpu": 1}, {"elasticgpu.io/assumed": "true"}),
        (read_gpushare, {"nvidia.com/gpu": 1}, {"ALIYUN_COM_GPU_MEM_IDX": "0"}),
        (read_kai, {"nvidia.com/gpu": 1}, {KAI_CARDS: "2", KAI_CONTAINER: "c0", "mps": "true"}),
        (read_vgpu_manager, {"nvidia.com/gpu": 1}, {"nvidia.com/include-gpu-type": "A10"}),
    ],
)
def test_a_pod_that_requests_nothing_of_a_system_is_none(
    reader: Reader, limits: Limits, annotations: dict[str, str]
) -> None:
    pod = pod_of(limits, **annotations)
    pod["metadata"]["labels"] = {ALI_COUNT: "2"}
    assert reader(pod, path="") is None


@pytest.mark.parametrize(
    ("reader", "limits", "stamps"),
    [
        (
            read_elastic_gpu,
            {ELASTIC_MEMORY: 2},
            ("elasticgpu.io/assumed", "elasticgpu.io/container-c0"),
        ),
        (read_gpushare, {ALI_MEMORY: 2}, ("ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_ASSIGNED")),
        (read_vgpu_manager, {NUMBER: 2}, ("nvidia.com/predicate-node", "nvidia.com/pre-allocated")),
    ],
)
def test_stamps_of_a_systems_scheduler_are_removed(
    reader: Reader, limits: Limits, stamps: tuple[str, ...]
) -> None:
    pod = pod_of(limits, **dict.fromkeys(stamps, "1"), team="a")
    assert read(reader, pod).annotations == stamps


def test_init_containers_come_first_and_requests_count_as_limits_do() -> None:
    pod = pod_of({"cpu": 1}, {NUMBER: 1})
    pod["spec"]["initContainers"] = [{"name": "i", "resources": {"requests": {NUMBER: 2}}}]
    containers = read(read_vgpu_manager, pod).containers
    found = [(each.field, each.index, each.request) for each in containers]
    assert found == [("initContainers", 0, CardRequest(2)), ("containers", 1, CardRequest(1))]
    pod["spec"]["containers"][1]["resources"]["requests"] = {NUMBER: "3"}
    assert errors_of(read(read_vgpu_manager, pod)) == (
        f'spec.containers[1].resources.requests[{NUMBER}]: Invalid value: "3": must be equal to '
        "limits (1): leave it out of requests"
    )


@pytest.mark.parametrize(
    ("annotations", "wishes"),
    [
        (
            {"include-gpu-type": "A10", "exclude-gpu-type": "A100"},
            {"use-gpu-type": "A10", "nouse-gpu-type": "A100"},
        ),
        (
            {"include-gpu-uuid": UUID, "exclude-gpu-uuid": f" ,{UUID.upper()},"},
            {"use-gpu-uuid": UUID, "nouse-gpu-uuid": UUID},
        ),
        (
            {"node-scheduler-policy": "spread", "device-scheduler-policy": "Binpack"},
            {"gpu-node-policy": "spread", "gpu-policy": "binpack"},
        ),
        ({"node-scheduler-policy": "none", "device-scheduler-policy": "fastest"}, {}),
        ({"device-topology-mode": "link"}, {}),
        ({"device-topology-mode": "link-strict"}, {"gpu-link": "nvlink"}),
        ({"device-topology-mode": "NUMA-strict"}, {"gpu-link": "numa"}),
        ({"vgpu-compute-policy": "fixed", "memory-scheduler-policy": "physical"}, {}),
        ({"vgpu-compute-policy": "balance"}, {"vcuda-core-limit": "100"}),
        ({"include-gpu-type": ""}, {}),
    ],
)
def test_vgpu_managers_annotations_become_wishes(
    annotations: dict[str, str], wishes: dict[str, str]
) -> None:
    given = {f"nvidia.com/{name}": value for name, value in annotations.items()}
    reading = read(read_vgpu_manager, pod_of({NUMBER: 2, MEMORY: 10000}, **given, team="a"))
    assert reading.wishes == wishes
    assert set(reading.annotations) == set(given)
    assert (reading.errors, reading.warnings) == ((), ())


TOPOLOGY = "nvidia.com/device-topology-mode"
COMPUTE = "nvidia.com/vgpu-compute-policy"
VIRTUAL = "nvidia.com/memory-scheduler-policy"
OF_KAI_0_18 = "kai.scheduler/container.c0.gpu-memory.portion.limit"


@pytest.mark.parametrize(
    ("reader", "pod", "request_", "warning"),
    [
        (
            read_elastic_gpu,
            pod_of({ELASTIC_CORE: 150}),
            CardRequest(1),
            "container c0: gpu-core 150 counts as 100, as in elastic-gpu",
        ),
        (
            read_elastic_gpu,
            pod_of({ELASTIC_CORE: 30}),
            CardRequest(1, cores=30, percent=30),
            "container c0: no gpu-memory: it gets 30% of a card's, elastic-gpu did not limit it",
        ),
        (
            read_gpushare,
            pod_of({ALI_COUNT: 2}),
            CardRequest(2),
            "container c0: aliyun.com/gpu-count gave no card in gpushare",
        ),
        (
            read_kai,
            pod_of({}, **{FRACTION: "0.5", "mps": "true"}),
            CardRequest(1, percent=50),
            "mps is not kept: MPS is set up on nodes",
        ),
        (
            read_kai,
            pod_of({}, **{FRACTION: "0.5", OF_KAI_0_18: "0.8"}),
            CardRequest(1, percent=50),
            f"{OF_KAI_0_18} is not kept",
        ),
        *(
            (read_vgpu_manager, pod_of({NUMBER: 1}, **{key: value}), CardRequest(1), f"{key}{text}")
            for key, value, text in (
                (TOPOLOGY, "link-strict", ": link-strict is not kept for a single card"),
                (COMPUTE, "none", ": none is not kept while others compute"),
                (VIRTUAL, "virtual", " is not kept: memory is not oversubscribed"),
                ("nvidia.com/cross-pod-topology", "true", " is not kept"),
            )
        ),
    ],
)
def test_a_setting_that_is_not_kept_is_warned_of(
    reader: Reader, pod: dict[str, Any], request_: CardRequest, warning: str
) -> None:
    reading = read(reader, pod)
    assert requests_of(reading) == [request_]
    assert reading.warnings == (warning,)
    assert set(reading.annotations) == set(pod["metadata"]["annotations"])
    assert "gpu-link" not in (reading.wishes or {})


def test_containers_that_shared_a_card_in_gpushare_are_warned_of() -> None:
    one = pod_of({ALI_MEMORY: 2}, {ALI_COUNT: 1}, {ALI_MEMORY: 0})
    assert "containers may" not in " ".join(read(read_gpushare, one).warnings)
    two = read(read_gpushare, pod_of({ALI_MEMORY: 2}, {ALI_MEMORY: 3}))
    assert requests_of(two) == [CardRequest(1, memory=2048), CardRequest(1, memory=3072)]
    assert two.warnings == ("containers may get different cards: gpushare put all of a pod on one",)


def test_kais_scheduler_stays_with_a_warning_and_vgpu_managers_is_named_as_its_own() -> None:
    pod = pod_of({}, **{FRACTION: "0.5"})
    pod["spec"]["schedulerName"] = "kai-scheduler"
    reading = read(read_kai, pod)
    assert reading.warnings == (
        "spec.schedulerName: kai-scheduler stays, its queues do not count these cards",
    )
    assert not reading.schedulers
    assert read(read_vgpu_manager, pod_of({NUMBER: 1})).schedulers == ("vgpu-scheduler",)


def test_virtual_memory_of_vgpu_manager_is_not_kept() -> None:
    pod = pod_of({NUMBER: 1})  # docs/how_to_use_gpu_virtual_memory.md
    pod["spec"]["containers"][0]["env"] = [{"name": "CUDA_MEM_OVERSOLD", "value": "true"}]
    assert read(read_vgpu_manager, pod).warnings == (
        "container c0: CUDA_MEM_OVERSOLD is not kept: memory is not oversubscribed",
    )


def test_errors_and_warnings_of_a_hostile_pod_are_few() -> None:
    claims = pod_of({}, **{f"egpuc.elasticgpu.io/{each}": "" for each in range(1000)})
    assert len(read(read_elastic_gpu, claims).errors) == 32
    later = {f"kai.scheduler/container.{each}": "" for each in range(99)}
    assert len(read(read_kai, pod_of({}, **{FRACTION: "0.5"}, **later)).warnings) == 8


WHOLE_NUMBER = "must be a whole number from 0 to 2147483647"
WRITE_OURS = "write vcuda-core, vcuda-memory and the annotation gpu-cards-<container>"


@pytest.mark.parametrize(
    ("reader", "limits", "name", "error"),
    [
        (
            read_elastic_gpu,
            {ELASTIC_CORE: 30, COM_CORE: 40},
            COM_CORE,
            f'"40": {ELASTIC_CORE} is there, too: write one of them',
        ),
        (
            read_gpushare,
            {ALI_MEMORY: 1024},  # as in the extender's issue 76, whose plugin counts MiB
            ALI_MEMORY,
            '"1024": more than any card has: it is counted in GiB, 1024 MiB are 1',
        ),
        (
            read_gpushare_mib,
            {ALI_MEMORY: 2**20},
            ALI_MEMORY,
            '"1048576": more than any card has, in MiB',
        ),
        (
            read_gpushare,
            {ALI_MEMORY: 8, ALI_COUNT: 4},
            ALI_COUNT,
            f'"4": gpushare puts {ALI_MEMORY} on one card: for a part of 4 cards {WRITE_OURS}',
        ),
        (read_gpushare, {ALI_MEMORY: "5.5"}, ALI_MEMORY, f'"5.5": {WHOLE_NUMBER}'),
        (
            read_gpushare,
            {ALI_MEMORY: 6, ALI_CORES: 25},
            ALI_CORES,
            '"25": gpushare has no cores: write vcuda-core and vcuda-memory instead',
        ),
        (
            read_vgpu_manager,
            {NUMBER: 17},
            NUMBER,
            '"17": must be at most 16, as in vgpu-manager',
        ),
        (
            read_vgpu_manager,
            {NUMBER: 1, CORES: 150},
            CORES,
            '"150": must be at most 100, as in vgpu-manager',
        ),
    ],
)
def test_a_count_that_cannot_be_kept_is_refused(
    reader: Reader, limits: Limits, name: str, error: str
) -> None:
    reading = read(reader, pod_of(limits))
    assert errors_of(reading) == f"{LIMITS}[{name}]: Invalid value: {error}"
    assert requests_of(reading) == [None]


NO_FRACTION = "must be more than 0 and less than 1, a part of a card's memory such as 0.5"
NO_COUNT = "must be a whole number from 1 to 2147483647"
HALF = {FRACTION: "0.5"}
EXCLUDED = "nvidia.com/exclude-gpu-uuid"
WHOLE_UUIDS = "must be whole UUIDs (GPU-49aa2e6a-33f3-...): a part of one matches no card here"


@pytest.mark.parametrize(
    ("reader", "annotations", "name", "detail"),
    [
        (
            read_elastic_gpu,
            {"egpuc.elasticgpu.io/test1": "gpushare-egpuc-1"},  # README: the pod has no resources
            "egpuc.elasticgpu.io/test1",
            "an ElasticGPUClaim is not read: request its cores and memory in limits",
        ),
        *((read_kai, {FRACTION: each}, FRACTION, NO_FRACTION) for each in ("1.0", "0", "NaN", "")),
        *(
            (read_kai, {KAI_MEMORY: each}, KAI_MEMORY, NO_COUNT)
            for each in ("0", "-5", "2Gi", "2000.5", "", "9" * 30)
        ),
        (read_kai, HALF | {KAI_CARDS: "1.2"}, KAI_CARDS, NO_COUNT),
        (
            read_kai,
            HALF | {KAI_MEMORY: "2000"},
            KAI_MEMORY,
            "gpu-fraction is there, too: write one of them",
        ),
        (read_kai, HALF | {KAI_CONTAINER: "c9"}, KAI_CONTAINER, "names no container of the pod"),
        (
            read_kai,
            HALF | {"runai/shared-gpu-configmap": "x-shared-gpu"},
            "runai/shared-gpu-configmap",
            "left by KAI's webhook: the container would wait for a ConfigMap that KAI makes",
        ),
        *(
            (read_vgpu_manager, {EXCLUDED: each}, EXCLUDED, WHOLE_UUIDS)
            for each in ("GPU-49aa2e6a", f"{UUID}, GPU-1", UUID[4:])
        ),
    ],
)
def test_an_annotation_that_cannot_be_kept_is_refused(
    reader: Reader, annotations: dict[str, str], name: str, detail: str
) -> None:
    limits = {NUMBER: 1} if reader is read_vgpu_manager else {}
    assert errors_of(read(reader, pod_of(limits, **annotations))) == (
        f'metadata.annotations[{name}]: Invalid value: "{annotations[name]}": {detail}'
    )


def test_a_label_that_divides_gpushares_memory_over_cards_is_refused() -> None:
    # Alibaba Cloud's "GPU sharing based on multiple GPUs": 8 GiB of 4 cards are 2 GiB of each
    pod = pod_of({ALI_MEMORY: 8})
    pod["metadata"]["labels"] = {ALI_COUNT: "4"}
    assert errors_of(read(read_gpushare, pod)) == (
        f'metadata.labels[{ALI_COUNT}]: Invalid value: "4": only Alibaba Cloud\'s scheduler '
        f"divides {ALI_MEMORY} over cards: {WRITE_OURS}"
    )
    pod["metadata"]["labels"] = {ALI_COUNT: "1"}
    assert not read(read_gpushare, pod).errors


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_whole_cards_beside_a_part_are_refused_as_in_kai(field: str) -> None:
    pod = pod_of({}, **{KAI_MEMORY: "2000"})
    container = {"name": "w", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod["spec"].setdefault(field, []).append(container)
    index = len(pod["spec"][field]) - 1
    assert errors_of(read(read_kai, pod)) == (
        f'spec.{field}[{index}].resources.limits[nvidia.com/gpu]: Invalid value: "1": the pod has '
        "gpu-fraction or gpu-memory, too: KAI refuses both together"
    )
    assert errors_of(read(read_kai, {**pod, "spec": {}})) == (
        'metadata.annotations[gpu-memory]: Invalid value: "2000": the pod has no container'
    )


@given(st.integers(0, 1700), st.integers(0, 200_000))
def test_never_more_cards_or_less_memory_than_elastic_gpu_gave(cores: int, memory: int) -> None:
    pod = pod_of({ELASTIC_CORE: cores, ELASTIC_MEMORY: memory})
    (request,) = requests_of(read(read_elastic_gpu, pod))
    assert (request is None) == (cores == memory == 0)
    if request is not None:
        assert request.cards == max(cores // 100, 1)
        assert request.memory in (None, memory)  # None: all of whole cards, or a percentage
        assert (request.cores or 0) == (cores if cores < 100 else 0)

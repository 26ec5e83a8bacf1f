import pytest

from contract.other_systems import MIG_PREFIX
from tests.webhook.admission.building import Json, decide
from tests.webhook.admission.dialects.translating import ACCEPT, became, errors_of, pod_of
from webhook.admission.dialects.counts import count_containers
from webhook.admission.dialects.registry import Dialect
from webhook.admission.options import AdmissionOptions

NVIDIA = AdmissionOptions(accept=frozenset({Dialect.NVIDIA}))
GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.20gb"
LIMITS = "spec.containers[0].resources.limits"
SLICES = (
    "a card shared by time-slicing or MPS, whose part is unknown: write vcuda-core and "
    "vcuda-memory for a share, or nvidia.com/gpu for a whole card"
)
INSTANCE = (
    "an instance of a card in MIG mode: write vcuda-core 100 and use-gpu-type with its profile "
    "(agent's --mig shares), or vcuda-core and vcuda-memory for a share"
)


# testdata/job-1.yaml and README.md of k8s-device-plugin: 1
@pytest.mark.parametrize(("count", "cores"), [("1", 100), (2, 200), ("8", 800)])
@pytest.mark.parametrize("options", [NVIDIA, ACCEPT], ids=["alone", "beside HAMi"])
def test_gpus_are_whole_cards(count: object, cores: int, options: AdmissionOptions) -> None:
    assert became(pod_of({GPU: count}), options) == [{"cores": cores}]
    (warning,) = decide(pod_of({GPU: count}), options).warnings
    dialect = "nvidia" if options is NVIDIA else "hami"
    assert warning == f"container c0: translated from {dialect}: vcuda-core {cores}"


@pytest.mark.parametrize(
    ("limits", "name", "detail"),
    [
        ({SHARED: "1"}, SHARED, SLICES),
        ({MIG: "1"}, MIG, INSTANCE),  # examples/nvidia/mig_example of HAMi
        ({GPU: "1", "nvidia.com/mig-1g.5gb.shared": 1}, "nvidia.com/mig-1g.5gb.shared", INSTANCE),
    ],
)
@pytest.mark.parametrize("options", [NVIDIA, ACCEPT], ids=["alone", "beside HAMi"])
def test_parts_of_cards_are_refused(
    limits: Json, name: str, detail: str, options: AdmissionOptions
) -> None:
    error = f'{LIMITS}[{name}]: Invalid value: "1": {detail}'
    assert errors_of(pod_of(limits), options) == [error]


def test_a_count_that_cannot_be_read_is_one_error_of_both_systems() -> None:
    assert errors_of(pod_of({GPU: "x"})) == errors_of(pod_of({GPU: "x"}), NVIDIA)


def test_parts_of_cards_are_left_to_nvidias_plugin_if_only_hami_is_accepted() -> None:
    hami = AdmissionOptions(accept=frozenset({Dialect.HAMI}))
    assert decide(pod_of({MIG: "1", SHARED: 1}), hami).label == "allowed"


def test_the_instances_of_other_containers_are_not_counted() -> None:
    """A hostile pod may have thousands of containers, each with a name of its own."""
    pod = pod_of(*({f"nvidia.com/mig-{each}": "1"} for each in range(3)))
    counted = count_containers(pod, [GPU], path="", prefix=MIG_PREFIX)
    assert [each.counts for each in counted] == [
        {GPU: 0, f"nvidia.com/mig-{each}": 1} for each in range(3)
    ]

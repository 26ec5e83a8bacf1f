"""The check of refusals must be able to say no; runs with the unit tests."""

import pytest

from contract.names import Names
from tests.e2e.adverse import Adverse, adverse_burst, strangers, unexplained
from tests.e2e.manifests import BLOCKS, CARDS, Maker

NAMES = Names()
MAKE = Maker(node="n1", image="busybox:1", names=NAMES)
FITS = Adverse(MAKE.single("fits", 5, 4))
LARGE = Adverse(MAKE.single("large", 10, 97), "desc = gpu-turnstile: no card fits 10 cores")
OURS = "Allocate failed due to rpc error: code = FailedPrecondition desc = gpu-turnstile: "
KUBELETS = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"


@pytest.mark.parametrize(
    ("messages", "quiet", "disturbed"),
    [
        ({"large": f"{OURS}no card fits 10 cores"}, set(), set()),
        ({}, {"large"}, {"large"}),
        ({"large": f"{OURS}no card fits 5 cores"}, {"large"}, {"large"}),
        ({"large": KUBELETS}, {"large"}, set()),
        ({"large": f"{OURS}no card fits 10 cores", "fits": KUBELETS}, {"fits"}, set()),
        (dict.fromkeys(("large", "fits"), f"{OURS}no card fits 10 cores"), {"fits"}, {"fits"}),
    ],
)
def test_each_refusal_without_a_reason_is_found(
    messages: dict[str, str], quiet: set[str], disturbed: set[str]
) -> None:
    burst = [FITS, LARGE]

    assert unexplained(burst, messages).keys() == quiet
    assert unexplained(burst, messages, disturbed=True).keys() == disturbed


def test_a_container_that_did_not_ask_is_a_stranger() -> None:
    beside = Adverse(MAKE.pod("p", [MAKE.container("main", 5, 4), MAKE.idle("plain")]))

    assert strangers([beside], {("p", "main")}, NAMES) == set()
    assert strangers([beside], {("p", "main"), ("p", "plain")}, NAMES) == {"p plain"}
    assert strangers([beside], {("q", "main")}, NAMES) == {"q main"}


@pytest.mark.parametrize("seed", range(20))
def test_all_pods_of_a_burst_that_fit_have_room_beside_all_others(seed: int) -> None:
    burst = adverse_burst(MAKE, NAMES, 64, seed=seed)
    taken = {NAMES.core: 0, NAMES.memory: 0}
    for each in burst:
        spec = each.manifest["spec"]
        for container in (*spec["containers"], *spec["initContainers"]):
            limits = container.get("resources", {}).get("limits", {})
            if int(limits.get(NAMES.memory, 0)) <= BLOCKS:
                for name in taken:
                    taken[name] += int(limits.get(name, 0))

    # Shares are of 5 or 10 cores and 4 or 8 blocks: what is left over on a card is less than that.
    assert taken[NAMES.core] <= CARDS * 95 - 200
    assert taken[NAMES.memory] <= CARDS * (BLOCKS - 8)
    assert {bool(each.refused) for each in burst} == {each.deleted for each in burst}

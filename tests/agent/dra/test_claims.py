"""Claims are read, and refused with the exact message."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.dra.claims import ClaimRef, allocations_by, check_pod, is_allocated, read_claim
from agent.errors import ClaimError
from contract.allocation import Allocation, Evidence
from contract.claims import make_claim
from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.devices import device_name
from contract.inventory import Amounts
from contract.wishes import NO_WISHES
from placement.pods import PodInfo
from tests.agent.builders import INIT, cases, container, device_table, pod_id, view
from tests.agent.dra.a_claim import DRIVER, NODE, claim_of, result
from tests.agent.fakes import NAMES

REF = ClaimRef("default", "p-gpus", "u-claim")
THREE_CARDS = {device_name(card): card for card in device_table(3).inventory.cards}
CARDS = {device_name(card): card for card in device_table(2).inventory.cards}
POD = {"metadata": {"name": "p", "uid": "u-p"}}


def claim(*results: Any, **metadata: str) -> dict[str, Any]:
    made = claim_of(POD, *results)
    made["metadata"] |= {"uid": "u-claim", **metadata}
    return made


def read(obj: dict[str, Any]) -> Any:
    return read_claim(obj, REF, driver=DRIVER, cards=CARDS, pool=NODE)


def test_the_shares_of_a_request_are_in_the_order_of_the_cards() -> None:
    foreign = {**result("c0", "nic-0", 1, 1), "driver": "nic.example"}
    elsewhere = {**result("c0", "gpu-0", 1, 1), "pool": "n2"}
    found = read(
        claim(result("c0", "gpu-1", 30, 4), foreign, elsewhere, result("c0", "gpu-0", 30, 4))
    )
    assert found.pod == pod_id("p")
    assert [each.card for each in found.by_request["c0"]] == ["GPU-0", "GPU-1"]
    assert found.by_card == {"GPU-0": Amounts(30, 4), "GPU-1": Amounts(30, 4)}


def reserved_for(*users: tuple[str, str, str]) -> dict[str, Any]:
    """An allocated claim for users, each by API group, resource and name."""
    made = claim(result("c0", "gpu-0", 30, 4))
    made["status"]["reservedFor"] = [
        {"apiGroup": group, "resource": resource, "name": name, "uid": f"u-{name}"}
        for group, resource, name in users
    ]
    return made


ONE_POD = "status.reservedFor: Invalid value: {}: must be one pod alone"
RESULT = "status.allocation.devices.results[0]."
CORES = (
    RESULT + "consumedCapacity[cores]: Invalid value: {}: must be a whole number, 1 or more; "
    "without any, the cluster's feature gate DRAConsumableCapacity is off"
)
LIMITS = "but the container's limits are 1 x 50 cores and 4 memory blocks"
HALF = {"cores": "500m", "memory": "1"}


@cases(
    "obj, message",
    {
        "not allocated": (
            {**claim(), "status": {}},
            (
                "status.allocation.devices.results: Required value: a device of driver "
                "gpu.tencent.com and pool n1"
            ),
        ),
        "for no pod": (reserved_for(), ONE_POD.format('""')),
        "for two pods": (
            reserved_for(("", "pods", "p"), ("", "pods", "q")),
            ONE_POD.format('"p, q"'),
        ),
        "of another group": (reserved_for(("x", "pods", "p")), ONE_POD.format('"p"')),
        "for a group of pods": (reserved_for(("", "podgroups", "g")), ONE_POD.format('"g"')),
        "two shares of one card": (
            claim(*[result("c0", "gpu-0", 30, 4)] * 2),
            "a request has two shares of one card: their limits cannot be set",
        ),
        "no such card": (
            claim(result("c0", "gpu-7", 30, 4)),
            f'{RESULT}device: Not found: "gpu-7": this node has no such card',
        ),
        "no share": (
            claim(result("c0", "gpu-0", 30, 4, consumedCapacity=None)),
            CORES.format("null"),
        ),
        "no cores": (claim(result("c0", "gpu-0", 0, 1)), CORES.format('"0"')),
        "half a core": (
            claim(result("c0", "gpu-0", 1, 1, consumedCapacity=HALF)),
            CORES.format('"500m"'),
        ),
        "more cores than quotas count": (
            claim(result("c0", "gpu-0", 60, 4)),
            f'request "c0": 60 cores and 4 memory blocks of gpu-0, {LIMITS}',
        ),
        "more memory": (
            claim(result("c0", "gpu-0", 50, 5)),
            f'request "c0": 50 cores and 5 memory blocks of gpu-0, {LIMITS}',
        ),
        "more cards": (
            claim(*(result("c0", f"gpu-{at}", 50, 4) for at in range(2))),
            (
                'request "c0": 50 cores and 4 memory blocks of gpu-0, '
                f"50 cores and 4 memory blocks of gpu-1, {LIMITS}"
            ),
        ),
        "a container without limits": (
            claim(result("other", "gpu-0", 50, 4)),
            (
                'request "other": must be the name of a container of pod default/p that has GPU '
                "limits"
            ),
        ),
    },
)
def test_a_claim_that_cannot_be_served_is_refused(obj: dict[str, Any], message: str) -> None:
    with pytest.raises(ClaimError) as caught:
        check_pod(read(obj), view("p", container("c0", 50, 4)))
    assert str(caught.value) == f"claim default/p-gpus: {message}"


def test_a_count_larger_than_any_memory_is_compared() -> None:
    with pytest.raises(ClaimError, match="are 10000000000000000 x 100 cores"):
        check_pod(read(claim(result("c0", "gpu-0", 100, 1))), view("p", container("c0", 10**18, 0)))


def test_whole_cards_may_have_any_memory() -> None:
    found = read(claim(result("c0", "gpu-0", 100, 1), result("c0", "gpu-1", 100, 7)))
    info = view("p", container("c0", 200, 0))
    assert check_pod(found, info) is info


@pytest.mark.parametrize("info", [view("p", terminal=True), view("p", uid="u-new")])
def test_an_ended_pod_and_another_pod_of_its_name_are_not_served(info: PodInfo) -> None:
    with pytest.raises(ClaimError, match="pod default/p is not running on this node"):
        check_pod(read(claim(result("c0", "gpu-0", 50, 4))), info)


def test_an_init_container_has_the_request_of_the_next_equal_container() -> None:
    info = view("p", container("init", 50, 4, kind=INIT), container("main", 50, 4))
    found = read(claim(result("main", "gpu-1", 50, 4)))
    each = Allocation(("GPU-1",), 50, 4, Evidence.CLAIM)
    assert allocations_by([found], info) == {"init": each, "main": each}


def test_claims_of_other_nodes_and_drivers_are_not_kept() -> None:
    assert is_allocated(claim(result("c0", "gpu-0", 1, 1)), DRIVER, NODE)
    assert not is_allocated(claim(result("c0", "gpu-0", 1, 1)), DRIVER, "n2")
    assert not is_allocated({"metadata": {}, "spec": {}}, DRIVER, NODE)


_SHARES = st.builds(
    lambda cores, blocks, cards: Demand(cores * cards, blocks * cards, cards),
    *(st.integers(1, 99), st.integers(1, 8), st.integers(1, 3)),
)
_WHOLE = st.builds(
    lambda cards, blocks: Demand(cards * 100, blocks), st.integers(1, 3), st.integers(0, 20)
)
_CONTAINERS = st.lists(
    st.tuples(st.sampled_from(list(ContainerKind)), st.one_of(_SHARES, _WHOLE)),
    min_size=1,
    max_size=4,
)


@given(_CONTAINERS, st.data())
def test_every_claim_that_a_scheduler_allocates_for_a_pods_limits_is_served(
    requested: list[tuple[ContainerKind, Demand]], data: st.DataObject
) -> None:
    ordered = sorted(requested, key=lambda each: each[0] is ContainerKind.MAIN)
    demand = PodDemand(
        tuple(
            ContainerDemand(f"c{at}", *(kind, at, each)) for at, (kind, each) in enumerate(ordered)
        )
    )
    results = []
    for request in make_claim(demand, NO_WISHES, NAMES).spec["spec"]["devices"]["requests"]:
        exactly = request["exactly"]
        amounts = {"cores": 1, "memory": 1} | {  # a request without a capacity gets its default
            name: int(text) for name, text in exactly["capacity"]["requests"].items()
        }
        devices = data.draw(st.permutations(["gpu-0", "gpu-1", "gpu-2"]))[: exactly["count"]]
        results += [result(request["name"], each, **amounts) for each in devices]
    found = read_claim(claim(*results), REF, driver=DRIVER, cards=THREE_CARDS, pool=NODE)
    info = replace(view("p"), demand=demand)
    assert check_pod(found, info) is info
    assert {
        name: (len(each.cards), each.cores, each.memory_blocks)
        for name, each in allocations_by([found], info).items()
    } == {
        each.name: (each.demand.cards, each.demand.cores, each.demand.memory)
        for each in demand.containers
    }

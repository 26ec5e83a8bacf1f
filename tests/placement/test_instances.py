"""MIG instances: a share may get one, any other container only if its author names it."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocator.placer import Placer
from agent.allocator.search_input import PlacementConstraints, PlacementRequest
from agent.allocator.slots import DeviceTable
from agent.errors import PlacementError
from agent.holdings.holding import ContainerRef
from contract.demand import ContainerDemand, Demand
from contract.inventory import Amounts, Card, Inventory, PublishedInventory, encode_inventory
from contract.resource import Resource
from contract.wishes import NO_WISHES, Wishes
from placement.cluster.fit import Fit, Unschedulable, check
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.nodes import Node, parse_node
from placement.cluster.plan import plan_pod
from placement.errors import NoPlacement
from placement.pods import PodInfo
from placement.scoring import Policy
from placement.topology import Links
from tests.agent.brute_force import can_be_placed
from tests.agent.builders import snapshot_of
from tests.examples import share
from tests.placement.cluster.builders import BLOCK, NAMES, a_pod, bare_node

A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
SMALL, HALF = f"{A100} MIG 1g.5gb", f"{A100} MIG 3g.20gb"
LITTLE = "NVIDIA A2"
"""A card with as much memory as an instance."""
PROFILE = {SMALL: 19, LITTLE: 19, HALF: 79, A100: 158, H100: 318}


def inventory(*models: str) -> Inventory:
    """Cards of these models, and after them instances: ``MIG-<position>``."""
    cards = []
    for position, model in enumerate(models):
        mig = " MIG " in model
        uuid = f"{'MIG' if mig else 'GPU'}-{position}"
        index = 1000 + position if mig else position
        cards.append(Card(uuid, index, model, PROFILE[model] * BLOCK))
    return Inventory(tuple(cards))


def node_of(found: Inventory) -> Node:
    """The node as extender and view read it."""
    free = tuple(card.size(BLOCK) for card in found.cards)
    text = encode_inventory(PublishedInventory(BLOCK, found.cards, (), free))
    return parse_node(bare_node("n1", text), NAMES)


def pod_of(*limits: tuple[int, ...], **wishes: str) -> PodInfo:
    """A pod; of each container cores, memory and, if it divides a share, the number of cards."""
    annotations = {f"{NAMES.domain}/{key.replace('_', '-')}": text for key, text in wishes.items()}
    for at, (_, _, *split) in enumerate(limits):
        annotations |= {NAMES.gpu_cards_of(f"c{at}"): str(each) for each in split}
    return a_pod("p", *[(cores, memory) for cores, memory, *_ in limits], annotations=annotations)


ONLY = "only MIG instances, which use-gpu-type or use-gpu-uuid must name for such a request"
FEWER = "fewer than 2 cards that are no MIG instances"


@pytest.mark.parametrize(
    ("pod", "models", "expected"),
    [
        (pod_of((50, 20)), [SMALL], "no card has 20 blocks"),
        (pod_of((100, 0)), [SMALL, HALF], ONLY),
        (pod_of((200, 0)), [A100, SMALL, SMALL], FEWER),
        (pod_of((100, 0), use_gpu_type="mig"), [HALF], ""),  # in any case
        (pod_of((100, 0), use_gpu_type="40GB-MIG-3g"), [HALF], ""),  # as in a node's label
        (pod_of((100, 0), use_gpu_type="2g.10gb"), [SMALL], "no card of type 2g.10gb"),
        (pod_of((100, 0), use_gpu_type="a100"), [SMALL], ONLY),
        (pod_of((100, 0), use_gpu_uuid="MIG-1"), [SMALL], "no card that use-gpu-uuid names"),
        (pod_of((100, 4, 2)), [SMALL, SMALL], ONLY),
        (pod_of((100, 4, 2)), [A100, SMALL], FEWER),
    ],
)
def test_a_pod_that_gets_no_instance_is_given_the_reason(
    pod: PodInfo, models: Sequence[str], expected: str
) -> None:
    """All cards are free; the reason is empty if it fits."""
    node = node_of(inventory(*models))
    found = check(pod.pod_class, NodeSnapshot(node, node.sizes))
    assert ("" if isinstance(found, Fit) else found.reason) == expected


def test_a_reason_does_not_deny_what_is_free_on_instances() -> None:
    """Beside a full card a view shows instances with 100 cores free."""
    node = node_of(inventory(A100, SMALL))
    instance = node.sizes[1]
    whole, share = pod_of((100, 0)), pod_of((50, 20))
    found = [
        check(each.pod_class, NodeSnapshot(node, (Amounts(0, 0), instance)))
        for each in (whole, share)
    ]
    assert [each.reason for each in found if isinstance(each, Unschedulable)] == [
        "no card has 100 cores free, not counting MIG instances",
        "no card has 50 cores and 20 blocks free",
    ]


def test_a_share_leaves_whole_cards_whole() -> None:
    """No pod gets an instance as a whole card, so an empty one is better than an empty card."""
    node = node_of(inventory(A100, SMALL))
    plan = plan_pod(pod_of((10, 1)), node, node.sizes, Policy.BINPACK)
    assert plan is not None
    assert plan["c0"].cards == (1,)
    assert check(pod_of((10, 1)).pod_class, NodeSnapshot(node, node.sizes)) == Fit(0)
    full = [Amounts(100, 158), Amounts(0, 0)]
    assert check(pod_of((10, 1)).pod_class, NodeSnapshot(node, full)) == Fit(1)


def test_an_init_container_does_not_bind_whole_cards_to_an_instance() -> None:
    """K7: the kubelet hands its devices to the container after it."""
    node = node_of(inventory(A100, SMALL))
    pod = a_pod("p", (100, 0), inits=[(10, 1)])
    plan = plan_pod(pod, node, node.sizes, Policy.BINPACK)
    assert plan is not None
    assert {name: part.cards for name, part in plan.items()} == {"i0": (0,), "c0": (0,)}


def test_the_refusal_names_the_rule() -> None:
    node = node_of(inventory(A100, SMALL))
    with pytest.raises(NoPlacement) as caught:
        plan_pod(pod_of((100, 0)), node, [Amounts(40, 9), Amounts(100, 19)], Policy.BINPACK)
    assert str(caught.value) == (
        "no card fits 100 cores: 0: 40 of 100 cores free; "
        "1001: MIG instance: only for shares of one card, unless use-gpu-type or use-gpu-uuid "
        "names it"
    )


# --- any node, any pod ----------------------------------------------------------------

_models = st.lists(st.sampled_from([A100, H100, LITTLE, SMALL, HALF]), min_size=1, max_size=5)
_limits = st.lists(
    st.sampled_from(
        [
            *((10, 1), (50, 15), (60, 40), (99, 5), (100, 0), (100, 60), (200, 0)),
            *((100, 4, 2), (20, 60, 2)),
        ]
    ),
    min_size=1,
    max_size=3,
)
_types = st.lists(st.sampled_from(["a100", "mig", "1g.5gb", "3g.20gb", "h100"]), max_size=2)
_uuids = st.lists(st.sampled_from([f"{kind}-{at}" for kind in ("MIG", "GPU") for at in range(5)]))


def _named(card: Card, wishes: Wishes) -> bool:
    """The rule in the words of the documents, without the code under test."""
    profile = card.model.lower().rpartition(" ")[2]
    by_type = any(each in {"mig", profile} for each in wishes.use_types)
    return by_type or card.uuid.lower() in wishes.use_uuids


def _may(card: Card, demand: Demand, wishes: Wishes) -> bool:
    if wishes.use_types and not any(each in card.model.lower() for each in wishes.use_types):
        return False
    if wishes.use_uuids and card.uuid.lower() not in wishes.use_uuids:
        return False
    shares = demand.cores < 100 and demand.cards == 1
    return shares or not card.uuid.startswith("MIG") or _named(card, wishes)


@settings(max_examples=share(200), deadline=None)
@given(_models, _limits, _types, _uuids, st.sampled_from(Policy))
def test_a_pod_fits_if_and_only_if_there_is_an_allowed_card_for_every_container(
    models: list[str],
    limits: list[tuple[int, ...]],
    types: list[str],
    uuids: list[str],
    policy: Policy,
) -> None:
    found = inventory(*sorted(models, key=lambda each: " MIG " in each))
    node = node_of(found)
    wishes: dict[str, str] = {"use_gpu_type": ",".join(types)} if types else {}
    pod = pod_of(*limits, **wishes, **({"use_gpu_uuid": ",".join(uuids)} if uuids else {}))
    cards = {card.uuid: card for card in found.cards}
    free = {
        uuid: dict(zip(Resource, card.size(BLOCK), strict=True)) for uuid, card in cards.items()
    }

    def may_have(container: ContainerDemand, chosen: Iterable[str]) -> bool:
        return all(_may(cards[each], container.demand, pod.wishes) for each in chosen)

    nothing = {uuid: dict.fromkeys(Resource, 0) for uuid in free}
    expected = can_be_placed(pod.demand.containers, free, nothing, may_have=may_have)
    assert isinstance(check(pod.pod_class, NodeSnapshot(node, node.sizes)), Fit) == expected
    try:
        plan = plan_pod(pod, node, node.sizes, policy)
    except NoPlacement:
        assert not expected
        return
    assert plan is not None
    assert expected
    for container in pod.demand.containers:
        assert may_have(container, (found.cards[at].uuid for at in plan[container.name].cards))


# --- the agent ------------------------------------------------------------------------


def _place(pod: PodInfo, table: DeviceTable, resource: Resource, wishes: Wishes) -> tuple[str, ...]:
    (container,) = pod.demand.containers
    request = PlacementRequest(
        ContainerRef(pod.id, container.name),
        container,
        pod.demand,
        resource,
        Policy.BINPACK,
        frozenset(table.slots(resource)),
        constraints=PlacementConstraints(wishes=wishes),
    )
    placer = Placer(table=table, links=Links(table.inventory), withheld=lambda _uuid: "")
    return placer.place(request, snapshot_of()).cards


@pytest.mark.parametrize("resource", Resource)
def test_the_agent_follows_the_same_rule(resource: Resource) -> None:
    table = DeviceTable(inventory(SMALL, HALF), BLOCK)
    whole: Any = pod_of((100, 4))
    with pytest.raises(PlacementError, match="2 cards: MIG instance: only for shares of one card"):
        _place(whole, table, resource, NO_WISHES)
    assert _place(whole, table, resource, Wishes(use_types=("3g.20gb",))) == ("MIG-1",)
    assert _place(pod_of((50, 4)), table, resource, NO_WISHES) == ("MIG-0",)

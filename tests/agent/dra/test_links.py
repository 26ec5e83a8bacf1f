"""The wish ``gpu-link`` means one thing: for plugin and extender, for a claim, and for explain.

What is compared are constraints: the device plugin's own condition on a set of cards, and that of
the claim's template on the devices that the agent publishes.
"""

from collections.abc import Sequence
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from contract.claims import make_claim
from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.inventory import Card, Inventory, Link
from contract.names import Names
from contract.wishes import LINKS, Wishes
from placement.topology import Links
from tests.agent.builders import BLOCK
from tests.placement.kube_scheduler import admits, published

NAMES = Names()


def admitted(inventory: Inventory, cards: Sequence[int], link: str) -> bool:
    demand = Demand(100 * len(cards), 0)
    main = ContainerDemand("main", ContainerKind.MAIN, 0, demand)
    claim = make_claim(PodDemand((main,)), Wishes(link=link), NAMES)
    devices = published(inventory)
    constraints = claim.spec["spec"]["devices"].get("constraints", [])
    return all(
        admits(each["matchAttribute"], [devices[at] for at in cards]) for each in constraints
    )


def node(
    count: int, kinds: Sequence[str], numa: Sequence[int | None] = (), first: int = 0
) -> Inventory:
    """A node whose cards have indices from *first* on; a kind such as ``PHB NV2`` is two links."""
    indices = range(first, first + count)
    pairs = zip(combinations(indices, 2), kinds, strict=True)
    return Inventory(
        tuple(
            Card(f"GPU-{index}", index, "Test", 100 * BLOCK, numa[at] if numa else None)
            for at, index in enumerate(indices)
        ),
        tuple(Link(pair, kind) for pair, ways in pairs for kind in ways.split()),
    )


nodes = st.builds(
    lambda count, kinds, numa, first: node(
        count, kinds[: count * (count - 1) // 2], numa[:count], first
    ),
    st.integers(2, 7),
    st.lists(st.sampled_from(["", "SYS", "PHB NV1", "NV2", "NV4"]), min_size=21, max_size=21),
    st.lists(st.sampled_from([0, 1, None]), min_size=7, max_size=7),
    st.integers(0, 3),
)


def subsets(inventory: Inventory) -> list[tuple[int, ...]]:
    positions = range(len(inventory.cards))
    return [each for size in positions for each in combinations(positions, size + 1)]


@given(nodes, st.sampled_from(LINKS))
def test_a_claim_gets_only_cards_that_fulfil_the_wish_and_explain_knows_these_sets(
    inventory: Inventory, link: str
) -> None:
    plugin, by_claim = Links(inventory), Links(inventory, by_claim=True)
    for each in subsets(inventory):
        may_get = admitted(inventory, each, link)
        # A constraint, which needs its attribute, would leave a card without NVLinks unused.
        assert may_get or len(each) > 1
        assert plugin.fulfils(each, link) or not may_get, each
        assert by_claim.fulfils(each, link) == may_get, each
        assert by_claim.ungrouped.fulfils(each, link) == plugin.fulfils(each, link), each


@given(nodes, st.sampled_from(LINKS))
def test_a_claim_gets_the_plugins_sets_if_nvlinks_connect_each_pair_or_none(
    inventory: Inventory, link: str
) -> None:
    """As on machines with NVSwitch, with bridges between pairs, and always for NUMA nodes."""
    plugin, positions = Links(inventory), range(len(inventory.cards))
    meshed = all(
        plugin.is_linked(*pair, "nvlink")
        for part in plugin.connected(positions, "nvlink")
        for pair in combinations(part, 2)
    )
    if link == "numa" or meshed:
        for each in subsets(inventory):
            assert admitted(inventory, each, link) == plugin.fulfils(each, link), each

"""Holdings of whole cards and shares, by either door."""

from agent.holdings.holding import ContainerRef, Holding, NodeHoldings, are_whole, make_key
from contract.inventory import Amounts
from tests.agent.builders import BLOCK, device_table, pod_id

CARDS = device_table(2, blocks=10).inventory.cards


def held(name: str, cards: dict[str, Amounts]) -> Holding:
    return Holding(ContainerRef(pod_id(name), "c0"), make_key(name), cards, are_whole(cards))


def test_a_whole_card_has_all_of_its_memory_and_no_limit_and_a_share_its_own() -> None:
    whole, share = held("a", {"GPU-0": Amounts(100, 3)}), held("b", {"GPU-1": Amounts(30, 3)})
    found = NodeHoldings.of([share, whole], CARDS, BLOCK)
    assert [each.ref.pod.name for each in found.holders] == ["a", "b"]
    assert found.free == {"GPU-0": Amounts(0, 0), "GPU-1": Amounts(70, 7)}
    assert found.shares(whole)["GPU-0"].memory == 10 * BLOCK
    assert found.shares(share)["GPU-1"].memory == 3 * BLOCK
    assert (whole.memory_limits, share.memory_limits) == ({}, {"GPU-1": 3})

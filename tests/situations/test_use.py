"""What is told of held and used cards is what the kubelet recorded, after a burst and deaths."""

from collections import Counter

from agent.cards.card_use import CardUse
from agent.usage.holdings import Holdings, count_holdings
from agent.usage.join import Owner, join
from simulator.node.node import BLOCK, Node
from tests.situations.build import NAMES, a_node, a_pod, gpu, uid_of, wait_for

_Held = Counter[tuple[str, str, str, str]]


def _told(node: Node) -> _Held:
    """Cores and blocks by pod, container and card, as the gauges have them."""
    found: _Held = Counter()
    for holder in _holdings(node).holders:
        for card, share in holder.shares.items():
            whose = (holder.ref.pod.uid, holder.ref.container, card)
            found[*whose, NAMES.core] += share.cores
            found[*whose, NAMES.memory] += share.memory // BLOCK
    return found


def _recorded(node: Node) -> _Held:
    """The same, by the kubelet's own record."""
    return Counter(
        (each.pod_uid, each.container, device_id.partition("::")[0], each.resource)
        for each in node.kubelet.record()
        for device_id in each.ids
    )


def _holdings(node: Node) -> Holdings:
    assert node.agent is not None
    node.sweep()  # what has ended leaves the API
    node.agent.allocator.refresh()
    return count_holdings(node.agent.allocator.record(), node.agent.allocator.table)


def test_what_is_told_is_the_kubelets_record_and_nothing_is_left_of_pods_that_end() -> None:
    pods = [a_pod(f"p-{number}", gpu("c0", 15), gpu("c1", 5), at=number) for number in range(9)]
    pods.append(a_pod("whole", gpu("c0", 100, 64), at=9))
    with a_node(seed=5, cards=4, memory="16Gi") as node:
        node.bind(*pods)
        node.settle()
        assert len(_told(node)) == 2 * (2 * 9 + 1)
        assert _told(node) == _recorded(node)
        # Every container computes on its cards, in a process of its own, but for one that is idle.
        holders = _holdings(node).holders
        idle, *busy = holders
        pids = {each.ref: pid for pid, each in enumerate(busy, 1)}
        cards = {
            card: CardUse(
                process_cores={pids[each.ref]: 3 for each in busy if card in each.shares},
                process_memory={pids[each.ref]: 5 for each in busy if card in each.shares},
            )
            for card in _holdings(node).cards
        }
        owners = {pids[each.ref]: Owner(each.runtime_uid, each.ref.container) for each in busy}
        for ref, used in join(cards, owners, holders).items():
            expected = {(0, 0)} if ref == idle.ref else {(3, 5)}
            assert {(each.cores, each.memory) for each in used.values()} == expected
        for each in pods[::2]:
            node.delete(uid_of(each))
        gone = {uid_of(each) for each in pods[::2]}
        wait_for(lambda: not gone & {uid for uid, *_ in _told(node)})
        assert _told(node) == _recorded(node)

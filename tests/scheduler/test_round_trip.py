"""From bind to the container: the agent gives the cards that the extender chose.

The extender binds; what it wrote is read by the agent's own reader and placed by the agent's own
allocator, with a kubelet's bookkeeping; what the agent records is read by the extender again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contract.resource import Resource
from placement.pods import read_pod
from placement.scoring import Policy
from scheduler.binding import Binder
from scheduler.errors import BindError
from scheduler.protocol import BindingArgs
from scheduler.state import State
from tests.examples import share
from tests.in_memory.node import Node
from tests.in_memory.pods import ReadPod
from tests.placement.cluster.builders import NAMES, make_node, make_pod
from tests.scheduler.states import free_amounts
from tests.scheduler.test_binding import FakeApi

CARDS, BLOCKS = 3, 16


class Cluster:
    def __init__(self, policy: Policy) -> None:
        # Strict: a choice that does not fit is refused, not replaced.
        self.node = Node(CARDS, blocks=BLOCKS, policy=policy, strict=True)
        self.uuids = [card.uuid for card in self.node.table.inventory.cards]
        self.state = State(NAMES, policy)
        obj = make_node("n1", CARDS, blocks=BLOCKS)
        text = obj["metadata"]["annotations"][NAMES.gpu_cards]
        for index, uuid in enumerate(self.uuids):
            text = text.replace(f"GPU-n1-{index}", uuid)
        obj["metadata"]["annotations"][NAMES.gpu_cards] = text
        self.state.put_node(obj)
        self.api = FakeApi()
        self.binder = Binder(self.state, self.api)

    def bind(self, name: str, pod: "Limits") -> bool:
        """Have the extender bind a pod; return whether it did."""
        obj = self.api.pods[name] = make_pod(
            name, *pod.mains, inits=pod.inits, sidecars=pod.sidecars, split=pod.split
        )
        self.state.put_pod(obj)
        try:
            asyncio.run(self.binder.bind(BindingArgs(name, "default", f"u-{name}", "n1")))
        except BindError:
            self.state.drop_pod(f"u-{name}")
            return False
        return True

    def admit(self, name: str) -> None:
        """Have the kubelet admit a bound pod; each container gets what the extender chose."""
        obj = self.api.pods[name]
        view = read_pod(obj, NAMES)
        pod = self.node.admit(ReadPod(obj))
        got = {each.name: self.node.cards(pod, each.name) for each in view.demand.containers}
        assert {each: sorted(map(self.uuids.index, cards)) for each, cards in got.items()} == {
            each: sorted(cards) for each, cards in view.chosen.items()
        }
        self.state.put_pod(obj)
        assert self.node.written(pod)

    def show(self) -> None:
        for obj in self.api.pods.values():
            self.state.put_pod(obj)

    def agrees(self) -> bool:
        """Return whether the extender and the kubelet count the same slots as free."""
        free = [
            tuple(
                sum(each.startswith(f"{uuid}::") for each in self.node.kubelet.free(resource))
                for resource in Resource
            )
            for uuid in self.uuids
        ]
        return free_amounts(self.state) == free


class Limits(NamedTuple):
    mains: Sequence[tuple[int, int]]
    inits: Sequence[tuple[int, int]] = ()
    sidecars: Sequence[tuple[int, int]] = ()
    split: Mapping[str, int] = {}


_limit = st.sampled_from([(10, 1), (30, 4), (60, 4), (100, 9), (200, 8), (50, 16)])
# Of what an init container has on two cards, the kubelet hands on what it likes (K7).
_on_one_card = _limit.filter(lambda limit: limit[0] <= 100)
_pods = st.builds(
    Limits,
    st.lists(_limit, min_size=1, max_size=2),
    st.lists(_on_one_card, max_size=1),
    st.lists(_limit, max_size=1),
    st.just({}),
)


def _divided(pod: Limits, cards: int, *, first: bool, init: bool) -> Limits:
    """Divide a container's share, and that of an init container before it, over several cards."""
    (cores, blocks), *others = pod.mains
    if cores >= 100:
        return pod
    total, name = (cores * cards, min(blocks, 8) * cards), "c0" if first else f"c{len(others)}"
    mains = [total, *others] if first else [*others, total]
    if init and first:
        return Limits(mains, [(10 * cards, cards)], split={name: cards, "i0": cards})
    return pod._replace(mains=mains, split={name: cards})


_divided_pods = st.builds(
    _divided, _pods, st.integers(2, CARDS), first=st.booleans(), init=st.booleans()
)
_SIDECAR_BEFORE = [Limits([(60, 4)]), Limits([(30, 4)], sidecars=[(30, 4)]), Limits([(60, 4)])]


@pytest.mark.parametrize("policy", Policy)
@settings(deadline=None, max_examples=share(50))
@example(_SIDECAR_BEFORE, [1, 2, 0])
@example([Limits([(200, 8)], inits=[(100, 9)])], [0])
@given(st.lists(_pods | _divided_pods, min_size=1, max_size=6), st.permutations(range(6)))
def test_the_cards_that_were_chosen_are_the_cards_that_containers_get(
    policy: Policy, pods: list[Limits], order: list[int]
) -> None:
    """A whole burst is bound before the first of it is admitted, in whatever order."""
    cluster = Cluster(policy)
    bound = {number for number, pod in enumerate(pods) if cluster.bind(f"p{number}", pod)}
    for number in order:
        if number in bound:
            cluster.admit(f"p{number}")
    cluster.show()
    assert cluster.agrees()

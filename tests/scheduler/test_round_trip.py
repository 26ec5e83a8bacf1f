"""From bind to the container: the agent gives the cards that the extender chose.

The extender binds; what it wrote is read by the agent's own reader and placed by the agent's own
allocator, with a kubelet's bookkeeping; what the agent records is read by the extender again.
"""

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.kubernetes_api.annotation_writer import allocation_patch
from agent.kubernetes_api.pod_parser import parse_pod
from placement.scoring import Policy
from scheduler.binding import Binder
from scheduler.errors import BindError
from scheduler.protocol import BindingArgs
from scheduler.state import State
from tests.agent.fakes import Node
from tests.examples import share
from tests.placement.cluster.builders import NAMES, make_node, make_pod
from tests.scheduler.test_binding import FakeApi

CARDS, BLOCKS = 3, 16


class Cluster:
    """One node: the extender before it, the agent on it."""

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
        self.binder = Binder(self.state, self.api, names=NAMES, policy=policy)

    def run(self, name: str, *limits: tuple[int, int], **early: list[tuple[int, int]]) -> bool:
        """Bind a pod and admit it; tell whether it was bound."""
        obj = self.api.pods[name] = make_pod(name, *limits, inits=early.get("inits", ()))
        self.state.put_pod(obj)
        try:
            asyncio.run(self.binder.bind(BindingArgs(name, "default", f"u-{name}", "n1")))
        except BindError:
            self.state.drop_pod(f"u-{name}")
            return False
        view = parse_pod(obj, NAMES)
        self.node.bind(view)
        self.node.admit(view)
        for container in view.demand.containers:
            if container.index in view.chosen and container.kind.value == "container":
                wanted = [self.uuids[each] for each in view.chosen[container.index]]
                assert sorted(self.node.cards(view, container.name)) == sorted(wanted)
        self.state.put_pod(obj)
        assert self.agrees()
        self.node.allocator.catch_up(view)
        allocations = self.node.writer.of(view)
        indices = {uuid: index for index, uuid in enumerate(self.uuids)}
        patch = allocation_patch(view, allocations, names=NAMES, indices=indices)
        obj["metadata"]["annotations"] |= patch["metadata"]["annotations"]
        self.state.put_pod(obj)
        assert self.agrees()
        return True

    def agrees(self) -> bool:
        """Tell whether the extender and the kubelet count the same places as free."""
        room = self.state.room("n1")
        assert room is not None
        free = [
            tuple(
                sum(each.startswith(f"{uuid}::") for each in self.node.free[resource])
                for resource in self.node.free
            )
            for uuid in self.uuids
        ]
        return list(room.view().free) == free


_limit = st.sampled_from([(10, 1), (30, 4), (60, 4), (100, 9), (200, 8), (50, 16)])


@settings(deadline=None, max_examples=share(50))
@given(
    st.lists(st.lists(_limit, min_size=1, max_size=2), min_size=1, max_size=6),
    st.sampled_from(Policy),
)
def test_the_cards_that_were_chosen_are_the_cards_that_containers_get(
    pods: list[list[tuple[int, int]]], policy: Policy
) -> None:
    cluster = Cluster(policy)
    for number, limits in enumerate(pods):
        cluster.run(f"p{number}", *limits)


@settings(deadline=None, max_examples=share(60))
@example([((200, 8), [(100, 9)])])
@given(st.lists(st.tuples(_limit, st.lists(_limit, max_size=1)), min_size=1, max_size=4))
def test_init_containers_are_counted_as_the_kubelet_counts_them(
    pods: list[tuple[tuple[int, int], list[tuple[int, int]]]],
) -> None:
    cluster = Cluster(Policy.BINPACK)
    for number, (limit, inits) in enumerate(pods):
        cluster.run(f"p{number}", limit, inits=inits)

"""Any pods, admitted one after the other, and agents that die between any two calls.

After every step: no place is given to two, what was named with better evidence than ``order`` is
right, and what starts is proven for whom it is.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.errors import Refusal
from agent.holdings.holding import ContainerRef
from contract.allocation import Evidence
from contract.resource import Resource
from simulator.kubelet.devices import PreferStep
from tests.agent.builders import INIT, MAIN, SIDECAR
from tests.examples import share
from tests.in_memory.node import CORE_FIRST, MEMORY_FIRST, Node
from tests.in_memory.pods import Container, Pod, gpu, make_pod

_names = st.sampled_from(["a", "b", "c"])
_demands = st.sampled_from(
    [(10, 2, 1), (10, 2, 1), (20, 4, 1), (60, 10, 1), (100, 0, 1), (20, 4, 2), (100, 4, 2)]
)
_before = st.lists(st.tuples(st.sampled_from([INIT, SIDECAR]), _demands), max_size=2)
_mains = st.lists(st.tuples(st.just(MAIN), _demands), min_size=1, max_size=2)
_orders = st.sampled_from([CORE_FIRST, MEMORY_FIRST])


class JudgedNode(Node):
    """A node whose agent may die at a call, and that compares what it decides with the truth."""

    def __init__(self) -> None:
        self.dies = ""
        super().__init__(3)

    def prefer(self, pod: Pod, container: Container, call: PreferStep) -> Sequence[str]:
        """Call ``GetPreferredAllocation``; after a kill, of the next agent, which may know less."""
        if self.dies == "answering":
            super().prefer(pod, container, call)
            self.restart_agent()
        chosen = super().prefer(pod, container, call)
        self.judge(pod, container)
        assert {*call.must_include} <= {*chosen} <= {*call.available}
        assert len(set(chosen)) == call.size
        return chosen

    def give(self, pod: Pod, container: Container, resource: Resource, ids: Sequence[str]) -> None:
        """Report what is given."""
        if self.dies == "answering":
            super().give(pod, container, resource, ids)
            self.restart_agent()
        super().give(pod, container, resource, ids)
        self.judge(pod, container)

    def judge(self, pod: Pod, container: Container) -> None:
        """Compare what the agent has decided since with whom it was for."""
        truth = ContainerRef(pod.id, container.name)
        for each in self.decision_log.take():
            if each.ref is None or not each.evidence:
                continue
            right = each.ref.pod.key == pod.key and each.ref.container == truth.container
            right = right and each.ref.pod.uid in {"", pod.uid}
            assert right or each.evidence is Evidence.ORDER, f"{each} was {truth}"


class Admissions(RuleBasedStateMachine):
    """A kubelet that admits pods, and what goes on beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.node = JudgedNode()
        self.served: list[Pod] = []

    @invariant()
    def no_place_is_given_to_two(self) -> None:
        """But for those of init containers, which their own pod hands on (K7)."""
        for resource in Resource:
            owners = Counter(
                device_id
                for containers in self.node.kubelet.holdings.values()
                for device_id in {
                    each for held in containers.values() for each in held.get(resource, ())
                }
            )
            assert not owners or max(owners.values()) == 1

    def teardown(self) -> None:
        """Have everything told, and compare the record with what the kubelet has given."""
        while self.node.kubelet.admitting is not None:
            self.call(dies="never", late=False)
        self.watch_catches_up()
        self.node.list_error = ""
        self.node.kubelet.state.write()
        for _ in range(3):
            self.node.allocator.refresh()
        for resource in Resource:
            with self.node.allocator.state as state:
                assert state.snapshot.held[resource] == self.node.kubelet.held(resource)
        for pod in self.served:
            for container in pod.containers:
                self._start(pod, container)

    # --- what happens -------------------------------------------------------------------

    @precondition(lambda self: self.node.kubelet.admitting is None)
    @rule(name=_names, before=_before, mains=_mains, order=_orders, seen=st.booleans())
    def come_to_a_pod(
        self,
        name: str,
        before: list[Any],
        mains: list[Any],
        order: tuple[Resource, ...],
        seen: bool,
    ) -> None:
        """The kubelet starts to admit a pod, which the watch has shown or not yet."""
        if self.node.api.named("default", name):
            return
        containers = [
            gpu(counts[0], counts[1], f"c{index}", kind, split=counts[2])
            for index, (kind, counts) in enumerate(before + mains)
        ]
        pod = make_pod(name, *containers)
        self.node.bind(pod, seen=seen)
        self.node.begin(pod, order)

    @precondition(lambda self: self.node.kubelet.admitting is not None)
    @rule(dies=st.sampled_from(["never", "before", "answering"]), late=st.booleans())
    def call(self, dies: str, late: bool) -> None:
        """The kubelet makes its next call; the agent is killed before it, or before its response.

        Then the proxy calls the next agent. *late*: the next write of the checkpoint is
        overtaken (K33).
        """
        node, pod = self.node, self.node.kubelet.admitting
        assert pod is not None
        if dies == "before":
            node.restart_agent()
        if late and not node.kubelet.state.overtaken:
            node.kubelet.overtake()
        node.dies = dies
        try:
            node.call()
        except Refusal:
            node.delete(pod)
        else:
            if node.kubelet.admitting is None and pod.uid in node.kubelet.holdings:
                self.served.append(pod)

    @rule()
    def agent_dies(self) -> None:
        self.node.restart_agent()

    @rule()
    def agent_looks(self) -> None:
        self.node.allocator.refresh()

    @rule()
    def kubelet_gets_a_device_list(self) -> None:
        """K30."""
        self.node.kubelet.state.write()

    @rule()
    def watch_catches_up(self) -> None:
        self.node.watch.deliver()

    @rule(away=st.booleans())
    def list_comes_and_goes(self, away: bool) -> None:
        self.node.list_error = "rate limited" if away else ""

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def a_pod_ends(self, data: Any) -> None:
        pod = data.draw(st.sampled_from(self.served))
        self.served.remove(pod)
        self.node.delete(pod)

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def a_container_starts(self, data: Any) -> None:
        pod = data.draw(st.sampled_from(self.served))
        self._start(pod, data.draw(st.sampled_from(pod.containers)))

    def _start(self, pod: Pod, container: Container) -> None:
        """Start one of the containers that share reused slots; the agent cannot know which (K7)."""
        self.node.decision_log.take()
        self.node.start(pod, container.name)
        for each in self.node.decision_log.take():
            if each.ref is None or not each.evidence:
                continue
            same = {
                name
                for name, held in self.node.kubelet.holdings[pod.uid].items()
                if each.resource in held and held[each.resource] == each.ids
            }
            assert (each.ref.pod.name, each.evidence) == (pod.name, Evidence.RECORD)
            assert each.ref.container in same


TestAdmissions = Admissions.TestCase
TestAdmissions.settings = settings(deadline=None, max_examples=share(60), stateful_step_count=30)

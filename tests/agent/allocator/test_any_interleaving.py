"""Any pods, admitted one after the other, and agents that die between any two calls.

After every step: no place is given to two, what was named with better evidence than ``order`` is
right, and what starts is proven for whom it is.
"""

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.allocator.interfaces import ContainerRef
from agent.errors import Refusal
from contract.allocation import Evidence
from contract.demand import ContainerDemand
from contract.resource import Resource, count_of
from placement.pods import PodInfo
from tests.agent.builders import INIT, MAIN, SIDECAR
from tests.agent.fakes import Node, asks, make_pod
from tests.examples import share

KINDS = INIT, SIDECAR, MAIN

_names = st.sampled_from(["a", "b", "c"])
_demands = st.sampled_from([(10, 2), (10, 2), (20, 4), (60, 10), (100, 0)])
_before = st.lists(st.tuples(st.sampled_from([INIT, SIDECAR]), _demands), max_size=2)
_mains = st.lists(st.tuples(st.just(MAIN), _demands), min_size=1, max_size=2)


class Admissions(RuleBasedStateMachine):
    """A kubelet that admits pods, and what goes on beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node(3)
        self.admitting: PodInfo | None = None
        self.left: list[tuple[ContainerDemand, Resource]] = []
        self.chosen: list[str] | None = None  # by a preferred call that was answered
        self.served: list[PodInfo] = []
        self.judged = 0

    # --- what is checked ----------------------------------------------------------------

    def _judge(self, truth: ContainerRef) -> None:
        """Compare what the agent has decided since with whom it was for."""
        log = self.node.decision_log.decisions
        for call, ref, _, evidence, _ in log[self.judged :]:
            right = (ref.pod.name, ref.container) == (truth.pod.name, truth.container)
            right = right and ref.pod.uid in {"", truth.pod.uid}
            assert right or evidence is Evidence.ORDER, f"{call}: {ref} was {truth}, {evidence}"
        self.judged = len(log)

    def _die(self) -> None:
        self.node.restart_agent()
        self.judged = 0

    @invariant()
    def no_place_is_given_to_two(self) -> None:
        """But for those of init containers, which their own pod hands on (K7)."""
        for resource in Resource:
            owners = Counter(
                device_id
                for device_id, _ in {
                    (device_id, pod)
                    for (pod, _, kind), held in self.node.got.items()
                    if kind is resource
                    for device_id in held
                }
            )
            assert not owners or max(owners.values()) == 1

    def teardown(self) -> None:
        """Have everything told, and compare the record with what the kubelet has given."""
        while self.admitting is not None:
            self.call(dies="never", late=False)
        self.watch_catches_up()
        self.node.record.away = ""
        self.node.checkpoint.write()
        for _ in range(3):
            self.node.allocator.refresh()
        for resource in Resource:
            given = {
                each for key, held in self.node.got.items() if key[2] is resource for each in held
            }
            with self.node.allocator.state as state:
                assert state.snapshot.held[resource] == given
        for view in self.served:
            for container in view.demand.containers:
                self._start(view, container)

    # --- what happens -------------------------------------------------------------------

    @precondition(lambda self: self.admitting is None)
    @rule(name=_names, before=_before, mains=_mains, data=st.data(), told=st.booleans())
    def come_to_a_pod(
        self, name: str, before: list[Any], mains: list[Any], data: Any, told: bool
    ) -> None:
        """The kubelet comes to a pod that the watch has told of, or not yet."""
        if any(view.id.name == name for view in self.served):
            return
        containers = [
            asks(counts[0], counts[1], f"c{index}", kind)
            for index, (kind, counts) in enumerate(before + mains)
        ]
        mine = {kind: {each.name for each in containers if each.kind is kind} for kind in KINDS}
        view = make_pod(
            name,
            *containers,
            mains=frozenset(mine[MAIN]),
            sidecars=frozenset(mine[SIDECAR]),
        )
        self.node.pods.on_server[view.id.key] = view
        if told:
            self.node.bind(view)
        self.node.record.show(view)
        self.admitting = view
        self.left = [
            (container, resource)
            for container in view.demand.containers
            for resource in data.draw(st.permutations(list(Resource)))
            if count_of(container.demand, resource)
        ]

    @precondition(lambda self: self.admitting is not None)
    @rule(dies=st.sampled_from(["never", "before", "answering"]), late=st.booleans())
    def call(self, dies: str, late: bool) -> None:
        """The kubelet makes its next call; the agent dies before it, or before its answer leaves.

        Then the proxy asks the next agent again.
        """
        view, (container, resource) = self.admitting, self.left[0]
        assert view is not None
        node, truth = self.node, ContainerRef(view.id, container.name)
        if dies == "before":
            self._die()
        try:
            if self.chosen is None:
                chosen, settled = node.choose(view, container, resource)
                if not settled:
                    size, must = count_of(container.demand, resource), chosen
                    chosen = node.prefer(resource, size, must)
                    self._judge(truth)
                    if dies == "answering":
                        self._die()
                        # Perhaps another choice: the agent before knew more of who has ended.
                        chosen = node.prefer(resource, size, must)
                        self._judge(truth)
                    assert len(set(chosen)) == size
                    assert {*must} <= {*chosen} <= {*must, *node.free[resource]}
                self.chosen = chosen
                return
            node.allocator.allocate(resource, self.chosen)
            self._judge(truth)
            if dies == "answering":
                self._die()
                node.allocator.allocate(resource, self.chosen)
                self._judge(truth)
        except Refusal:
            self._rejected(view)
            return
        node.checkpoint.late = late
        node.took(view, container, resource, self.chosen)
        node.checkpoint.late = False
        self.chosen = None
        del self.left[0]
        if not self.left:
            self.served.append(view)
            self.admitting = None

    def _rejected(self, view: PodInfo) -> None:
        self.node.refuse(view)
        self.node.pods.remove(view)
        self.admitting, self.left, self.chosen = None, [], None

    @rule()
    def agent_dies(self) -> None:
        self._die()

    @rule()
    def agent_looks(self) -> None:
        self.node.allocator.refresh()

    @rule()
    def kubelet_gets_a_device_list(self) -> None:
        """K30."""
        self.node.checkpoint.write()

    @rule()
    def watch_catches_up(self) -> None:
        for view in self.node.pods.on_server.values():
            self.node.pods.add(view)

    @rule(away=st.booleans())
    def list_comes_and_goes(self, away: bool) -> None:
        self.node.record.away = "rate limited" if away else ""

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def a_pod_ends(self, data: Any) -> None:
        view = data.draw(st.sampled_from(self.served))
        self.served.remove(view)
        self.node.forget(view)

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def a_container_starts(self, data: Any) -> None:
        view = data.draw(st.sampled_from(self.served))
        self._start(view, data.draw(st.sampled_from(view.demand.containers)))

    def _start(self, view: PodInfo, container: ContainerDemand) -> None:
        """Start a container; which of those that handed the same places on nobody can tell (K7)."""
        before = len(self.node.decision_log.decisions)
        self.node.start(view, container.name)
        for _, ref, resource, evidence, ids in self.node.decision_log.decisions[before:]:
            same = {
                name
                for (pod, name, kind), held in self.node.got.items()
                if pod == view.id and kind is resource and set(held) == ids
            }
            assert (ref.pod.name, evidence) == (view.id.name, Evidence.RECORD)
            assert ref.container in same
        self.judged = len(self.node.decision_log.decisions)


TestAdmissions = Admissions.TestCase
TestAdmissions.settings = settings(deadline=None, max_examples=share(60), stateful_step_count=30)

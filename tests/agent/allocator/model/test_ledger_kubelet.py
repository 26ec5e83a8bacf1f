"""The agent's ledger against the kubelet's device manager, over any history.

The kubelet is the simulator's device manager (``simulator.kubelet.devices`` and ``admission``),
driven step by step and without sockets, so that thousands of steps take seconds: pods are
admitted, rejected midway, restarted over, ended; agent and kubelet die between any two steps; an
answer is lost; the record cannot be had; the kubelet forgets what it is giving out (K15).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.allocator.allocator import Allocator
from agent.allocator.model.answer import Answer
from agent.allocator.model.ledger import ContainerRef, Ledger
from agent.allocator.model.pod_view import PodView
from agent.allocator.model.podresources import ListedContainer, ListedPod, Snapshot
from agent.allocator.model.tickets import DeviceTable
from agent.errors import GrantError, PlacementError, Refusal, Unavailable
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerDemand, ContainerKind, Demand
from contract.resource import Resource
from simulator.kubelet.admission import NodeView, admit, in_order
from simulator.kubelet.answers import Answer as KubeletAnswer
from simulator.kubelet.devices import (
    AllocateCall,
    Devices,
    Options,
    PodHoldings,
    PreferCall,
    Reply,
    Step,
)
from simulator.kubelet.errors import AdmissionFailure, CallFailed
from simulator.kubelet.numa import Device
from simulator.kubelet.podresources import snapshot
from simulator.kubelet.pods import FAIL_AFTER, REJECT, REJECT_AFTER, Container, Pod
from tests.agent.brute_force import can_be_placed
from tests.agent.builders import CORE, INIT, MAIN, MEMORY, SIDECAR, patient, view
from tests.agent.fakes import NAMES, FakeDecisionLog, FakePods, make_table
from tests.agent.ledger_rules import check
from tests.examples import share

KINDS = {NAMES.core: CORE, NAMES.memory: MEMORY}
BLOCKS = 16
Places = frozenset[str]
Held = dict[tuple[str, str, Resource], Places]
"""(pod UID, container, resource) -> what it holds."""


class Twist(Enum):
    """What may happen just before a step of an admission, or to it."""

    AGENT_DIES = auto()
    KUBELET_DIES = auto()  # before it has made the call
    ANSWER_LOST = auto()  # the agent has answered, and the kubelet fails the pod
    CALL_LOST = auto()  # the agent never heard of it, and the kubelet fails the pod
    ANSWER_UNWRITTEN = auto()  # the agent has answered, and the kubelet dies
    ANOTHER_ENDS = auto()
    FORGOTTEN = auto()  # another ends, and somebody's List comes in that instant (K15)


Twists = Mapping[int, Twist]
"""Which step of an admission, and what happens there."""


class KubeletDied(Exception):
    """It has, in the middle of a step."""


@dataclass
class Api:
    """The API server behind the agent's watch: takes what the agent writes."""

    pods: FakePods

    def put(self, seen: PodView, allocations: dict[str, Allocation]) -> None:
        known = self.pods.cached.get(seen.id)
        if known is not None:
            self.pods.add(replace(known, annotated=allocations, assigned=True))


class Kubelet:
    """What a kubelet has given out, what it has written of that, and ``List``."""

    def __init__(self, table: DeviceTable, random: Random) -> None:
        self._table = table
        self._random = random
        self.ended: set[str] = set()
        self.saved: dict[str, PodHoldings] = {}
        self.running: set[tuple[str, str]] = set()
        self.blind = ""
        self._shown: dict[str, ListedPod] = {}
        self.boot()

    def boot(self) -> None:
        """Begin a life: what the checkpoint has is known, no pod is (K11)."""
        self.pods: dict[str, Pod] = {}
        self.devices = Devices(random=self._random)
        self.devices.restore(self.saved, KINDS, 0.0)
        self.devices.running_before = frozenset(self.running)
        for resource, kind in KINDS.items():
            self.devices.connected(resource, Options(pre_start=True, preferred=True))
            self.devices.advertised(resource, [Device(each) for each in self._table.tickets(kind)])

    def active(self) -> Collection[str]:
        return [uid for uid in self.pods if uid not in self.ended]

    def save(self) -> None:
        """Write the checkpoint."""
        self.saved = {uid: snapshot(self.devices.pods, uid) for uid in self.devices.pods}

    def view_for(self, pod: Pod) -> NodeView:
        """What the predicates know of the node."""
        others = tuple(self.pods[uid] for uid in self.active() if uid != pod.uid)
        return NodeView(self.devices.counts(0.0, 1.0)[1], {}, others)

    def list(self, *, within: float) -> Snapshot:
        """Be a :class:`agent.allocator.model.ports.RecordSource` (K3, K4, K8)."""
        if self.blind:
            raise Unavailable(self.blind)
        self.devices.update_allocated(self.active())
        return Snapshot(tuple(self._entry(self.pods[uid]) for uid in self.active()))

    def _entry(self, pod: Pod) -> ListedPod:
        holdings = self.devices.pods.get(pod.uid, {})
        entry = ListedPod(
            pod.namespace,
            pod.name,
            tuple(
                ListedContainer(
                    each.name,
                    {
                        KINDS[resource]: frozenset(holding.ids)
                        for resource, holding in holdings.get(each.name, {}).items()
                    },
                )
                for each in pod.containers
                if each.kind is not INIT
            ),
        )
        # As the real client does: an entry that has not changed is the same object again.
        if self._shown.get(pod.uid) != entry:
            self._shown[pod.uid] = entry
        return self._shown[pod.uid]

    def held(self, *, init: bool) -> Held:
        """What the containers of live pods hold, ordinary init containers or all others."""
        return {
            (uid, name, KINDS[resource]): frozenset(holding.ids)
            for uid in self.active()
            for name, resources in self.devices.pods.get(uid, {}).items()
            if (self.pods[uid].container(name).kind is INIT) is init
            for resource, holding in resources.items()
        }

    def room(self, resource: Resource, *, spare: str) -> Counter[str]:
        """Count the places by card that nobody but one pod has, forgotten (K15) or not."""
        [name] = [each for each, kind in KINDS.items() if kind is resource]
        own = {
            each
            for resources in self.devices.pods.get(spare, {}).values()
            if name in resources
            for each in resources[name].ids
        }
        taken = (self.devices.allocated.get(name, set()) - own) | {
            each
            for uid, holdings in self.devices.pods.items()
            if uid != spare
            for resources in holdings.values()
            if name in resources
            for each in resources[name].ids
        }
        tickets = self._table.tickets(resource).items()
        return Counter(ticket.card for each, ticket in tickets if each not in taken)


_asks = st.tuples(st.sampled_from([5, 10, 30, 100]), st.sampled_from([1, 2, 4])) | st.just((100, 0))
_kinds = st.sampled_from([INIT, SIDECAR])
_shapes = st.tuples(
    st.lists(st.tuples(_kinds, _asks), max_size=2),
    st.lists(st.tuples(st.just(MAIN), _asks), min_size=1, max_size=3),
).map(lambda parts: [*parts[0], *parts[1]])
Shape = list[tuple[ContainerKind, tuple[int, int]]]
_fates: st.SearchStrategy[dict[str, str]] = st.one_of(
    st.just({}),
    st.just({}),
    st.sampled_from([{REJECT: "NodeAffinity"}, {REJECT_AFTER: "NodeAffinity"}]),
    st.integers(0, 3).map(lambda answers: {FAIL_AFTER: str(answers)}),
)
_twists = st.dictionaries(st.integers(0, 9), st.sampled_from(Twist), max_size=2)
_choice = st.integers(0, 63)


class AgentAndKubelet(RuleBasedStateMachine):
    """One node: the real allocator, the real device manager, and a history of both."""

    @initialize(seed=st.integers(0, 255))
    def start(self, seed: int) -> None:
        self.random = Random(seed)
        self.table = make_table(2, blocks=BLOCKS)
        self.pods = FakePods()
        self.kubelet = Kubelet(self.table, self.random)
        self.kubelet.devices.sources_ready = True
        self.count = 0
        self.late: list[PodView] = []
        self.behind: list[PodView] = []
        self.demands: dict[str, list[ContainerDemand]] = {}
        self.known: dict[str, Pod] = {}  # every pod there was, as the API gives it to a kubelet
        self.ever_blind = False
        self.lost: set[str] = (
            set()
        )  # pods of whose ordinary init containers this agent knows nothing
        self.start_agent()

    # --- the agent ----------------------------------------------------------------------

    def start_agent(self) -> None:
        self.decision_log = FakeDecisionLog()
        self.allocator = Allocator(
            table=self.table,
            pods=self.pods,
            record=self.kubelet,
            writer=Api(self.pods),
            decision_log=self.decision_log,
            answer=lambda grant: Answer(),
        )
        self.lost = set(self.kubelet.pods) | set(self.kubelet.saved)
        served = {*self.kubelet.devices.pods, *self.kubelet.saved}
        self.ended_unknown = served - ({*self.kubelet.active()} | self.bound)
        self.allocator.rebuild()

    @property
    def ledger(self) -> Ledger:
        return self.allocator.state.ledger

    def held(self) -> tuple[Held, Held]:
        """What the ledger has: containers that last, and ordinary init containers."""
        lasting: Held = {}
        passing: Held = {}
        for ref, kind, holdings in self.ledger.refs():
            for resource, held in holdings.items():
                side = passing if kind is INIT else lasting
                side[ref.pod.uid, ref.container, resource] = held.ids
        return lasting, passing

    # --- what happens -------------------------------------------------------------------

    @rule(shape=_shapes, fate=_fates, twists=_twists, seen=st.booleans())
    def admit(self, shape: Shape, fate: dict[str, str], twists: Twists, seen: bool) -> None:
        """A pod is bound here and comes to the kubelet."""
        self.admit_a_pod(shape, fate, twists, seen)

    def admit_a_pod(self, shape: Shape, fate: dict[str, str], twists: Twists, seen: bool) -> None:
        self.count += 1
        name = f"p{self.count:02}"
        demands = [
            ContainerDemand(f"{kind.name.lower()}{n}", kind, n, Demand(*ask))
            for n, (kind, ask) in enumerate(shape)
        ]
        bound = view(name, *demands, at=self.count)
        self.pods.on_server[bound.id.key] = bound
        if seen:
            self.pods.add(bound)
        else:
            self.behind.append(bound)
        asked = [{NAMES.core: ask[0], NAMES.memory: ask[1]} for _, ask in shape]
        limits = [{name: count for name, count in each.items() if count} for each in asked]
        containers = tuple(
            Container(each.name, each.kind, limit)
            for each, limit in zip(demands, limits, strict=True)
        )
        created = "2025-01-15T08:00:00Z"
        pod = Pod(bound.id.uid, "default", name, created, containers, annotations=fate)
        self.demands[pod.uid] = demands
        self.serve([pod], twists)

    @rule(shape=_shapes, seen=st.booleans())
    def admit_in_peace(self, shape: Shape, seen: bool) -> None:
        self.admit_a_pod(shape, {}, {}, seen)

    @rule(twists=_twists)
    def restart_the_kubelet(self, twists: Twists) -> None:
        """All pods come anew, as one batch; what runs is let through (K11)."""
        self.reboot(twists)

    @rule()
    def restart_the_agent(self) -> None:
        self.start_agent()

    @rule(which=_choice, told=st.booleans())
    def end(self, which: int, told: bool) -> None:
        """A pod ends; the API tells the agent now, or later."""
        self.end_one(which, told=told, spare="")

    @rule(which=_choice)
    def start_a_container(self, which: int) -> None:
        """PreStartContainer, which must not be vetoed: everything here was given rightly.

        Unless it was a guess, and memory came from a card of which the container has no cores.
        """
        truth = self.kubelet.held(init=False) | self.kubelet.held(init=True)
        if not truth:
            return
        (uid, container, resource), ids = sorted(truth.items())[which % len(truth)]
        cores, memory = (
            {self.card(place) for place in truth.get((uid, container, each), ())}
            for each in (CORE, MEMORY)
        )
        if self.ever_blind and memory - cores:
            with suppress(GrantError):
                self.allocator.prestart(resource, sorted(ids))
            return
        self.allocator.prestart(resource, sorted(ids))
        kind = self.kubelet.pods[uid].container(container).kind
        if kind is INIT or self.kubelet.blind:
            return
        # An ordinary init container may have had exactly the same places before it (K7).
        found = [(each.pod.uid, each.container) for each in self.ledger.find(resource, ids)]
        assert (uid, container) in found

    @rule()
    def the_api_catches_up(self) -> None:
        for each in self.late:
            self.pods.remove(each)
        for each in self.behind:
            if each.id.key in self.pods.on_server:
                self.pods.add(self.pods.on_server[each.id.key])
        self.late, self.behind = [], []

    @rule()
    def look(self) -> None:
        """A sync without a call: the agent reads the record anew."""
        if not self.kubelet.blind:
            assert self.allocator.rebuild()
            self.in_step()

    # --- how it happens -----------------------------------------------------------------

    def reboot(self, twists: Twists) -> None:
        self.kubelet.boot()
        self.allocator.registered()
        alive = {each.id.uid: each for each in self.pods.on_server.values()}
        batch = [self.known[uid] for uid in alive if uid in self.known]
        self.serve([each for each in batch if each.uid not in self.kubelet.ended], twists)

    def serve(self, batch: Sequence[Pod], twists: Twists) -> None:
        """Let the kubelet admit a batch; a kubelet that dies gets all pods again."""
        self.known.update({each.uid: each for each in batch})
        try:
            for pod in in_order(batch, self.random):
                self.kubelet.pods[pod.uid] = pod
                self.admit_one(pod, twists)
                twists = {}
            self.kubelet.devices.sources_ready = True
        except KubeletDied:
            self.reboot({})

    def admit_one(self, pod: Pod, twists: Twists) -> None:
        kubelet = self.kubelet
        steps = admit(pod, kubelet.devices, kubelet.active, lambda: kubelet.view_for(pod))
        reply: Reply = None
        failure: CallFailed | None = None
        number = 0
        while True:
            try:
                step = steps.send(reply) if failure is None else steps.throw(failure)
            except StopIteration:
                kubelet.running |= {(pod.uid, each.name) for each in pod.containers}
                return
            except AdmissionFailure:
                self.ended(pod.uid)
                return
            reply, failure = None, None
            try:
                reply = self.do(pod, step, twists.get(number))
            except CallFailed as error:
                failure = error
            number += 1

    def ended(self, uid: str) -> None:
        self.kubelet.ended.add(uid)
        self.kubelet.running = {each for each in self.kubelet.running if each[0] != uid}
        for each in [*self.pods.on_server.values()]:
            if each.id.uid == uid:
                self.pods.remove(each)

    def end_one(self, which: int, *, told: bool, spare: str) -> None:
        found = sorted(uid for uid in self.kubelet.active() if uid != spare)
        if not found:
            return
        uid = found[which % len(found)]
        cached = [each for each in self.pods.cached.values() if each.id.uid == uid]
        self.ended(uid)
        if not told:
            for each in cached:
                self.pods.cached[each.id] = each
            self.late += cached

    def do(self, pod: Pod, step: Step, twist: Twist | None) -> Reply:
        """Do one step of an admission, as it was meant or otherwise."""
        if twist in (Twist.KUBELET_DIES, Twist.ANSWER_UNWRITTEN, Twist.AGENT_DIES):
            # What the dead one knew of its init containers, the other does not.
            self.lost.add(pod.uid)
        if twist is Twist.KUBELET_DIES:
            raise KubeletDied
        if twist is Twist.AGENT_DIES:
            self.start_agent()
        if twist is Twist.ANOTHER_ENDS:
            self.end_one(pod.uid.__hash__() % 7, told=True, spare=pod.uid)
        if not isinstance(step, PreferCall | AllocateCall):
            self.kubelet.save()
            return None
        if twist is Twist.CALL_LOST:
            raise CallFailed("rpc error: code = Unavailable desc = nobody there")
        if twist is Twist.FORGOTTEN and isinstance(step, AllocateCall) and not self.ever_blind:
            self.end_one(0, told=True, spare=pod.uid)
            self.kubelet.devices.update_allocated(self.kubelet.active())
        reply = self.prefer(pod, step) if isinstance(step, PreferCall) else self.give(pod, step)
        if twist is Twist.ANSWER_UNWRITTEN:
            raise KubeletDied
        if twist is Twist.ANSWER_LOST:
            raise CallFailed("rpc error: code = Unavailable desc = connection reset")
        return reply

    def prefer(self, pod: Pod, step: PreferCall) -> tuple[str, ...]:
        resource = KINDS[step.resource]
        fits = self.must_fit(pod)
        try:
            preferred = self.allocator.prefer(
                resource, step.available, step.must_include, step.size
            )
        except Refusal as error:
            self.refused(pod, error, fits=fits)
            raise CallFailed(str(error)) from error
        if not self.kubelet.blind:
            self.in_step(but=pod.uid)
            # A pod whose init containers another agent served may look as if it waited (K4).
            if not any(self.half_known(self.known[uid]) for uid in self.kubelet.active()):
                assert self.decision_log.decisions[-1][3] is Evidence.WITNESS
        return tuple(preferred)

    def give(self, pod: Pod, step: AllocateCall) -> KubeletAnswer:
        resource = KINDS[step.resource]
        others = {
            each
            for (uid, name, kind), held in self.kubelet.held(init=False).items()
            if kind is resource and (uid, name) != (pod.uid, step.container.name)
            for each in held
        }
        # Of ordinary init containers an agent knows what it was asked for itself (K4).
        others |= {
            each
            for (uid, _, kind), held in self.kubelet.held(init=True).items()
            if kind is resource and uid != pod.uid and uid not in self.lost
            for each in held
            if not self.ever_blind
        }
        try:
            self.allocator.allocate(resource, step.ids)
        except Refusal as error:
            self.refused(pod, error, fits=self.must_fit(pod))
            raise CallFailed(str(error)) from error
        assert not others.intersection(step.ids), "a place that another container holds was given"
        _, ref, _, _, ids = self.decision_log.decisions[-1]
        assert ids == set(step.ids)
        if not self.ever_blind and not self.half_known(pod):
            assert (ref.pod.uid, ref.container) == (pod.uid, step.container.name)
            self.on_one_card(pod, step, ref)
        return KubeletAnswer()

    # --- what must be so ----------------------------------------------------------------

    def refused(self, pod: Pod, error: Refusal, *, fits: bool) -> None:
        """Check that a refusal is right: the asking container is always found, it may not fit."""
        assert not fits, f"refused what fits: {error}"
        found = isinstance(error, PlacementError)
        assert found or self.ever_blind or self.half_known(pod), str(error)

    def half_known(self, pod: Pod) -> bool:
        """Tell whether nobody can know how far this pod's ordinary init containers are (K4)."""
        return pod.uid in self.lost and any(each.kind is INIT for each in pod.containers)

    def must_fit(self, pod: Pod) -> bool:
        """Tell whether the whole pod can be placed, by trying every card: no refusal is right.

        Only where the agent can know it: it sees, and knows of what ordinary init containers
        hold. These need more than they ask for: room for what comes after them.
        """
        there = [self.known[uid] for uid in self.bound & self.known.keys()]
        if self.ever_blind or any(map(self.half_known, there)):
            return False
        if any(each.kind is INIT for each in pod.containers):
            return False
        # A kubelet that has just restarted still has the devices of pods that ended before. An
        # agent that has lived longer knows of them.
        if {*self.kubelet.devices.pods} & self.ended_unknown:
            return False
        free = {card.uuid: dict.fromkeys(Resource, 0) for card in self.table.inventory.cards}
        for resource in Resource:
            for card, count in self.kubelet.room(resource, spare=pod.uid).items():
                free[card][resource] = count
        nothing = {card: dict.fromkeys(Resource, 0) for card in free}
        return can_be_placed(self.demands[pod.uid], free, nothing)

    @property
    def bound(self) -> set[str]:
        """The UIDs of the pods that the API server has here."""
        return {each.id.uid for each in self.pods.on_server.values()}

    def on_one_card(self, pod: Pod, step: AllocateCall, ref: ContainerRef) -> None:
        """All that a share holds, and will hold by this answer, lies on one card."""
        if step.container.limits[NAMES.core] > 100:
            return
        before = self.kubelet.devices.pods.get(pod.uid, {}).get(step.container.name, {})
        places = [*step.ids, *(each for held in before.values() for each in held.ids)]
        cards = {self.card(each) for each in places}
        assert len(cards) == 1, f"{ref} is on {sorted(cards)}"

    @staticmethod
    def card(device_id: str) -> str:
        return device_id.partition("::")[0]

    def in_step(self, but: str = "") -> None:
        """After a look at the record, the ledger says of listed pods what the record says.

        Except for ordinary init containers, which it never shows (K4): of these the ledger may
        know what it was told, and that is what the kubelet holds.
        """
        lasting, passing = self.held()
        truth = self.kubelet.held(init=False)
        listed = set(self.kubelet.active())
        assert {key: held for key, held in lasting.items() if key[0] in listed} == truth
        unlisted = {key[0] for key in lasting} - listed
        assert unlisted <= {pod.uid for pod in self.pods.cached}, "the API shows none of these"
        if not self.ever_blind:
            hidden = self.kubelet.held(init=True)
            sure = listed - self.lost - {but}
            mine = {key: held for key, held in passing.items() if key[0] in sure}
            assert mine.items() <= hidden.items()

    @invariant()
    def the_ledger_is_sound(self) -> None:
        if hasattr(self, "allocator"):
            check(self.ledger)

    @invariant()
    def nothing_is_held_twice(self) -> None:
        if hasattr(self, "kubelet"):
            held = Counter(
                (key[2], each)
                for key, places in self.kubelet.held(init=False).items()
                for each in places
            )
            assert [key for key, count in held.items() if count > 1] == []

    @invariant()
    def what_is_annotated_is_what_is_held(self) -> None:
        """Once a pod has all it asks for, its annotation names the cards and counts it holds."""
        if not hasattr(self, "kubelet") or self.ever_blind:
            return
        truth = self.kubelet.held(init=False)
        for pod in self.pods.cached.values():
            for container, annotated in pod.annotated.items():
                cores = truth.get((pod.id.uid, container, CORE))
                memory = truth.get((pod.id.uid, container, MEMORY))
                if cores and memory:
                    assert {self.card(each) for each in cores | memory} == set(annotated.cards)
                    assert (len(cores), len(memory)) == (annotated.cores, annotated.memory_blocks)


class WithoutWitness(AgentAndKubelet):
    """The same, and now and then the record cannot be had: then who is asking is a guess."""

    @precondition(lambda self: not self.kubelet.blind)
    @rule()
    def lose_sight(self) -> None:
        """The record cannot be had from now on: order decides, and may be wrong."""
        self.kubelet.blind = "PodResources: away"
        self.ever_blind = True

    @precondition(lambda self: self.kubelet.blind)
    @rule()
    def regain_sight(self) -> None:
        self.kubelet.blind = ""
        self.allocator.rebuild()
        self.in_step()


TestAgentAndKubelet = AgentAndKubelet.TestCase
TestAgentAndKubelet.settings = settings(patient, max_examples=share(40), stateful_step_count=40)
TestWithoutWitness = WithoutWitness.TestCase
TestWithoutWitness.settings = settings(patient, max_examples=share(25), stateful_step_count=40)


def test_memory_given_on_a_guess_beside_the_cores_ends_in_a_veto() -> None:
    """Found by the history above: two pods alike, no record, and the agent dies between calls."""
    history = WithoutWitness()
    history.start(seed=0)
    history.lose_sight()
    history.admit_in_peace([(MAIN, (5, 1))], seen=False)
    history.admit_a_pod([(MAIN, (5, 1))], {}, {2: Twist.AGENT_DIES}, seen=False)
    history.regain_sight()
    for which in range(4):
        history.start_a_container(which)


def test_what_an_ended_pod_held_is_free_though_the_api_still_shows_the_pod() -> None:
    """Found by the history above."""
    history = AgentAndKubelet()
    history.start(seed=52)  # memory is asked for first
    history.admit_in_peace([(MAIN, (100, 1))], seen=True)
    history.end(0, told=False)
    history.admit_in_peace([(SIDECAR, (100, 1)), (MAIN, (5, 1))], seen=True)
    assert [each[3] for each in history.decision_log.refusals] == []


SEEDS = pytest.mark.parametrize("seed", range(4))  # which resource comes first is the dice's


@SEEDS
def test_what_this_kubelet_was_answered_and_lists_no_more_is_free(seed: int) -> None:
    """Whole cards without memory: what is offered of the memory says nothing of them."""
    history = AgentAndKubelet()
    history.start(seed=seed)
    history.admit_in_peace([(MAIN, (200, 0))], seen=True)
    history.end(0, told=False)
    history.admit_in_peace([(MAIN, (50, 1))], seen=True)
    assert [each[3] for each in history.decision_log.refusals] == []


@SEEDS
def test_no_card_is_chosen_of_which_a_restarted_kubelet_counts_what_ended_pods_had(
    seed: int,
) -> None:
    """Its checkpoint has them until it knows all pods; the agent had forgotten them rightly."""
    history = AgentAndKubelet()
    history.start(seed=seed)
    history.admit_in_peace([(MAIN, (100, 0))], seen=True)
    history.end(0, told=True)
    history.look()
    history.admit_a_pod([(MAIN, (50, 1))], {}, {0: Twist.KUBELET_DIES}, seen=True)
    assert [each[3] for each in history.decision_log.refusals] == []


@SEEDS
def test_what_is_offered_of_one_resource_tells_which_ended_containers_are_still_counted(
    seed: int,
) -> None:
    """Two have ended; the kubelet has written down the one, and died before it wrote the other."""
    history = AgentAndKubelet()
    history.start(seed=seed)
    history.admit_in_peace([(MAIN, (60, 4))], seen=True)
    history.admit_a_pod([(MAIN, (80, 4))], {FAIL_AFTER: "2"}, {}, seen=True)
    history.end(0, told=True)
    history.look()
    history.admit_a_pod([(MAIN, (90, 4))], {}, {0: Twist.KUBELET_DIES}, seen=True)
    assert [each[3] for each in history.decision_log.refusals] == []

"""The node in memory, with faults before each call and a judge of each call."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from agent.allocator.interfaces import ListedPod
from agent.allocator.slots import DeviceTable
from agent.errors import Refusal
from contract.inventory import Inventory
from contract.resource import Resource
from placement.pods import PodInfo
from simulator.kubelet.devices import PreferStep
from simulator.kubelet.errors import PluginCallFailed
from tests.adversary.judge import Call, Judge
from tests.adversary.oracle import could_run
from tests.agent.builders import BLOCK, card
from tests.in_memory.node import Node
from tests.in_memory.pods import Container, Pod, card_of

_BLOCKS = (16, 16, 12, 16)
_OVERTAKEN = 0.3
"""Probability that the next checkpoint write overtakes a message of ``ListAndWatch`` (K33)."""
_T = TypeVar("_T")


class KubeletKilled(Exception):
    """The kubelet was killed in the middle of an admission."""


class World(Node):
    """A node with its true state, faults and a judge.

    Attributes:
        strike: causes random faults at a point, see :meth:`tests.adversary.moves.Faults.strike`.
        loses: returns whether the current response is lost.
        proving: whether no ``PreStartContainer`` call may begin, because one is running, or because
            the agent has not registered yet.
        passed: UIDs of pods that were listed during another pod's correctly named call, and of
            pods that were refused while ``List`` was available, or by their name.
        could: UIDs of pods that fitted at their first call.
        uncalled: whether the agent has not been called yet, or not by this kubelet.
        misled: whether ``List`` was unavailable in the last call.
        confused: UIDs of pods in whose calls the agent named another.
        lost: UID and name of containers whose devices were not in the checkpoint when the kubelet
            was killed: the next kubelet does not know these devices (K28, K33).
    """

    def __init__(self, random: Random, *, active_only: bool) -> None:
        self.faults: Counter[str] = Counter()
        self.strike: Callable[[str, Call | None], None] = lambda _where, _call: None
        self.loses: Callable[[], bool] = lambda: False
        self.trace: Callable[[str], None] = lambda _line: None
        self.judge = Judge()
        self.call_now: Call | None = None
        self.proving = self.misled = False
        self.uncalled = True
        self.passed: set[str] = set()
        self.could: set[str] = set()
        self.confused: set[str] = set()
        self.lost: set[tuple[str, str]] = set()
        self._delivered: set[str] = set()  # UIDs of all pods that this agent's watch delivered
        # Devices that were allocated while the agent could not know the pod's wishes, or for
        # another pod by a wrong guess; and those of them that only a killed agent knew.
        self._unadvised: set[frozenset[str]] = set()
        self._forgotten: set[frozenset[str]] = set()
        # Devices that were chosen while the agent could not know the pod.
        self._unread: set[frozenset[str]] = set()
        cards = tuple(card(index, blocks=blocks) for index, blocks in enumerate(_BLOCKS))
        self.cards_here = tuple(each.uuid for each in cards)
        super().__init__(
            table=DeviceTable(Inventory(cards), BLOCK),
            random=random,
            active_only=active_only,
            overtaken=_OVERTAKEN,
        )
        self.api.on_get = self._got

    # --- the agent ------------------------------------------------------------------------

    def restart_agent(self) -> None:
        self.trace("agent starts")
        self.guarded("start", self._start_agent)
        self.passed.clear()
        self.uncalled = True
        self.kubelet.register()

    def _start_agent(self) -> None:
        super().restart_agent()
        self._forgotten |= self._unadvised
        self._delivered = {each.id.uid for each in self.watch.cache.pods()}
        # It registers after its first observation, and is not called before.
        proving, self.proving = self.proving, True
        self.allocator.refresh()
        self.proving = proving

    def changed(self, view: PodInfo) -> None:
        self._delivered.add(view.id.uid)
        self.guarded("catch up", lambda: self.allocator.catch_up(view))

    def knows(self, pod: Pod) -> bool:
        """Return whether this agent's watch has ever delivered a pod."""
        return not self._delivered.isdisjoint(pod.uids)

    def register(self) -> None:
        """Register the agent with the new kubelet; the agent detects the restart."""
        self.uncalled = True
        self.kubelet.register()
        self.guarded("registered", self.allocator.refresh)

    def refresh(self) -> None:
        self.now += 1.0
        self.guarded("refresh", self.allocator.refresh)

    def guarded(self, what: str, do: Callable[[], object]) -> None:
        """Run the work of an agent's thread; an exception is a finding."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 -- the judge's finding
            self.judge.find("failed", f"{what}: {error!r}")

    def list(self, *, within: float) -> tuple[ListedPod, ...]:
        self.strike("list", self.call_now)
        return super().list(within=within)

    def _got(self, name: str, outcome: str) -> None:
        self.faults[f"GET {outcome}"] += 1
        self.trace(f"   GET {name} {outcome}")

    # --- the kubelet's calls --------------------------------------------------------------

    def ask_other(self, pod: Pod, container: Container) -> None:
        if pod.other_fails:
            held = self.held(pod, container.name)
            lacking = {each for each in Resource if container.count(each)} - held.keys()
            if held and lacking:
                form = "new" if self.kubelet.active_only else "old"
                self.faults[f"refused between two resources, {form} List"] += 1
            if container.cores >= 100:
                self.faults["whole cards, refused by another plugin"] += 1
            self.trace(f"other plugin fails for {pod.uid} {container.name}")
        super().ask_other(pod, container)

    def prefer(self, pod: Pod, container: Container, call: PreferStep) -> Sequence[str]:
        judged = self._begin(pod, container, Resource(call.resource))
        if (judged.known or judged.reachable) and could_run(self, judged, call):
            self.could.add(pod.uid)
        prefer = super().prefer
        chosen = self._run_judged(
            judged,
            lambda: prefer(pod, container, call),
            lambda: could_run(self, judged, call),
        )
        devices = {frozenset(chosen)}
        read = judged.known or judged.reachable
        if read and pod.uid not in self.confused:
            self.judge.parts(judged, chosen)
        self._unread = self._unread - devices if read else self._unread | devices
        return chosen

    def give(self, pod: Pod, container: Container, resource: Resource, ids: Sequence[str]) -> None:
        call = self._begin(pod, container, resource)
        self.strike("flight", call)
        held = self._held_by_others(pod, container, resource)
        give = super().give
        self._run_judged(
            call,
            lambda: give(pod, container, resource, ids),
            lambda: not held.intersection(ids) and container.is_divided(resource, ids),
        )
        self.judge.twice(call, ids, held)
        devices = {frozenset(ids)}
        self._forgotten -= devices
        advised = call.known and pod.uid not in self.confused
        self._unadvised = self._unadvised - devices if advised else self._unadvised | devices
        if pod.uid not in self.confused and (call.known or call.reachable):
            other = self.held(pod, container.name).get(resource.other, ())
            self.judge.cards(call, ids, other, advised=devices.isdisjoint(self._unread))

    def _begin(self, pod: Pod, container: Container, resource: Resource) -> Call:
        call = Call(pod, container, resource)
        self.strike("call", call)
        self.now += 0.02
        self.decision_log.take()
        call.seen = not self.list_error
        call.reachable = not self.api.away and self.api.has(pod)
        call.known = self.knows(pod)
        if self.watch.behind and not call.known:
            self.faults["called while the watch is behind"] += 1
        if any(
            not each.requests_gpus
            for zombie in self.kubelet.zombies()
            for each in zombie.containers
        ):
            self.faults["called while a deleted pod's container without GPUs is listed"] += 1
        return call

    def _run_judged(self, call: Call, handle: Callable[[], _T], fit: Callable[[], bool]) -> _T:
        self.call_now = call
        call.ended = self.kubelet.untold() - self.passed
        self.trace(f"-> {call}" + ("" if call.known else ", not shown to the agent"))
        self.judge.verdicts["calls"] += 1
        try:
            response = handle()
            while self.loses():  # the proxy calls the next agent
                self.decision_log.take()  # these decisions had no effect
                call.known = False
                response = handle()
            return response
        except PluginCallFailed as failed:
            if isinstance(failed.__cause__, Refusal):
                self._refused(call, failed.__cause__, fit=fit())
            raise
        except KubeletKilled:
            raise
        except Exception as error:
            self.judge.find("failed", f"{call}: {error!r}")
            raise PluginCallFailed("gpu-turnstile failed on this node") from error
        finally:
            call.decisions = self.decision_log.take()
            call.seen = call.seen and not self.list_error
            call.known = call.known or self.knows(call.pod)
            call.reachable = call.reachable and self.api.has(call.pod)
            for each in call.decisions:
                self.trace(f"   {each}")
            self.misled = not call.seen  # the next List corrects everything
            if self.judge.named(call):
                self.confused.add(call.pod.uid)
            elif call.seen:
                listed = {each.pod.uid for each in self.kubelet.state.listed()}
                self.passed |= listed - {call.pod.uid}
            self.call_now, self.uncalled = None, False

    def _refused(self, call: Call, error: Refusal, *, fit: bool) -> None:
        self.trace(f"   refused: {error}")
        self.judge.verdicts["refused"] += 1
        decisions = self.decision_log.everything
        seen = call.seen and not self.list_error
        if seen or any(self.judge.right(call, each) for each in decisions):
            self.passed.add(call.pod.uid)  # else the agent cannot know which pod was refused
        containers = self.kubelet.holdings.get(call.pod.uid, {})
        deleted = call.pod.deleting or not (call.pod.static or self.api.has(call.pod))
        self.judge.refused(
            call,
            error,
            decisions,
            fit=fit,
            fitted=call.pod.uid in self.could,
            deleted=deleted,
            unadvised=not self._unadvised.isdisjoint(
                ids for held in containers.values() for ids in held.values()
            ),
            confused=call.pod.uid in self.confused,
        )

    def prestart(
        self, pod: Pod, container: Container, resource: Resource, ids: Sequence[str]
    ) -> None:
        call = Call(pod, container, resource, known=True, seen=not self.list_error)
        call.alike = {
            name
            for name, held in self.kubelet.holdings.get(pod.uid, {}).items()
            if held.get(resource) == frozenset(ids)
        }
        self.trace(f"-> PreStart {call}")
        before, self.proving = self.decision_log.take(), True  # it may come in the middle of a call
        try:
            super().prestart(pod, container, resource, ids)
        except PluginCallFailed as error:
            self.trace(f"   vetoed: {error}")
            held = self.held(pod, container.name)
            wished = all(pod.wished(card_of(each)) for each in ids)
            wished = wished and all(container.is_divided(*each) for each in held.items())
            # Memory on another card than the cores was judged when it was allocated.
            cores, memory = (held.get(each, frozenset()) for each in Resource)
            wished = wished and (not cores or {*map(card_of, memory)} <= {*map(card_of, cores)})
            if not self.has_all(pod, container.name) and (pod.uid, container.name) in self.lost:
                self.judge.excused["a start without devices that a killed kubelet lost"] += 1
            elif wished and not pod.invalid and pod.uid not in self.confused:
                self.judge.find("veto", f"{call}: {error}")
            raise
        except Exception as error:
            self.judge.find("failed", f"PreStart {call}: {error!r}")
            raise PluginCallFailed("gpu-turnstile failed on this node") from error
        finally:
            call.decisions = self.decision_log.take()
            written = self.kubelet.saved(pod.uid, container.name).get(resource)
            for each in call.decisions:
                self.trace(f"   {each}")
                if each.word == "unproven":
                    self.judge.unproven(call, each, overtaken=written != frozenset(ids))
            self.judge.named(call)
            self.decision_log.everything, self.proving = before, False

    def try_to_start(self, pod: Pod, container: Container) -> bool:
        """Start a container, unless it needs the plugin and the plugin is not connected."""
        if container.requests_gpus and not self.kubelet.connected:
            return False
        started = self.kubelet.start(pod, container)
        if started and container.requests_gpus:
            held = self.held(pod, container.name)
            known = self.knows(pod) and not self.api.away
            forgotten = not self._forgotten.isdisjoint(held.values())
            if known and not (forgotten and pod.phase == "Running"):
                self.judge.started(pod, container, held)
        return started

    def has_all(self, pod: Pod, container: str) -> bool:
        """Return whether a container, by its name, holds devices of all requested resources."""
        held = self.held(pod, container)
        return all(each in held for each in Resource if pod.container(container).count(each))

    def resources_held(self) -> set[tuple[str, str, Resource]]:
        """Return the containers that hold devices: UID, container name and resource."""
        return {
            (uid, name, resource)
            for uid, containers in self.kubelet.holdings.items()
            for name, held in containers.items()
            for resource in held
        }

    def _held_by_others(self, pod: Pod, container: Container, resource: Resource) -> set[str]:
        """Return the device IDs of other containers, except this pod's ordinary init containers."""
        held = self.kubelet.held(resource, but={pod.uid})
        for name, resources in self.kubelet.holdings.get(pod.uid, {}).items():
            if name != container.name and not pod.container(name).hands_on:
                held |= resources.get(resource, frozenset())
        return held

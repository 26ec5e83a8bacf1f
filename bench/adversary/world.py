"""One node: kubelet, API server and agent, the calls between them, and a judge of each."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TypeVar

from agent.allocator.slots import DeviceTable
from agent.errors import Refusal
from bench.adversary.api import Api
from bench.adversary.devices import Devices
from bench.adversary.host import Host
from bench.adversary.judge import Call, Judge
from bench.adversary.kubelet import Kubelet, KubeletDied
from bench.adversary.pods import Container, Pod
from bench.adversary.refusals import could_run, refused
from contract.demand import ContainerKind
from contract.inventory import Card, Inventory
from contract.resource import Resource
from simulator.kubelet.devices import PreferCall
from simulator.kubelet.errors import CallFailed
from simulator.node.diary import Diary

BLOCK = 256 << 20
_BLOCKS = (16, 16, 12, 16)
_T = TypeVar("_T")


class World:
    """A node and everything that is true of it."""

    def __init__(self, random: Random, *, active_only: bool) -> None:
        """Start an empty node with an agent; *active_only*: ``List`` is in its new form (K8)."""
        self.random = random
        self.faults: Counter[str] = Counter()
        self.strike: Callable[[str, Call | None], None] = lambda _where, _call: None
        self.loses: Callable[[], bool] = lambda: False
        self.trace: Callable[[str], None] = lambda _line: None
        self.judge = Judge()
        self.table = _table()
        self.cards = tuple(each.uuid for each in self.table.inventory.cards)
        self.ill: set[str] = set()
        self.now = 0.0
        self.api = Api(indices={each.uuid: each.index for each in self.table.inventory.cards})
        self.api.on_get = self._got
        places = {each: tuple(self.table.slots(each)) for each in Resource}
        self.devices = Devices(places, random)
        self.kubelet = Kubelet(self, active_only=active_only)
        self.diary = Diary(lambda: self.now)
        self.host = Host(self)
        self.call: Call | None = None
        self.proving = False  # a start is being proved
        self.passed: set[str] = set()  # pods listed while others were served, and refused ones
        self.could: set[str] = set()  # pods that could be placed when they were first asked for
        self.misled = False  # the last call was settled without List
        self.confused: set[str] = set()  # pods in whose calls another was named
        self.devices.core.sources_ready = True
        self.start_agent()

    # --- the agent ------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Replace the agent by one that knows nothing yet, and that has registered."""
        self.trace("agent starts")
        self.guarded("start", self.host.start)
        self.passed.clear()
        self.devices.register()

    def register(self) -> None:
        """Let the agent register with another kubelet than before, and see that it is another."""
        self.devices.register()
        self.guarded("registered", self.host.allocator.refresh)

    def refresh(self) -> None:
        """Let the agent look after what has ended and what it owes."""
        self.now += 1.0
        self.guarded("refresh", self.host.allocator.refresh)

    def guarded(self, what: str, do: Callable[[], object]) -> None:
        """Do what a thread of the agent does; it must not end by an exception."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 -- the judge's finding
            self.judge.find("failed", f"{what}: {error!r}")

    def _got(self, name: str, outcome: str) -> None:
        self.faults[f"GET {outcome}"] += 1
        self.trace(f"   GET {name} {outcome}")

    # --- the kubelet's calls --------------------------------------------------------------

    def active(self) -> set[str]:
        """Return the UIDs of ``GetActivePods``."""
        return set(self.kubelet.active())

    def ask_other(self, pod: Pod, container: Container) -> None:
        """Ask the other vendor's plugin."""
        if not pod.other_fails:
            return
        held = self.devices.of(pod.uid, container.name)
        lacking = {each for each in Resource if container.count(each)} - held.keys()
        if held and lacking:
            form = "new" if self.kubelet.active_only else "old"
            self.faults[f"refused between two resources, {form} List"] += 1
        if container.cores >= 100:
            self.faults["whole cards, refused by another plugin"] += 1
        self.trace(f"other plugin fails for {pod.uid} {container.name}")
        raise CallFailed("example.com/other: no")

    def prefer(self, pod: Pod, container: Container, offer: PreferCall) -> list[str]:
        """Ask the agent which places it prefers."""
        resource = Resource(offer.resource)
        call = self._begin(pod, container, resource)
        if (call.known or call.reachable) and could_run(self, call, offer):
            self.could.add(pod.uid)
        available, must = list(offer.available), list(offer.must_include)
        return self._settle(
            call,
            lambda: self.host.allocator.prefer(resource, available, must, offer.size),
            lambda: could_run(self, call, offer),
        )

    def give(self, pod: Pod, container: Container, resource: Resource, ids: list[str]) -> None:
        """Report the agent which places a container gets."""
        call = self._begin(pod, container, resource)
        self.strike("flight", call)
        held = self.held_by_others(pod, container, resource)
        self._settle(
            call,
            lambda: self.host.allocator.allocate(resource, ids),
            lambda: not held.intersection(ids),
        )
        other = self.devices.of(pod.uid, container.name).get(resource.other, frozenset())
        self.judge.twice(call, ids, held)
        if pod.uid not in self.confused and (call.known or call.reachable):
            self.judge.cards(call, ids, other)

    def _begin(self, pod: Pod, container: Container, resource: Resource) -> Call:
        call = Call(pod, container, resource)
        self.strike("call", call)
        self.now += 0.02
        self.diary.take()
        call.seen = not self.kubelet.blind
        call.reachable = not self.api.away and self.api.has(pod)
        call.known = self.host.knows(pod.uids)
        if self.host.watch.behind and not call.known:
            self.faults["called while the watch is behind"] += 1
        zombies = [each for each in self.kubelet.known.values() if each.state.name == "ZOMBIE"]
        if any(not each.asks for zombie in zombies for each in zombie.pod.containers):
            self.faults["called while a deleted pod's container without GPUs is listed"] += 1
        return call

    def _settle(self, call: Call, ask: Callable[[], _T], fit: Callable[[], bool]) -> _T:
        self.call = call
        call.ended = self.kubelet.untold() - self.passed
        self.trace(f"-> {call}" + ("" if call.known else ", not shown to the agent"))
        self.judge.verdicts["calls"] += 1
        try:
            answer = ask()
            while self.loses():  # the proxy asks the next agent
                self.diary.take()  # nobody heard it
                call.known = False
                answer = ask()
            return answer
        except Refusal as error:
            self.trace(f"   refused: {error}")
            self.judge.verdicts["refused"] += 1
            self.passed.add(call.pod.uid)
            refused(self, call, error, fit=fit())
            raise CallFailed(f"gpu-turnstile: {error}") from error
        except (CallFailed, KubeletDied):
            raise
        except Exception as error:
            self.judge.find("failed", f"{call}: {error!r}")
            raise CallFailed("gpu-turnstile failed on this node") from error
        finally:
            call.said = self.diary.take()
            call.seen = call.seen and not self.kubelet.blind
            call.known = call.known or self.host.knows(call.pod.uids)
            call.reachable = call.reachable and self.api.has(call.pod)
            for each in call.said:
                self.trace(f"   {each}")
            self.misled = not call.seen  # the next List puts everything right
            if call.seen:
                self.passed |= {each.pod.uid for each in self.kubelet.listed()} - {call.pod.uid}
            if self.judge.named(call):
                self.confused.add(call.pod.uid)
            self.call = None

    def held_by_others(self, pod: Pod, container: Container, resource: Resource) -> set[str]:
        """Return the places that others hold, this pod's ordinary init containers not counted."""
        held = self.devices.held(resource, but={pod.uid})
        for name, resources in self.devices.pod_devices.get(pod.uid, {}).items():
            if name != container.name and pod.container(name).kind is not ContainerKind.INIT:
                held |= resources.get(resource, frozenset())
        return held


def _table() -> DeviceTable:
    return DeviceTable(
        Inventory(
            tuple(
                Card(
                    uuid=f"GPU-{index}",
                    index=index,
                    minor=index,
                    model="Fake",
                    memory=blocks * BLOCK,
                    numa=None,
                    bus_id="",
                    device=f"/dev/nvidia{index}",
                )
                for index, blocks in enumerate(_BLOCKS)
            )
        ),
        BLOCK,
    )

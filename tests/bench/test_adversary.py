"""The adversary: its kubelet does what is known of kubelets, and its judge finds what is wrong."""

from random import Random
from typing import NoReturn

import pytest

from agent.allocator.allocator import Allocator
from agent.allocator.model.containers import ContainerRef
from agent.allocator.model.pod_view import PodId
from agent.errors import PlacementError
from bench.adversary.api import Api
from bench.adversary.devices import Devices, Offer
from bench.adversary.journal import Said
from bench.adversary.judge import Call, Judge
from bench.adversary.kubelet import Known, Kubelet
from bench.adversary.pods import NAMES, Container, Pod
from bench.adversary.refusals import could_run
from bench.adversary.run import run
from bench.adversary.world import World
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource
from simulator.kubelet.answers import Answer
from simulator.kubelet.numa import Holding
from tests.agent.builders import CORE, INIT, MAIN, MEMORY

PLACES = {each: tuple(f"{card}::{n}" for card in "AB" for n in range(100)) for each in Resource}


# --- the exact search -----------------------------------------------------------------


# --- the kubelet ----------------------------------------------------------------------


class Plugin:
    """Gives the first places that are offered."""

    def __init__(self) -> None:
        self.kubelet: Kubelet

    def prefer(self, pod: Pod, container: Container, offer: Offer) -> list[str]:
        free = [each for each in sorted(offer.available) if each not in offer.must]
        return [*offer.must, *free][: offer.size]

    def give(self, pod: Pod, container: Container, resource: Resource, ids: list[str]) -> None:
        """Any places will do."""

    def ask_other(self, pod: Pod, container: Container) -> None:
        raise AssertionError

    def active(self) -> set[str]:
        return set(self.kubelet.active())


def a_kubelet(*, active_only: bool = True, seed: int = 0) -> tuple[Kubelet, Plugin]:
    plugin = Plugin()
    devices = Devices(PLACES, Random(seed))
    devices.core.sources_ready = True
    devices.register()
    kubelet = Kubelet(
        devices=devices, api=Api(), active_only=active_only, port=plugin, random=Random(seed)
    )
    plugin.kubelet = kubelet
    return kubelet, plugin


def admit(kubelet: Kubelet, name: str, *containers: Container) -> Known:
    pod = Pod("default", name, f"u-{name}", containers, len(kubelet.known))
    kubelet.api.add(pod)
    kubelet.bind(pod)
    kubelet.admit_next()
    return kubelet.known[pod.uid]


def listed(kubelet: Kubelet) -> dict[str, int]:
    """Pod name -> places that ``List`` shows."""
    return {
        each.name: sum(len(ids) for one in each.containers for ids in one.held.values())
        for each in kubelet.look()
    }


def a_share(name: str = "c", kind: ContainerKind = MAIN) -> Container:
    return Container(name, kind, 10, 2)


def test_k20_a_pod_deleted_by_force_is_listed_until_it_has_ended() -> None:
    kubelet, _ = a_kubelet()
    known = admit(kubelet, "p", a_share(), Container("plain", MAIN))
    kubelet.api.remove(known.pod)
    kubelet.deleted_by_force(known.pod, keeps=True)
    assert listed(kubelet) == {"p": 12}
    kubelet.end(known)
    assert listed(kubelet) == {}


def test_k11_a_kubelet_that_restarts_keeps_the_books_and_lists_what_it_has_come_to() -> None:
    kubelet, _ = a_kubelet()
    for name in ("p", "q"):
        known = admit(kubelet, name, a_share())
        kubelet.started(known)
    kubelet.restart()
    assert listed(kubelet) == {}
    kubelet.admit_next()
    assert list(listed(kubelet).values()) == [12]
    assert not kubelet.devices.core.sources_ready
    kubelet.admit_next()
    assert len(kubelet.devices.held(CORE)) == 20
    assert kubelet.devices.core.sources_ready


# --- the judge ------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "active_only"), [(3, True), (9, False), (13, True)])
def test_nothing_is_found_of_the_agent(seed: int, active_only: bool) -> None:
    """`make bench BENCH=soak` looks at more."""
    assert run(seed, active_only=active_only, rounds=25).findings == ()


def test_an_agent_that_refuses_what_fits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> NoReturn:
        raise PlacementError("no card fits")

    monkeypatch.setattr(Allocator, "prefer", refuse)
    findings = run(1, active_only=True, rounds=3).findings
    assert "refused" in {each.kind for each in findings}


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        (("p", "c", Evidence.WITNESS), set()),
        (("p", "plain", Evidence.WITNESS), {"wrong", "bystander"}),
        (("q", "c", Evidence.ORDER), {"wrong"}),
    ],
)
def test_whom_the_agent_names_is_compared_with_whom_the_call_is_for(
    said: tuple[str, str, Evidence], kinds: set[str]
) -> None:
    judge, call = a_call()
    name, container, evidence = said
    ref = ContainerRef(PodId("default", name, f"u-{name}"), container)
    call.said = [Said("decided", ref, evidence)]
    judge.named(call)
    assert {each.kind for each in judge.findings} == kinds


def test_a_container_of_a_pod_that_the_agent_was_never_shown_is_no_witness() -> None:
    judge, call = a_call()
    call.known = False
    call.said = [Said("decided", ContainerRef(PodId("default", "p", ""), "c"), Evidence.WITNESS)]
    judge.named(call)
    assert [each.kind for each in judge.findings] == ["witness"]


def test_the_ticket_of_an_excused_guess_is_no_finding_and_that_of_another_is() -> None:
    judge, call = a_call()
    call.ended = {"u-q"}
    ref = ContainerRef(PodId("default", "q", "u-q"), "c")
    for word, text in ((Evidence.ORDER, "prefer"), (Evidence.TICKET, "allocate")):
        call.said = [Said("decided", ref, word, text)]
        assert judge.named(call)
    assert judge.findings == []
    assert judge.excused.total() == 1
    call.ended = set()
    call.said = [Said("decided", ContainerRef(ref.pod, "d"), Evidence.TICKET)]
    judge.named(call)
    assert {each.kind for each in judge.findings} == {"wrong", "bystander"}


def test_an_earlier_pod_of_the_name_is_as_good_if_it_asks_and_wishes_the_same() -> None:
    judge, call = a_call()
    for uid, wishes in (("u-0", {}), ("u-1", {NAMES.use_gpu_uuid: "A"})):
        earlier = Pod("default", "p", uid, (a_share(),), 0, annotations=wishes)
        judge.meet(earlier)
        call.known = False
        call.said = [Said("decided", ContainerRef(PodId("default", "p", uid), "c"), Evidence.ORDER)]
        judge.named(call)
    assert [each.kind for each in judge.findings] == ["wrong"]


def test_without_list_a_wrong_guess_is_no_finding() -> None:
    judge, call = a_call()
    call.seen = False
    call.said = [Said("decided", ContainerRef(PodId("default", "q", "u-q"), "c"), Evidence.ORDER)]
    assert judge.named(call)
    assert judge.findings == []


def test_a_place_that_another_holds_is_given_twice() -> None:
    judge, call = a_call()
    judge.twice(call, ["A::1", "A::2"], {"A::2", "A::3"})
    assert [each.kind for each in judge.findings] == ["twice"]


@pytest.mark.parametrize(("later", "fits"), [(50, True), (60, False)])
def test_what_a_container_has_of_an_init_container_is_not_left_for_those_after_it(
    later: int, *, fits: bool
) -> None:
    """Once it has its cores, and asks for its memory."""
    main = Container("c", MAIN, 50, 8)
    pod = Pod("default", "p", "u", (a_share("init", INIT), main, Container("d", MAIN, later, 2)), 0)
    world = World(Random(0), active_only=False)
    world.host.stop()
    world.ill = {*world.cards[1:]}
    cores, memory = (sorted(world.table.by_card(each)[world.cards[0]]) for each in Resource)
    held = {"init": {CORE: cores[:10], MEMORY: memory[:2]}, "c": {CORE: cores[:50]}}
    world.devices.core.pods = {
        "u": {
            name: {str(key): Holding(tuple(ids), Answer(), {}) for key, ids in each.items()}
            for name, each in held.items()
        }
    }
    world.devices.core.reusable = {
        str(key): dict.fromkeys(ids) for key, ids in held["init"].items()
    }
    offer = Offer(MEMORY, tuple(memory), tuple(memory[:2]), 8)
    assert could_run(world, Call(pod, main, MEMORY), offer) == fits


def a_call() -> tuple[Judge, Call]:
    judge = Judge()
    pods = [
        Pod("default", name, f"u-{name}", (a_share(), Container("plain", MAIN)), 0)
        for name in ("p", "q")
    ]
    for each in pods:
        judge.meet(each)
    return judge, Call(pods[0], pods[0].containers[0], CORE, known=True)

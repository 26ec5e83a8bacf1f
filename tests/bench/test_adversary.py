"""The adversary: its kubelet does what is known of kubelets, and its judge finds what is wrong."""

from collections.abc import Callable
from random import Random
from typing import NoReturn

import pytest

from agent.allocator.allocator import Allocator
from agent.allocator.model.containers import ContainerRef
from agent.allocator.model.pod_view import PodId
from agent.errors import PlacementError
from bench.adversary.api import Api
from bench.adversary.devices import CallFailed, Devices, Offer
from bench.adversary.journal import Said
from bench.adversary.judge import Call, Judge
from bench.adversary.kubelet import Known, Kubelet, State
from bench.adversary.pods import NAMES, Container, Pod
from bench.adversary.refusals import could_run
from bench.adversary.run import run
from bench.adversary.world import World
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource
from tests.agent.builders import CORE, INIT, MAIN, MEMORY

PLACES = {each: tuple(f"{card}::{n}" for card in "AB" for n in range(100)) for each in Resource}


# --- the exact search -----------------------------------------------------------------


# --- the kubelet ----------------------------------------------------------------------


class Plugin:
    """Gives the first places that are offered; can be told to fail at one resource."""

    def __init__(self) -> None:
        self.kubelet: Kubelet
        self.fails: Resource | None = None
        self.in_flight: Callable[[], None] = lambda: None
        self.offers: list[Offer] = []

    def prefer(self, pod: Pod, container: Container, offer: Offer) -> list[str]:
        self.offers.append(offer)
        free = [each for each in sorted(offer.available) if each not in offer.must]
        return [*offer.must, *free][: offer.size]

    def give(self, pod: Pod, container: Container, resource: Resource, ids: list[str]) -> None:
        if resource is self.fails:
            raise CallFailed("no")
        self.in_flight()

    def ask_other(self, pod: Pod, container: Container) -> None:
        raise AssertionError

    def active(self) -> set[str]:
        return set(self.kubelet.active())


def a_kubelet(*, active_only: bool = True, seed: int = 0) -> tuple[Kubelet, Plugin]:
    plugin = Plugin()
    devices = Devices(PLACES, Random(seed))
    devices.sources_ready = True
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
        for each in kubelet.look().pods
    }


def a_share(name: str = "c", kind: ContainerKind = MAIN) -> Container:
    return Container(name, kind, 10, 2)


def test_k21_what_it_had_got_stays_listed_while_it_is_the_last_that_was_admitted() -> None:
    shown = set()
    for seed in range(8):  # which resource comes first is chance (K1)
        kubelet, plugin = a_kubelet(active_only=False, seed=seed)
        plugin.fails = MEMORY
        admit(kubelet, "p", a_share())
        shown.add(listed(kubelet)["p"])
        plugin.fails = None
        admit(kubelet, "q", a_share())
        assert listed(kubelet) == {"p": 0, "q": 12}
    assert shown == {0, 10}


def test_k20_a_pod_deleted_by_force_is_listed_until_it_has_ended() -> None:
    kubelet, _ = a_kubelet()
    known = admit(kubelet, "p", a_share(), Container("plain", MAIN))
    kubelet.api.remove(known.pod)
    kubelet.deleted_by_force(known.pod, keeps=True)
    assert listed(kubelet) == {"p": 12}
    kubelet.end(known)
    assert listed(kubelet) == {}


def test_k15_places_in_flight_are_offered_again_once_another_pod_has_ended() -> None:
    kubelet, plugin = a_kubelet()
    other = admit(kubelet, "other", a_share())

    def another_ends() -> None:
        if other.state is not State.ENDED:
            kubelet.end(other)
            kubelet.look()

    plugin.in_flight = another_ends
    known = admit(kubelet, "p", a_share())
    held = {each for ids in kubelet.devices.of("u-p", "c").values() for each in ids}
    assert held
    assert known.state is State.STARTING
    plugin.offers.clear()
    admit(kubelet, "q", a_share())
    assert any(held.intersection(each.available) for each in plugin.offers)


def test_k7_the_places_of_an_init_container_are_handed_on_without_asking() -> None:
    kubelet, plugin = a_kubelet()
    admit(kubelet, "p", a_share("init", INIT), a_share())
    assert len(plugin.offers) == 2
    assert kubelet.devices.of("u-p", "init") == kubelet.devices.of("u-p", "c")
    assert listed(kubelet) == {"p": 12}


def test_k11_a_kubelet_that_restarts_keeps_the_books_and_lists_what_it_has_come_to() -> None:
    kubelet, _ = a_kubelet()
    for name in ("p", "q"):
        known = admit(kubelet, name, a_share())
        kubelet.started(known)
    kubelet.restart()
    assert listed(kubelet) == {}
    kubelet.admit_next()
    assert list(listed(kubelet).values()) == [12]
    assert not kubelet.devices.sources_ready
    kubelet.admit_next()
    assert len(kubelet.devices.held(CORE)) == 20
    assert kubelet.devices.sources_ready


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
    init = {CORE: frozenset(cores[:10]), MEMORY: frozenset(memory[:2])}
    world.devices.pod_devices = {"u": {"init": init, "c": {CORE: frozenset(cores[:50])}}}
    world.devices.reusable = {each: set(held) for each, held in init.items()}
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

"""Who is there, and who of them is asking: what is asked for, what is remembered of a call."""

import threading
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

import pytest

from agent.allocator.model.ledger import ContainerRef, Holding, Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.resolver.call_context import CallContext
from agent.allocator.resolver.observer import Observer
from agent.allocator.resolver.pod_index import PodIndex
from agent.allocator.resolver.pod_lookup import PodReader
from agent.allocator.resolver.resolve import Ask, Resolution
from agent.allocator.resolver.resolver import Resolver
from agent.errors import GrantError, ResolutionError
from contract.allocation import Allocation, Evidence
from contract.resource import Resource
from tests.agent.builders import CORE, INIT, MEMORY, hold, ids
from tests.agent.fakes import FakeDecisionLog, FakePods, FakeRecord, asks, init, make_pod

HELD = {CORE: ids("GPU-0", range(30)), MEMORY: ids("GPU-0", range(8))}
SIZE = 30


class WatchedPods(FakePods):
    """Pods whose source asserts that nobody waits for a lock while the API is asked."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self.lock = lock

    def fetch(
        self, namespace: str, name: str, *, within: float = 1.0, again: bool = False
    ) -> PodView | None:
        assert not self.lock.locked()
        return super().fetch(namespace, name, within=within, again=again)

    def refresh(self, *, within: float) -> None:
        assert not self.lock.locked()
        super().refresh(within=within)


class Stand:
    """A resolver, and what stands around it."""

    def __init__(self) -> None:
        self.lock, self.ledger = threading.Lock(), Ledger()
        self.pods, self.record, self.decision_log = (
            WatchedPods(self.lock),
            FakeRecord(),
            FakeDecisionLog(),
        )
        self.record.meanwhile = self._unlocked
        self.changed: list[AbstractSet[PodId]] = []
        self.resolver = Resolver(
            ledger=self.ledger,
            pod_index=PodIndex(),
            pods=self.pods,
            decision_log=self.decision_log,
        )
        self.observer = Observer(
            self.resolver,
            record=self.record,
            reader=PodReader(self.pods),
            decision_log=self.decision_log,
            lock=self.lock,
        )

    def _unlocked(self) -> None:
        assert not self.lock.locked()

    def bind(self, *views: PodView) -> None:
        for each in views:
            self.pods.add(each)

    def show(self, *views: PodView) -> None:
        for each in views:
            self.record.show(each)

    def meet(self, *views: PodView) -> PodView:
        """Have the API and the kubelet show pods; gives the last of them."""
        self.bind(*views)
        self.show(*views)
        return views[-1]

    def look(self, size: int = SIZE, resource: Resource = CORE) -> CallContext:
        return self.observer.look(ask=Ask(resource, size))

    def reconcile(self) -> set[PodId]:
        """Bring the ledger in line with a new List; gives the pods that are in motion."""
        snapshot = self.record.list(within=1)
        with self.lock:
            moving = self.resolver.reconcile(snapshot).moving
            self.changed.append(self.resolver.take_changed())
            return {each.pod for each in moving}

    def give(self, view: PodView, container: str = "main") -> None:
        """Have the kubelet's record show a container of 30 cores and 8 blocks served."""
        for resource, held in HELD.items():
            self.record.give(view, container, resource, held)

    def answer(self, view: PodView, container: str = "main") -> None:
        """Note that an ``Allocate`` is answered."""
        with self.lock:
            self.resolver.answered(ContainerRef(view.id, container))

    def resolve(
        self,
        size: int = SIZE,
        named: Iterable[str] = (),
        *,
        resource: Resource = CORE,
        context: CallContext | None = None,
    ) -> Resolution:
        seen = context or self.look(size, resource)
        with self.lock:
            return self.resolver.resolve(resource, size, [*named], seen)


@pytest.fixture
def stand() -> Stand:
    return Stand()


# --- looking --------------------------------------------------------------------------


def test_without_a_record_nothing_is_seen_and_that_is_told(stand: Stand) -> None:
    stand.record.away = "PodResources: UNAVAILABLE: no socket"
    context = stand.observer.look(frozenset({(CORE, "x")}), named=frozenset({(CORE, "y")}))
    assert context == CallContext(None, frozenset({(CORE, "x")}), frozenset({(CORE, "y")}))
    assert stand.decision_log.blinds == ["PodResources: UNAVAILABLE: no socket"]
    assert not stand.pods.fetched


def test_pods_that_the_api_has_not_told_of_are_asked_for_a_few_at_a_time(stand: Stand) -> None:
    for name in "hgfedcba":
        view = make_pod(name, asks(30, 8))
        stand.show(view)
        stand.pods.on_server[view.id.key] = view
    stand.look()
    assert stand.pods.fetched == [("default", name) for name in "abcdef"]


def test_a_question_that_fails_is_asked_again_and_ends_the_asking_if_it_goes_on_failing(
    stand: Stand,
) -> None:
    stand.show(make_pod("a", asks(30, 8)), make_pod("b", asks(30, 8)))
    stand.pods.away = True
    assert stand.look().snapshot is not None
    assert stand.pods.fetched == [("default", "a")] * 3


def test_one_question_that_fails_changes_nothing(stand: Stand) -> None:
    """While the watch is behind: what the pod asks for and wishes is known all the same."""
    pod = make_pod("a", asks(30, 8))
    stand.show(pod)
    stand.pods.on_server[pod.id.key] = pod
    stand.pods.failing = 1
    assert stand.resolve() == Resolution(pod.id, pod.demand.containers[0], Evidence.WITNESS)


def test_where_several_lack_each_is_asked_for_newest_first(stand: Stand) -> None:
    """All but one were rejected, which the watch has not told yet (K3, K8)."""
    waiting = [make_pod(name, asks(30, 8), at=at) for name, at in [("a", 2), ("b", 3)]]
    begun = make_pod("c", asks(30, 8), at=1)
    stand.meet(*waiting, begun)
    stand.record.give(begun, "main", CORE, HELD[CORE])
    stand.look()
    assert stand.pods.fetched == [("default", "b"), ("default", "a")]


def test_pods_that_had_their_turn_are_not_asked_for(stand: Stand) -> None:
    rejected, asking = make_pod("p", asks(30, 8)), make_pod("a", asks(30, 8))
    stand.meet(rejected, asking)
    stand.resolver.refuse(ContainerRef(rejected.id, "main"))
    stand.look()
    assert not stand.pods.fetched


def test_a_served_pod_that_shows_nothing_is_asked_for_though_it_is_alone(stand: Stand) -> None:
    """Another has come under its name; by its annotation, or by the ledger."""
    old, new = make_pod("a", asks(30, 8)), make_pod("a", asks(30, 8))
    stand.bind(replace(old, annotated={"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}))
    stand.pods.on_server[new.id.key] = new
    stand.show(old)
    assert stand.resolve().pod == new.id
    assert stand.pods.fetched == [("default", "a")]


def test_so_is_one_that_the_kubelets_record_has_shown_served(stand: Stand) -> None:
    old, new = make_pod("a", asks(30, 8)), make_pod("a", asks(30, 8))
    stand.meet(old)
    stand.give(old)
    stand.reconcile()
    stand.pods.on_server[new.id.key] = new
    stand.show(old)
    assert stand.resolve().pod == new.id


def test_an_ended_pod_is_asked_for_once_and_only_if_nobody_else_can_be_asking(
    stand: Stand,
) -> None:
    over, asking = make_pod("o", asks(30, 8), terminal=True), make_pod("a", asks(30, 8))
    stand.meet(over, asking)
    stand.look()
    assert not stand.pods.fetched
    stand.record.hide(asking)
    stand.look()
    stand.look()
    assert stand.pods.fetched == [("default", "o")]


@pytest.mark.parametrize(
    "old",
    [make_pod("a"), make_pod("a", init(10, 2))],
    ids=["without a GPU", "an init container only"],
)
def test_a_name_that_comes_back_with_another_shape_is_asked_for(stand: Stand, old: PodView) -> None:
    """A StatefulSet whose template got a GPU; the watch is behind."""
    new = make_pod("a", *old.demand.containers, asks(30, 8))
    stand.meet(old)
    for container in old.demand.containers:
        hold(stand.ledger, old.id, container.name, CORE, ids("GPU-1", range(10)), kind=INIT)
        hold(stand.ledger, old.id, container.name, MEMORY, ids("GPU-1", range(2)), kind=INIT)
    stand.reconcile()
    stand.pods.on_server[new.id.key] = new
    stand.show(new)
    stand.record.hide(old)
    assert stand.resolve(10 if old.demand.containers else SIZE).pod == new.id
    assert new.id.key in stand.pods.fetched


# --- keeping the ledger ---------------------------------------------------------------


def test_so_is_one_whose_name_was_asked_for_a_moment_ago(stand: Stand) -> None:
    """Another pod has it by now, and a pod that only the kubelet knows could be asking as well."""
    asked: list[tuple[str, bool]] = []
    fetch = stand.pods.fetch

    def limited(
        namespace: str, name: str, *, within: float = 1.0, again: bool = False
    ) -> PodView | None:
        asked.append((name, again))
        known = stand.pods.cached.values()
        if any(each.id.name == name for each in known) and not again:
            return next(each for each in known if each.id.name == name)
        return fetch(namespace, name, within=within, again=again)

    stand.pods.fetch = limited  # type: ignore[method-assign]
    static, first = make_pod("static", asks(SIZE, 8)), make_pod("first", asks(SIZE, 8))
    stand.bind(first)
    stand.show(static, first)
    assert stand.resolve().pod == first.id  # so the static pod counts as rejected
    stand.give(first)
    stand.meet(make_pod("a", asks(90, 12)))
    new = make_pod("a", asks(SIZE, 8))
    stand.pods.on_server[new.id.key] = new
    assert stand.resolve().pod == new.id
    assert ("a", True) in asked


def test_pods_whose_holdings_the_record_changes_are_told_of(stand: Stand) -> None:
    found, gone = make_pod("a", asks(30, 8)), make_pod("b", asks(30, 8))
    stand.bind(found)
    hold(stand.ledger, gone.id, "main", CORE, ids("GPU-1", range(30)))
    stand.show(found)
    stand.give(found)
    stand.reconcile()
    assert stand.changed == [{found.id, gone.id}]
    stand.reconcile()
    assert stand.changed[1:] == [set()]


def test_what_was_assigned_between_two_lists_is_looked_at_in_the_next(stand: Stand) -> None:
    pod = stand.meet(make_pod("a", asks(30, 8)))
    stand.give(pod)
    assert stand.reconcile() == {pod.id}
    snapshot = stand.record.list(within=1)  # the same entries each time, as while nothing changes

    def reconcile() -> set[PodId]:
        with stand.lock:
            return {each.pod for each in stand.resolver.reconcile(snapshot).moving}

    assert reconcile() == {pod.id}
    assert reconcile() == set()
    stand.ledger.assign(
        ContainerRef(pod.id, "main"), INIT, CORE, Holding(HELD[CORE], Evidence.ORDER)
    )
    assert reconcile() == {pod.id}


def test_a_wrong_guess_is_told_and_the_guessed_pod_had_its_turn_if_it_was_there(
    stand: Stand,
) -> None:
    asked, guessed = make_pod("a", asks(30, 8), at=1), make_pod("g", asks(30, 8), at=2)
    stand.meet(asked, guessed)
    assert stand.resolve().pod == guessed.id
    for resource, held in HELD.items():
        hold(stand.ledger, guessed.id, "main", resource, held, evidence=Evidence.ORDER)
    stand.give(asked)
    later = stand.meet(make_pod("l", asks(30, 8), at=0))
    assert stand.resolve().pod == later.id
    assert [str(each.proven) for each in stand.decision_log.corrections] == [
        "default/a container main"
    ] * 2


@pytest.mark.parametrize("guessed", [True, False])
def test_a_pod_that_was_answered_and_shows_nothing_of_it_had_its_turn(
    stand: Stand, guessed: bool
) -> None:
    """Not if that was a guess: another may have been meant, so it is still there to ask."""
    lost = stand.meet(make_pod("x", asks(30, 8)))
    stand.answer(lost)
    evidence = Evidence.ORDER if guessed else Evidence.WITNESS
    hold(stand.ledger, lost.id, "main", CORE, HELD[CORE], evidence=evidence)
    stand.reconcile()
    assert stand.ledger.pod_refs(lost.id) == []
    other = stand.meet(make_pod("y", asks(30, 8), at=1))
    assert stand.resolve().pod == (lost.id if guessed else other.id)


def test_a_pod_that_leaves_the_list_may_have_another_turn(stand: Stand) -> None:
    rejected, other = make_pod("r", asks(30, 8), at=2), make_pod("o", asks(30, 8), at=1)
    stand.bind(rejected, other)
    stand.resolver.refuse(ContainerRef(rejected.id, "main"), certain=False)
    stand.resolver.refuse(None)
    stand.show(rejected, other)
    assert stand.resolve().pod == other.id
    stand.record.hide(rejected)
    stand.reconcile()
    stand.show(rejected)
    assert stand.resolve().pod == rejected.id


@pytest.mark.parametrize("holds", [False, True])
def test_a_pod_that_was_refused_is_never_the_one_again(stand: Stand, holds: bool) -> None:
    """Not even if nobody else can be asking, whatever it still holds (K21)."""
    refused = stand.meet(make_pod("r", asks(30, 8)))
    if holds:
        stand.record.give(refused, "main", MEMORY, HELD[MEMORY])
    stand.resolver.refuse(ContainerRef(refused.id, "main"))
    with pytest.raises(ResolutionError):
        stand.resolve()
    stand.record.hide(refused)
    stand.reconcile()
    stand.show(refused)
    with pytest.raises(ResolutionError):
        stand.resolve()


def test_a_pod_that_another_plugin_failed_is_over_once_a_newer_one_is_listed(stand: Stand) -> None:
    """We hear nothing of it, and an old List shows it with what it had got (K21)."""
    failed, asking = make_pod("f", asks(30, 8), at=2), make_pod("a", asks(30, 8), at=1)
    stand.bind(failed, asking)
    stand.show(failed)
    assert stand.resolve(8, resource=MEMORY).pod == failed.id
    stand.answer(failed)
    hold(stand.ledger, failed.id, "main", MEMORY, HELD[MEMORY])
    stand.record.give(failed, "main", MEMORY, HELD[MEMORY])
    stand.show(asking)
    for _ in range(2):
        assert stand.resolve() == Resolution(
            asking.id, asking.demand.containers[0], Evidence.WITNESS
        )


def test_a_pod_that_ends_is_no_rival_of_the_newer_one_that_is_being_admitted(stand: Stand) -> None:
    """A predecessor served it; ``List`` shows it without its devices before the API tells."""
    ending, first, asking = (make_pod(name, asks(30, 8)) for name in ("e", "f", "a"))
    stand.bind(ending, first, asking)
    stand.show(ending)
    stand.give(ending)
    stand.show(first)
    assert stand.resolve().pod == first.id
    stand.record.give(first, "main", CORE, ids("GPU-2", range(30)))
    stand.record.give(first, "main", MEMORY, ids("GPU-2", range(8)))
    stand.show(asking)
    assert stand.resolve(8, resource=MEMORY).pod == asking.id
    stand.answer(asking)
    hold(stand.ledger, asking.id, "main", MEMORY, ids("GPU-1", range(8)))
    stand.record.give(asking, "main", MEMORY, ids("GPU-1", range(8)))
    stand.show(ending)
    found = stand.resolve()
    assert found == Resolution(asking.id, asking.demand.containers[0], Evidence.WITNESS)
    assert found.rivals == ()


def test_a_kubelet_that_comes_anew_tries_every_pod_again(stand: Stand) -> None:
    rejected, other = make_pod("r", asks(30, 8), at=2), make_pod("o", asks(30, 8), at=1)
    stand.meet(rejected, other)
    stand.resolver.refuse(ContainerRef(rejected.id, "main"))
    stand.answer(other)
    with stand.lock:
        stand.resolver.forget_kubelet()
    assert stand.resolve().pod == rejected.id


# --- who is asking --------------------------------------------------------------------


def test_places_that_are_named_must_be_free_but_for_what_init_containers_left(
    stand: Stand,
) -> None:
    pod, other = make_pod("a", init(40, 8), asks(30, 8)), make_pod("b", asks(30, 8))
    stand.meet(pod, other)
    stand.record.give(other, "main", CORE, ids("GPU-1", range(30)))
    stand.record.give(other, "main", MEMORY, ids("GPU-1", range(8)))
    hold(stand.ledger, pod.id, "init", CORE, ids("GPU-0", range(40)), kind=INIT)
    hold(stand.ledger, pod.id, "init", MEMORY, ids("GPU-0", range(8)), kind=INIT)
    resolution = stand.resolve(named=ids("GPU-0", range(30)))
    assert (resolution.pod, resolution.container.name) == (pod.id, "main")
    with pytest.raises(GrantError) as refused:
        stand.resolve(named=[*ids("GPU-0", range(29)), "GPU-1::3"])
    assert str(refused.value) == "1 places of core are held by another container: GPU-1::3"


def test_places_of_two_pods_are_not_named_together(stand: Stand) -> None:
    pods = [make_pod(name, init(30, 8), asks(10, 2)) for name in "ba"]
    stand.meet(*pods)
    for index, pod in enumerate(pods):
        hold(stand.ledger, pod.id, "init", CORE, ids(f"GPU-{index}", range(30)), kind=INIT)
    with pytest.raises(GrantError) as refused:
        stand.resolve(10, named=["GPU-0::1", "GPU-1::1"])
    assert str(refused.value) == (
        "places of core of 2 pods were named together: default/a, default/b"
    )


def test_a_pod_that_list_does_not_show_is_found_by_the_line_and_that_is_told(
    stand: Stand,
) -> None:
    first, second = make_pod("a", asks(30, 8), at=1), make_pod("b", asks(30, 8), at=2)
    shown = make_pod("s", asks(30, 8), at=0)
    ended = make_pod("e", asks(30, 8), at=0, terminal=True)
    stand.bind(first, second, shown, ended)
    stand.show(shown)
    stand.give(shown)
    assert stand.resolve() == Resolution(first.id, first.demand.containers[0], Evidence.ORDER)
    assert stand.decision_log.blinds == [
        "PodResources: List does not show the pod that is being admitted"
    ]


def test_an_init_container_that_a_kubelet_serves_once_more_is_found(stand: Stand) -> None:
    """It died before it wrote down what it had given, and hands on the same places again."""
    pod = stand.meet(make_pod("a", init(30, 8, "i0"), init(20, 4, "i1"), asks(10, 2)))
    for name, cores in (("i0", 30), ("i1", 20)):
        hold(stand.ledger, pod.id, name, CORE, ids("GPU-0", range(cores)), kind=INIT)
        hold(stand.ledger, pod.id, name, MEMORY, ids("GPU-0", range(4)), kind=INIT)
    resolution = stand.resolve(20, named=ids("GPU-0", range(20)))
    assert resolution == Resolution(pod.id, pod.demand.containers[1], Evidence.WITNESS)


def test_while_a_listed_pod_waits_nobody_else_is_asking(stand: Stand) -> None:
    listed, other = make_pod("a", asks(30, 8)), make_pod("b", asks(50, 8))
    stand.bind(listed, other)
    stand.show(listed)
    with pytest.raises(ResolutionError):
        stand.resolve(50)


# --- without a witness ----------------------------------------------------------------


def test_blind_what_the_kubelet_offers_of_gone_pods_is_free_and_nothing_else(stand: Stand) -> None:
    """What it does not offer, a pod deleted by force may still hold (K20)."""
    live, ended, gone = (make_pod(name, asks(30, 8)) for name in ("l", "e", "g"))
    known = make_pod("n", asks(30, 8))
    asking = make_pod("a", asks(30, 8))
    stand.bind(live, replace(ended, terminal=True), known, asking)
    nameless = [PodId("default", name, "") for name in ("n", "m")]
    for number, pod in enumerate([live.id, ended.id, gone.id, *nameless]):
        hold(stand.ledger, pod, "main", CORE, ids(f"GPU-{number}", range(30)))
        hold(stand.ledger, pod, "main", MEMORY, ids(f"GPU-{number}", range(8)))
    stand.record.away = "hanging"
    stand.resolve()
    assert len([*stand.ledger.refs()]) == 5
    offered = frozenset((CORE, each) for number in (1, 2, 4) for each in ids(f"GPU-{number}", [5]))
    stand.resolve(context=CallContext(None, offered))
    assert {ref.pod for ref, _, _ in stand.ledger.refs()} == {live.id, known.id}


def test_blind_an_annotation_is_doubted_when_nobody_else_can_be_asking(stand: Stand) -> None:
    """It was copied with a manifest from a running pod; the webhook was away."""
    copied = make_pod(
        "a", asks(30, 8), annotated={"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    )
    stand.bind(copied)
    stand.record.away = "hanging"
    assert stand.resolve().pod == copied.id
    other = make_pod("b", asks(30, 8))
    stand.bind(other)
    assert stand.resolve().pod == other.id


# --- a guess that the next call shows to be wrong -------------------------------------


@pytest.fixture
def guessed(stand: Stand) -> PodView:
    """A pod to which, blindly, the cores of another one were assigned in the call before."""
    pod = make_pod("g", asks(30, 8), at=1)
    stand.bind(pod)
    stand.record.away = "hanging"
    hold(stand.ledger, pod.id, "main", CORE, HELD[CORE], evidence=Evidence.ORDER)
    stand.answer(pod)
    return pod


def test_blind_a_call_that_the_guessed_container_cannot_make_corrects_the_guess(
    stand: Stand, guessed: PodView
) -> None:
    """A container's two resources are asked for one after the other (K1)."""
    served = make_pod("s", asks(30, 4), at=2)
    hold(stand.ledger, served.id, "main", CORE, ids("GPU-1", range(30)))
    hold(stand.ledger, served.id, "main", MEMORY, ids("GPU-1", range(4)))
    other, meant, late = (
        make_pod(name, init(5, 1), asks(cores, 4), at=at)
        for name, cores, at in [("o", 20, 3), ("m", 30, 4), ("l", 30, 5)]
    )
    ended = make_pod("e", asks(30, 4), at=0, terminal=True)
    stand.bind(served, other, late, meant, ended)
    for resource in (CORE, MEMORY):
        hold(stand.ledger, meant.id, "init", resource, ids("GPU-2", range(5)), kind=INIT)
    resolution = stand.resolve(4, resource=MEMORY)
    assert (resolution.pod, resolution.container.name) == (meant.id, "main")
    assert stand.ledger.holding(ContainerRef(guessed.id, "main"), CORE) is None
    assert stand.ledger.holding(ContainerRef(meant.id, "main"), CORE) == Holding(
        HELD[CORE], Evidence.ORDER
    )
    assert [
        (each.resource, each.guessed, each.proven) for each in stand.decision_log.corrections
    ] == [(CORE, ContainerRef(guessed.id, "main"), ContainerRef(meant.id, "main"))]


@pytest.mark.parametrize("why", ["it asks", "has both", "nobody else", "unknown", "kubelet anew"])
def test_blind_a_guess_that_nothing_contradicts_stays(
    stand: Stand, guessed: PodView, why: str
) -> None:
    size = 8 if why == "it asks" else 4
    other = make_pod("o", asks(20 if why == "nobody else" else 30, 4), at=2)
    stand.bind(other)
    if why == "has both":
        hold(stand.ledger, guessed.id, "main", MEMORY, HELD[MEMORY], evidence=Evidence.ORDER)
    if why == "unknown":
        stand.answer(guessed, "another")
    if why == "kubelet anew":
        with stand.lock:
            stand.resolver.forget_kubelet()
    assert stand.resolve(size, resource=MEMORY).pod == (
        guessed.id if why == "it asks" else other.id
    )
    assert stand.ledger.holding(ContainerRef(guessed.id, "main"), CORE) is not None
    assert stand.decision_log.corrections == []


# --- what the API has told too late -----------------------------------------------------


def test_a_pod_of_the_same_name_with_other_sizes_is_read_before_a_call_is_refused(
    stand: Stand,
) -> None:
    """The watch still shows the one before, which could be asking, but not for this."""
    old, new = make_pod("a", asks(50, 8)), make_pod("a", asks(30, 8))
    stand.bind(old)
    stand.pods.on_server[new.id.key] = new
    stand.show(new)
    assert stand.resolve() == Resolution(new.id, new.demand.containers[0], Evidence.WITNESS)


def test_names_that_were_served_while_the_api_was_away_get_their_uids_with_the_next_views(
    stand: Stand,
) -> None:
    """No call of the kubelet has to come."""
    pod, other = make_pod("a", asks(30, 8)), make_pod("b", asks(30, 8))
    stand.show(pod)
    stand.give(pod)
    stand.show(other)
    for resource, held in ((CORE, ids("GPU-1", range(30))), (MEMORY, ids("GPU-1", range(8)))):
        stand.record.give(other, "main", resource, held)
    stand.record.entries = {
        PodId(*each.key, ""): held for each, held in stand.record.entries.items()
    }
    stand.reconcile()
    assert {each.pod.uid for each, _, _ in stand.ledger.refs()} == {""}
    stand.bind(pod, replace(other, demand=make_pod("b", asks(99, 9)).demand))
    with stand.lock:
        stand.resolver.update()
    assert {each.pod for each, _, _ in stand.ledger.refs()} == {
        pod.id,
        PodId("default", "b", ""),  # the one of this name that the API shows is another
    }
    assert stand.resolver.gone() == []  # which of the two lives nobody can tell


def test_what_a_rejected_pods_init_container_was_answered_is_free_for_the_next_pod(
    stand: Stand,
) -> None:
    """List shows none of it (K4); that the container after it is gone from List tells (K8)."""
    rejected = stand.meet(make_pod("a", asks(20, 4, name="i", kind=INIT), asks(30, 8)))
    init = hold(stand.ledger, rejected.id, "i", CORE, ids("GPU-1", range(20)), kind=INIT)
    hold(stand.ledger, rejected.id, "main", CORE, HELD[CORE])
    stand.answer(rejected)
    following = stand.meet(make_pod("b", asks(30, 8)))
    assert stand.resolve().pod == following.id
    assert stand.ledger.holding(init, CORE) is None


def test_a_guess_that_list_does_not_show_is_an_init_containers_that_asks_for_the_rest(
    stand: Stand,
) -> None:
    """Its places stay where they are: the other resource has to be on the same card."""
    guessed = make_pod("a", asks(20, 8))
    asking = make_pod("b", asks(30, 8, name="i", kind=INIT), asks(5, 1))
    stand.meet(guessed, asking)
    assert {each.pod for each in both(stand.resolve(8, resource=MEMORY))} == {
        guessed.id,
        asking.id,
    }
    hold(stand.ledger, guessed.id, "main", MEMORY, HELD[MEMORY], evidence=Evidence.ORDER)
    stand.answer(guessed)
    found = stand.resolve()
    assert (found.pod, found.container.name) == (asking.id, "i")
    held = stand.ledger.holding(ContainerRef(asking.id, "i"), MEMORY)
    assert held is not None
    assert held.ids == HELD[MEMORY]


def both(found: Resolution) -> list[Resolution]:
    """The likeliest and the others."""
    return [found, *found.rivals]


def test_whom_the_record_shows_with_what_another_was_guessed_to_have_is_being_admitted(
    stand: Stand,
) -> None:
    """Only the kubelet knows it: the guess was that it was rejected."""
    guessed, static = make_pod("a", asks(30, 8, name="i", kind=INIT), asks(5, 1)), make_pod("s")
    stand.bind(guessed)
    stand.show(guessed, static)
    stand.resolve()
    hold(stand.ledger, guessed.id, "i", CORE, HELD[CORE], kind=INIT, evidence=Evidence.ORDER)
    stand.answer(guessed, "i")
    stand.record.give(static, "main", CORE, HELD[CORE])
    found = stand.resolve(8, resource=MEMORY)
    assert (found.pod.name, found.evidence) == ("s", Evidence.ORDER)


def test_what_was_guessed_to_be_a_pods_that_asks_for_something_else_is_free_once_the_api_tells(
    stand: Stand,
) -> None:
    stand.bind(make_pod("a", asks(30, 8)))
    guess = hold(
        stand.ledger,
        PodId("default", "a", ""),
        "main",
        CORE,
        ids("GPU-1", range(7)),
        evidence=Evidence.ORDER,
    )
    with stand.lock:
        stand.resolver.update()
    assert stand.ledger.holding(guess, CORE) is None


def test_what_an_init_container_was_given_in_the_name_of_a_pod_before_it_is_its_own(
    stand: Stand,
) -> None:
    """The watch was behind; its other resource has to come from the same card."""
    old, new = (
        make_pod("a", asks(30, 8, name="i", kind=INIT), asks(cores, 1)) for cores in (50, 20)
    )
    stand.bind(old)
    stand.show(new)
    assert stand.resolve(8, resource=MEMORY).pod == old.id
    hold(stand.ledger, old.id, "i", MEMORY, HELD[MEMORY], kind=INIT)
    stand.answer(old, "i")
    stand.pods.remove(old)
    stand.bind(new)
    assert stand.resolve().pod == new.id
    held = stand.ledger.holding(ContainerRef(new.id, "i"), MEMORY)
    assert held is not None
    assert held.ids == HELD[MEMORY]

"""Which container is asking; docs/kubelet-facts.md has the facts K1 to K8."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import MatchedPod
from agent.allocator.resolver.resolve import Ask, Past, Resolution, Served, next_containers, resolve
from agent.errors import ResolutionError
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerDemand, ContainerKind, Demand
from contract.resource import Resource, count_of
from tests.agent.builders import (
    CORE,
    INIT,
    MAIN,
    MEMORY,
    SIDECAR,
    container,
    identified,
    ids,
    listed,
    patient,
    pod_id,
    view,
)

Got = tuple[str, str, Resource]
"""Pod name, container name, resource."""

SOME = ids("GPU-0", range(50))
MORE = ids("GPU-0", range(50, 100))
BLOCKS = ids("GPU-0", range(4))


def _served(*got: Got) -> Served:
    """The agent's own record: exactly these got their places."""
    return lambda pod, name, resource: (pod.name, name, resource) in got


def _resolve(
    ask: Ask,
    views: Sequence[PodView],
    entries: Sequence[MatchedPod] | None = None,
    *,
    got: Collection[Got] = (),
    passed: Collection[PodId] = (),
    over: Collection[PodId] = (),
    refused: Collection[PodId] = (),
    newcomers: Collection[PodId] = (),
    found: Collection[PodId] = (),
) -> tuple[str, str, Evidence]:
    answer = resolve(
        ask,
        views=views,
        served=_served(*got),
        listed=entries,
        past=Past(
            passed=frozenset(passed),
            over=frozenset(over),
            refused=frozenset(refused),
            newcomers=frozenset(newcomers),
            found=frozenset(found),
        ),
    )
    return answer.pod.name, answer.container.name, answer.evidence


def _refusal(
    ask: Ask,
    views: Sequence[PodView],
    entries: Sequence[MatchedPod] | None = None,
    got: Collection[Got] = (),
) -> str:
    with pytest.raises(ResolutionError) as caught:
        resolve(ask, views=views, served=_served(*got), listed=entries)
    return str(caught.value)


# --- witness -------------------------------------------------------------------------


def test_the_one_pod_that_lacks_is_asking() -> None:
    done, asking = view("a"), view("b")
    entries = [
        identified(done, listed("a", c0={CORE: SOME, MEMORY: BLOCKS})),
        identified(asking, listed("b", c0=None)),
    ]
    assert _resolve(Ask(CORE, 50), [done, asking], entries) == ("b", "c0", Evidence.WITNESS)


def test_a_pod_the_kubelet_has_not_come_to_is_not_listed_and_not_asking() -> None:
    first_in_line, asking = view("a", at=1), view("b", at=2)
    entries = [identified(asking, listed("b", c0=None))]
    assert _resolve(Ask(CORE, 50), [first_in_line, asking], entries) == (
        "b",
        "c0",
        Evidence.WITNESS,
    )


def test_the_containers_of_a_pod_come_in_order() -> None:
    pod = view("p", container("c0"), container("c1"), container("c2"))
    got = {CORE: SOME, MEMORY: BLOCKS}
    assert _resolve(Ask(CORE, 50), [pod], [identified(pod, listed("p", c0=got, c1=None))]) == (
        "p",
        "c1",
        Evidence.WITNESS,
    )


@pytest.mark.parametrize(
    ("first", "asked", "size"), [(CORE, MEMORY, 4), (MEMORY, CORE, 50)], ids=str
)
def test_a_containers_resources_come_in_any_order(
    first: Resource, asked: Resource, size: int
) -> None:
    pod = view("p", container("c0"), container("c1"))
    entries = [identified(pod, listed("p", c0={first: BLOCKS}, c1=None))]
    assert _resolve(Ask(asked, size), [pod], entries) == ("p", "c0", Evidence.WITNESS)


def test_what_the_agent_believes_does_not_count_where_the_kubelet_can_speak() -> None:
    """An Allocate whose pod was rejected afterwards, or a wrong guess: List knows better."""
    pod = view("p", container("c0"), container("c1"))
    entries = [identified(pod, listed("p", c0=None, c1=None))]
    got = [("p", "c0", CORE), ("p", "c0", MEMORY)]
    assert _resolve(Ask(CORE, 50), [pod], entries, got=got) == ("p", "c0", Evidence.WITNESS)


def test_a_sidecar_is_listed_and_counts_like_any_container() -> None:
    pod = view("p", container("side", kind=SIDECAR), container("c0"))
    empty, served = listed("p", side=None, c0=None), listed("p", side={CORE: SOME, MEMORY: BLOCKS})
    assert _resolve(Ask(CORE, 50), [pod], [identified(pod, empty)])[1] == "side"
    assert _resolve(Ask(CORE, 50), [pod], [identified(pod, served)])[1] == "c0"


def test_a_terminal_pod_that_is_still_listed_is_not_asking() -> None:
    failed, asking = view("a", terminal=True), view("b")
    entries = [
        identified(failed, listed("a", c0=None)),
        identified(asking, listed("b", c0=None)),
    ]
    assert _resolve(Ask(CORE, 50), [failed, asking], entries) == ("b", "c0", Evidence.WITNESS)


def test_a_pod_of_another_size_is_not_asking() -> None:
    small, large = view("a", container("c0", 10, 4)), view("b", container("c0", 50, 4))
    entries = [identified(each, listed(each.id.name, c0=None)) for each in (small, large)]
    assert _resolve(Ask(CORE, 50), [small, large], entries) == ("b", "c0", Evidence.WITNESS)


def test_whole_cards_without_memory_are_asked_for_once() -> None:
    pod = view("p", container("c0", 100, 0), container("c1"))
    entries = [identified(pod, listed("p", c0={CORE: SOME | MORE}, c1=None))]
    assert _resolve(Ask(CORE, 50), [pod], entries) == ("p", "c1", Evidence.WITNESS)
    assert _resolve(Ask(MEMORY, 4), [pod], entries) == ("p", "c1", Evidence.WITNESS)


# --- K8: List keeps rejected pods ----------------------------------------------------


def test_pods_that_had_their_turn_are_left_out() -> None:
    rejected, asking = view("a", at=1), view("b", at=2)
    entries = [identified(each, listed(each.id.name, c0=None)) for each in (rejected, asking)]
    assert _resolve(Ask(CORE, 50), [rejected, asking], entries, passed=[rejected.id]) == (
        "b",
        "c0",
        Evidence.WITNESS,
    )


def test_of_several_that_lack_the_newest_is_asking_and_the_evidence_says_that_it_was_order() -> (
    None
):
    """A pod is listed when its turn comes: the older ones were rejected (K8)."""
    one, other = view("a", at=2), view("b", at=1)
    entries = [identified(each, listed(each.id.name, c0=None)) for each in (one, other)]
    assert _resolve(Ask(CORE, 50), [one, other], entries) == ("a", "c0", Evidence.ORDER)


def test_without_a_witness_the_first_in_line_is_asking() -> None:
    one, other = view("a", at=2), view("b", at=1)
    assert _resolve(Ask(CORE, 50), [one, other], None) == ("b", "c0", Evidence.ORDER)


def test_when_all_had_their_turn_one_of_them_is_asking_all_the_same() -> None:
    """A wrong guess may have put the pod that is really asking among those passed over."""
    one, other = view("a", at=2), view("b", at=1)
    entries = [identified(each, listed(each.id.name, c0=None)) for each in (one, other)]
    passed = [one.id, other.id]
    assert _resolve(Ask(CORE, 50), [one, other], entries, passed=passed) == (
        "a",
        "c0",
        Evidence.ORDER,
    )
    assert _resolve(Ask(CORE, 50), [one], entries[:1], passed=passed)[2] is Evidence.WITNESS


def test_a_pod_that_holds_something_and_lacks_the_rest_is_being_admitted_right_now() -> None:
    first_in_line, begun = view("a", at=1), view("b", at=2)
    entries = [
        identified(first_in_line, listed("a", c0=None)),
        identified(begun, listed("b", c0={CORE: SOME})),
    ]
    ask, views = Ask(MEMORY, 4), [first_in_line, begun]
    assert _resolve(ask, views, entries, passed=[first_in_line.id]) == (
        "b",
        "c0",
        Evidence.WITNESS,
    )
    assert _resolve(ask, views, entries) == ("b", "c0", Evidence.ORDER)
    assert _resolve(ask, views, entries, passed=[begun.id])[0] == "b"


def test_once_a_newer_pod_is_listed_one_that_had_begun_is_over() -> None:
    """The kubelet lists a pod when it begins to admit it, and admits one at a time (K1, K3)."""
    begun, newer = view("b", at=2), view("a", at=1)
    entries = [
        identified(begun, listed("b", c0={CORE: SOME})),
        identified(newer, listed("a", c0=None)),
    ]
    ask, views = Ask(MEMORY, 4), [begun, newer]
    found = _resolve(ask, views, entries, newcomers=[newer.id])
    assert found == ("a", "c0", Evidence.WITNESS)
    found = _resolve(ask, views, entries, over=[begun.id])
    assert found == ("a", "c0", Evidence.WITNESS)


def test_a_newer_pod_that_cannot_be_asking_leaves_it_to_the_others() -> None:
    begun, newer = view("b", at=2), view("a", container("c0", 10, 1), at=1)
    entries = [
        identified(begun, listed("b", c0={CORE: SOME})),
        identified(newer, listed("a", c0=None)),
    ]
    found = _resolve(Ask(MEMORY, 4), [begun, newer], entries, newcomers=[newer.id])
    assert found == ("b", "c0", Evidence.WITNESS)


def test_a_pod_that_was_refused_is_not_asking_whatever_it_holds() -> None:
    refused, other = view("r", at=1), view("o", at=2)
    entries = [
        identified(refused, listed("r", c0={CORE: SOME})),
        identified(other, listed("o", c0=None)),
    ]
    ask, views = Ask(MEMORY, 4), [refused, other]
    found = _resolve(ask, views, entries, refused=[refused.id], passed=[other.id])
    assert found == ("o", "c0", Evidence.WITNESS)


def test_of_several_that_may_be_asking_the_others_are_told() -> None:
    pods = [view("a", at=1), view("b", at=2), view("c", at=3)]
    entries = [identified(each, listed(each.id.name, c0=None)) for each in pods]
    found = resolve(Ask(CORE, 50), views=pods, served=_served(), listed=entries)
    assert [each.pod.name for each in (found, *found.rivals)] == ["c", "b", "a"]
    blind = resolve(Ask(CORE, 50), views=pods, served=_served(), listed=None)
    assert [each.pod.name for each in (blind, *blind.rivals)] == ["a", "b", "c"]


@patient
@given(data=st.data())
def test_whoever_is_named_asks_for_it_and_is_not_refused_and_a_newcomer_goes_first(
    data: st.DataObject,
) -> None:
    """In any state of List, of refusals, of pods that had their turn and of newcomers."""
    sizes = st.sampled_from([10, 50])
    pods = [view(f"p{each}", container("c0", data.draw(sizes), 4), at=each) for each in range(4)]
    some = st.sets(st.sampled_from([each.id for each in pods]), max_size=3)
    entries = []
    for pod in pods:
        held = data.draw(st.sampled_from([{}, {CORE: SOME}, {MEMORY: BLOCKS}]))
        entries.append(identified(pod, listed(pod.id.name, c0=held)))
    passed, over, refused, newcomers = (frozenset(data.draw(some)) for _ in range(4))
    ask = Ask(CORE, 50)
    can = {
        each.pod
        for each in entries
        if each.view is not None
        and each.view.demand.containers[0].demand.cores == 50
        and not each.listed.held("c0", CORE)
        and each.pod not in refused
    }
    try:
        found = resolve(
            ask,
            views=pods,
            served=_served(),
            listed=entries,
            past=Past(passed, over, refused, newcomers),
        )
    except ResolutionError:
        assert not can
        return
    named = {found.pod, *(each.pod for each in found.rivals)}
    assert named <= can
    assert (found.evidence is Evidence.WITNESS) == (len(named) == 1)
    if can & newcomers:
        assert named <= newcomers


def test_a_pod_whose_record_is_complete_is_not_waiting_for_its_init_containers() -> None:
    """An agent that has restarted has no record of init containers, and List omits them (K4)."""
    recorded = {name: Allocation(("GPU-0",), 50, 4, Evidence.WITNESS) for name in ("init", "c0")}
    running = view("a", container("init", kind=INIT), container("c0"), at=1, recorded=recorded)
    asking = view("b", at=2)
    entries = [
        identified(running, listed("a", c0={CORE: SOME, MEMORY: BLOCKS})),
        identified(asking, listed("b", c0=None)),
    ]
    assert _resolve(Ask(CORE, 50), [running, asking], entries)[0] == "b"


# --- K4, K7: init containers ---------------------------------------------------------


def test_an_init_container_comes_before_the_listed_ones() -> None:
    pod = view("p", container("init", 50, 4, kind=INIT), container("c0", 50, 4))
    entries = [identified(pod, listed("p", c0=None))]
    assert _resolve(Ask(CORE, 50), [pod], entries) == ("p", "init", Evidence.WITNESS)


def test_of_an_init_container_the_agents_own_record_speaks() -> None:
    pod = view("p", container("init", 50, 4, kind=INIT), container("c0", 50, 4))
    entries = [identified(pod, listed("p", c0=None))]
    got = [("p", "init", CORE), ("p", "init", MEMORY)]
    assert _resolve(Ask(CORE, 50), [pod], entries, got=got[1:])[1] == "init"
    assert _resolve(Ask(MEMORY, 4), [pod], entries, got=got[:1])[1] == "init"
    assert _resolve(Ask(CORE, 50), [pod], entries, got=got)[1] == "c0"


def test_an_init_container_without_a_record_may_have_been_served_before_the_agent_started() -> None:
    pod = view("p", container("init", 30, 2, kind=INIT), container("c0", 50, 4))
    entries = [identified(pod, listed("p", c0=None))]
    assert _resolve(Ask(CORE, 50), [pod], entries) == ("p", "c0", Evidence.WITNESS)
    assert _resolve(Ask(CORE, 30), [pod], entries) == ("p", "init", Evidence.WITNESS)


def test_of_a_pod_found_at_the_start_any_container_behind_its_init_container_may_be_asking() -> (
    None
):
    pod = view("p", container("init", 50, 2, kind=INIT), container("c0", 50, 4))
    entries = [identified(pod, listed("p", c0=None))]
    found = [pod.id]
    assert _resolve(Ask(CORE, 50), [pod], entries) == ("p", "init", Evidence.WITNESS)
    assert _resolve(Ask(CORE, 50), [pod], entries, found=found) == ("p", "init", Evidence.ORDER)
    assert _resolve(Ask(MEMORY, 4), [pod], entries, found=found) == ("p", "c0", Evidence.WITNESS)
    got = [("p", "init", CORE), ("p", "init", MEMORY)]
    assert _resolve(Ask(CORE, 50), [pod], entries, got=got, found=found) == (
        "p",
        "c0",
        Evidence.WITNESS,
    )


def test_init_containers_are_not_asking_once_a_later_container_holds_something() -> None:
    pod = view("p", container("init", 30, 4, kind=INIT), container("c0", 50, 4))
    entries = [identified(pod, listed("p", c0={CORE: SOME}))]
    assert _refusal(Ask(CORE, 30), [pod], entries)
    assert _resolve(Ask(MEMORY, 4), [pod], entries)[1] == "c0"


def test_places_to_be_handed_on_name_their_pod() -> None:
    first_in_line, owner = view("a", at=1), view("b", at=2)
    entries = [identified(each, listed(each.id.name, c0=None)) for each in (first_in_line, owner)]
    ask = Ask(CORE, 50, owner.id)
    assert _resolve(ask, [first_in_line, owner], entries) == ("b", "c0", Evidence.WITNESS)
    assert _resolve(ask, [first_in_line, owner]) == ("b", "c0", Evidence.ORDER)


# --- order: no witness ---------------------------------------------------------------


def test_without_a_witness_the_first_in_line_is_asking_and_the_evidence_says_so() -> None:
    pods = [view("a", at=2), view("b", at=1), view("c", at=3)]
    assert _resolve(Ask(CORE, 50), pods) == ("b", "c0", Evidence.ORDER)


def test_without_a_witness_even_a_single_pod_is_order() -> None:
    assert _resolve(Ask(CORE, 50), [view("a")])[2] is Evidence.ORDER


def test_a_pod_in_progress_goes_first() -> None:
    pods = [view("a", at=1), view("b", container("c0"), container("c1"), at=2)]
    assert _resolve(Ask(MEMORY, 4), pods, got=[("b", "c0", CORE)])[:2] == ("b", "c0")
    got = [("b", "c0", CORE), ("b", "c0", MEMORY)]
    assert _resolve(Ask(CORE, 50), pods, got=got)[:2] == ("b", "c1")


def test_a_size_that_contradicts_the_pod_in_progress_goes_to_another() -> None:
    pods = [view("a", container("c0", 50, 4), at=1), view("b", container("c0", 10, 8), at=2)]
    assert _resolve(Ask(CORE, 50), pods, got=[("b", "c0", MEMORY)])[:2] == ("a", "c0")


@pytest.mark.parametrize("what", ["terminal", "served", "recorded"])
def test_who_is_not_waiting_is_not_asking(what: str) -> None:
    record = {"c0": Allocation(("GPU-0",), 50, 4, Evidence.WITNESS)}
    first = view(
        "a", at=1, terminal=what == "terminal", recorded=record if what == "recorded" else None
    )
    got = [("a", "c0", CORE), ("a", "c0", MEMORY)] if what == "served" else []
    assert _resolve(Ask(CORE, 50), [first, view("b", at=2)], got=got)[0] == "b"


def test_order_is_bind_then_admission_then_creation_then_uid() -> None:
    in_line = [
        view("h", at=1, bound="1", admitted="1", created=1, uid="1"),
        view("g", at=1, bound="1", admitted="1", created=1, uid="2"),
        view("f", at=1, bound="1", admitted="1", created=2, uid="1"),
        view("e", at=1, bound="1", admitted="2", created=1, uid="1"),
        view("d", at=1, bound="2", admitted="1", created=1, uid="1"),
        view("c", at=2, bound="1", admitted="1", created=1, uid="1"),
    ]
    for place, first in enumerate(in_line):
        left = in_line[place:]
        assert _resolve(Ask(CORE, 50), left[::-1])[0] == first.id.name


def test_pods_alike_in_everything_but_their_name_are_taken_by_name() -> None:
    pods = [view("b", uid=""), view("a", uid="")]
    assert _resolve(Ask(CORE, 50), pods)[0] == "a"
    assert _resolve(Ask(CORE, 50), pods[::-1])[0] == "a"


# --- pods only the kubelet knows -----------------------------------------------------


def test_a_known_pod_that_fits_goes_before_one_only_the_kubelet_knows_but_may_not_be_it() -> None:
    known, unknown = view("b", at=9), pod_id("a", "")
    entries = [
        identified(unknown, listed("a", c0=None)),
        identified(known, listed("b", c0=None)),
    ]
    ask = Ask(CORE, 50)
    assert _resolve(ask, [known], entries) == ("b", "c0", Evidence.ORDER)
    it = ("b", "c0", Evidence.WITNESS)
    assert _resolve(ask, [known], entries, passed=[unknown]) == it
    assert _resolve(ask, [known], entries, over=[unknown]) == it
    assert _resolve(ask, [known], entries, newcomers=[known.id]) == it


def test_a_known_pod_that_has_begun_may_have_been_rejected_before_an_unknown_one_came() -> None:
    known = view("b", at=9)
    entries = [
        identified(pod_id("a", ""), listed("a", c0=None)),
        identified(known, listed("b", c0={CORE: SOME})),
    ]
    assert _resolve(Ask(MEMORY, 4), [known], entries) == ("b", "c0", Evidence.ORDER)


def test_a_pod_only_the_kubelet_knows_is_asking_when_no_known_pod_fits() -> None:
    known = view("b", container("c0", 10, 4))
    entries = [
        identified(pod_id("a", ""), listed("a", c0=None)),
        identified(known, listed("b", c0=None)),
    ]
    found = resolve(Ask(CORE, 50), views=[known], served=_served(), listed=entries)
    assert found == Resolution(
        pod_id("a", ""), ContainerDemand("c0", MAIN, 0, Demand(50, 1)), Evidence.ORDER
    )


def test_of_an_unknown_pod_the_container_that_has_begun_is_asking() -> None:
    entry = listed("a", c0=None, c1={MEMORY: BLOCKS}, c2=None)
    entries = [identified(pod_id("a", ""), entry)]
    found = resolve(Ask(CORE, 50), views=[], served=_served(), listed=entries)
    assert found.container == ContainerDemand("c1", MAIN, 0, Demand(50, 4))


def test_of_an_unknown_pod_the_first_container_with_nothing_is_asking() -> None:
    entry = listed("a", c0={CORE: SOME, MEMORY: BLOCKS}, c1=None, c2=None)
    entries = [identified(pod_id("a", ""), entry)]
    assert _resolve(Ask(CORE, 30), [], entries) == ("a", "c1", Evidence.ORDER)


def test_memory_asked_for_first_by_an_unknown_pod_is_seated_as_a_shares() -> None:
    entries = [identified(pod_id("a", ""), listed("a", c0=None))]
    found = resolve(Ask(MEMORY, 4), views=[], served=_served(), listed=entries)
    assert found.container.demand == Demand(1, 4)


def test_an_unknown_pod_that_has_everything_is_not_asking() -> None:
    entries = [identified(pod_id("a", ""), listed("a", c0={CORE: SOME, MEMORY: BLOCKS}))]
    assert _refusal(Ask(CORE, 50), [], entries) == (
        "50 places of core were asked for, but no waiting container asks for that; waiting: none"
    )


def test_places_of_an_unknown_pods_own_are_asked_for_by_it_alone() -> None:
    entries = [identified(pod_id(name, ""), listed(name, c0=None)) for name in ("a", "b")]
    assert _resolve(Ask(CORE, 50, pod_id("b", "")), [], entries)[0] == "b"


# --- nothing fits --------------------------------------------------------------------


def test_a_refusal_says_what_was_asked_for_and_what_waits() -> None:
    pods = [
        view("b", container("c0", 10, 4)),
        view("a", container("init", 20, 1, kind=INIT), container("c0", 30, 2)),
        view("done", terminal=True),
    ]
    expected = (
        "50 places of core were asked for, but no waiting container asks for that; waiting: "
        "default/a container c0 (cores 30, memory 2); "
        "default/a container init (cores 20, memory 1); "
        "default/b container c0 (cores 10, memory 4)"
    )
    assert _refusal(Ask(CORE, 50), pods) == expected
    entries = [identified(each, listed(each.id.name, c0=None)) for each in pods]
    assert _refusal(Ask(CORE, 50), pods, entries) == expected


def test_a_refusal_names_five_and_counts_the_rest() -> None:
    pods = [view(f"p{place}", container("c0", 10, 4)) for place in range(7)]
    assert _refusal(Ask(MEMORY, 50), pods) == (
        "50 places of memory were asked for, but no waiting container asks for that; waiting: "
        + "; ".join(f"default/p{place} container c0 (cores 10, memory 4)" for place in range(5))
        + " and 2 more"
    )


def test_a_refusal_where_nobody_waits_says_none() -> None:
    assert _refusal(Ask(MEMORY, 1), []) == (
        "1 places of memory were asked for, but no waiting container asks for that; waiting: none"
    )


# --- which containers may come next --------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "got", "expected"),
    [
        ([MAIN], [], ["0"]),
        ([MAIN, MAIN], [], ["0"]),
        ([MAIN, MAIN], [("0", CORE)], ["0"]),
        ([MAIN, MAIN], [("0", CORE), ("0", MEMORY)], ["1"]),
        ([MAIN, MAIN], [("1", CORE)], ["1"]),
        ([MAIN], [("0", CORE), ("0", MEMORY)], []),
        ([INIT, MAIN], [], ["0", "1"]),
        ([INIT, INIT, MAIN, MAIN], [], ["0", "1", "2"]),
        ([INIT, INIT, MAIN], [("0", CORE)], ["0", "1", "2"]),
        ([INIT, INIT, MAIN], [("0", CORE), ("0", MEMORY)], ["1", "2"]),
        ([INIT, SIDECAR, MAIN], [], ["0", "1"]),
        ([SIDECAR, INIT, MAIN], [], ["0"]),
        ([SIDECAR, INIT, MAIN], [("0", CORE), ("0", MEMORY)], ["1", "2"]),
        ([INIT, MAIN, MAIN], [("1", CORE), ("1", MEMORY)], ["2"]),
        ([INIT], [("0", CORE), ("0", MEMORY)], []),
    ],
)
def test_containers_come_in_order_and_unrecorded_init_containers_may_be_behind(
    kinds: list[ContainerKind], got: list[tuple[str, Resource]], expected: list[str]
) -> None:
    containers = [container(str(place), kind=kind) for place, kind in enumerate(kinds)]
    found = next_containers(containers, lambda each, resource: (each.name, resource) in got)
    assert [each.name for each in found] == expected


# --- whatever comes ------------------------------------------------------------------


@dataclass(frozen=True)
class Situation:
    """Anything well-typed."""

    ask: Ask
    views: list[PodView]
    listed: list[MatchedPod] | None
    got: frozenset[tuple[PodId, str, Resource]]
    past: Past

    def answer(self) -> Resolution | str:
        try:
            return resolve(
                self.ask,
                views=self.views,
                served=lambda *asked: asked in self.got,
                listed=self.listed,
                past=self.past,
            )
        except ResolutionError as error:
            return str(error)


_resources = st.sampled_from(Resource)
_pod_ids = st.builds(pod_id, st.sampled_from("abc"), st.sampled_from(["u1", "u2", ""]))
_names = st.sampled_from(["c0", "c1", "c2"])
_containers = st.builds(
    ContainerDemand,
    _names,
    st.sampled_from(ContainerKind),
    st.integers(0, 2),
    st.builds(Demand, st.sampled_from([0, 10, 50, 100, 200]), st.sampled_from([0, 4, 10])),
)
_record = st.dictionaries(
    _names, st.just(Allocation(("GPU-0",), 50, 4, Evidence.TICKET)), max_size=2
)
_held = st.none() | st.dictionaries(_resources, st.sampled_from([SOME, MORE, frozenset()]))


@st.composite
def _views(draw: st.DrawFn) -> PodView:
    pod = draw(_pod_ids)
    return view(
        pod.name,
        *draw(st.lists(_containers, min_size=1, max_size=3)),
        uid=pod.uid,
        at=draw(st.integers(0, 1)),
        terminal=draw(st.booleans()),
        recorded=draw(_record),
    )


@st.composite
def _situations(draw: st.DrawFn) -> Situation:
    views = draw(st.lists(_views(), max_size=4, unique_by=lambda each: each.id))
    entries: list[MatchedPod] | None = None
    if draw(st.booleans()):
        known = [
            identified(each, listed(each.id.name, **draw(st.dictionaries(_names, _held))))
            for each in views
            if draw(st.booleans())
        ]
        unknown = [
            identified(pod_id(name, ""), listed(name, **draw(st.dictionaries(_names, _held))))
            for name in draw(st.lists(st.sampled_from("xyz"), unique=True, max_size=2))
        ]
        entries = known + unknown
    ask = Ask(
        draw(_resources),
        draw(st.sampled_from([1, 4, 10, 50, 100, 200])),
        draw(st.none() | _pod_ids),
    )
    got = draw(st.frozensets(st.tuples(_pod_ids, _names, _resources)))
    past = Past(*(draw(st.frozensets(_pod_ids)) for _ in range(4)))
    return Situation(ask, views, entries, got, past)


@patient
@given(_situations())
def test_every_situation_gets_an_answer_that_fits_it_or_a_refusal(situation: Situation) -> None:
    answer = situation.answer()
    ask = situation.ask
    if isinstance(answer, str):
        assert answer.startswith(f"{ask.size} places of {ask.resource} were asked for, but no ")
        return
    assert ask.owner in (None, answer.pod)
    assert count_of(answer.container.demand, ask.resource) == ask.size
    pod = next((each for each in situation.views if each.id == answer.pod), None)
    if pod is not None:
        assert not pod.terminal
        assert answer.container in pod.demand.containers
    if situation.listed is None:
        assert pod is not None
        assert answer.evidence is Evidence.ORDER
    else:
        assert answer.evidence in (Evidence.WITNESS, Evidence.ORDER)
        assert answer.pod in {each.pod for each in situation.listed}
        assert answer.pod not in situation.past.refused
        if pod is None:  # what it asks for is not known
            assert answer.evidence is Evidence.ORDER


@patient
@given(_situations(), st.data())
def test_the_order_of_pods_and_entries_does_not_matter(
    situation: Situation, data: st.DataObject
) -> None:
    shuffled = Situation(
        situation.ask,
        data.draw(st.permutations(situation.views)),
        None if situation.listed is None else data.draw(st.permutations(situation.listed)),
        situation.got,
        situation.past,
    )
    assert shuffled.answer() == situation.answer()


@patient
@given(
    st.lists(
        st.tuples(st.sampled_from([10, 50, 100]), st.sampled_from([4, 8])), min_size=1, max_size=5
    ),
    st.integers(0, 9),
    st.booleans(),
)
def test_a_pod_admitted_alone_is_followed_through_all_its_calls(
    demands: list[tuple[int, int]], others: int, memory_first: bool
) -> None:
    """K1 to K3 hold: whatever waits beside it, every call is settled by the witness."""
    pod = view("p", *(container(f"c{i}", *each) for i, each in enumerate(demands)), at=99)
    beside = [view(f"q{i}", *pod.demand.containers, at=i) for i in range(others)]
    held: dict[str, dict[Resource, frozenset[str]]] = {
        each.name: {} for each in pod.demand.containers
    }
    for each in pod.demand.containers:
        for resource in (MEMORY, CORE) if memory_first else (CORE, MEMORY):
            entries = [identified(pod, listed("p", **held))]
            ask = Ask(resource, count_of(each.demand, resource))
            assert _resolve(ask, [*beside, pod], entries) == ("p", each.name, Evidence.WITNESS)
            held[each.name][resource] = SOME

"""``PreStartContainer``: a container starts proven by the kubelet's file, or is vetoed."""

from dataclasses import replace

import pytest

from agent.allocator.model.pod_view import PodView
from agent.errors import GrantError
from contract.allocation import Allocation, Evidence
from contract.wishes import Wishes
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import Node, asks, ids, init, make_pod, sidecar

NOT_SHOWN = "the kubelet's checkpoint shows no container with exactly these places"


@pytest.fixture
def node() -> Node:
    return Node()


def veto(node: Node, view: PodView, container: str = "main") -> str:
    with pytest.raises(GrantError) as caught:
        node.start(view, container)
    assert node.decision_log.refusals[-1][-1] == str(caught.value)
    return str(caught.value)


def unproven(node: Node) -> list[tuple[str, str]]:
    """The starts without proof: whose it was by our answers, and why."""
    return [(str(ref), reason) for ref, _, reason in node.decision_log.unproven_starts]


# --- the proof is the file --------------------------------------------------------------


def test_containers_of_every_kind_are_proven_by_the_file_and_list_is_not_asked(
    node: Node,
) -> None:
    pod = node.admitted(make_pod("a", init(40, 10), sidecar(10, 2), asks(30, 8)))
    node.restart_agent()
    node.allocator.refresh()
    asked = node.record.asked
    for name in ("init", "side", "main"):
        node.start(pod, name)
    assert node.record.asked == asked
    assert node.decision_log.refs("prestart") == [
        *["a/init"] * 2,
        *["a/side"] * 2,
        *["a/main"] * 2,
    ]
    assert set(node.decision_log.evidence("prestart")) == {Evidence.RECORD}
    assert not unproven(node)
    assert not node.decision_log.corrections


def test_a_static_pod_is_proven_by_the_hash_of_its_configuration(node: Node) -> None:
    """K34: its mirror in the API has another UID."""
    pod = node.admitted(make_pod("a", init(10, 2), asks(30, 8), runtime_uid="hash"))
    for name in ("init", "main"):
        node.start(pod, name)
    assert node.decision_log.refs("prestart") == ["a/init", "a/init", "a/main", "a/main"]


def test_a_pod_that_only_the_kubelet_knows_is_proven_by_the_name_it_was_served_by(
    node: Node,
) -> None:
    pod = make_pod("static", asks(30, 8))
    node.admit(pod)
    node.start(pod)
    assert node.decision_log.refs("prestart") == ["static/main", "static/main"]


def test_a_pod_of_which_only_the_file_tells_starts_without_a_name(node: Node) -> None:
    pod = make_pod("static", asks(30, 8))
    for resource, size in ((CORE, 30), (MEMORY, 8)):
        node.got[pod.id, "main", resource] = ids(0, range(size))
        node.checkpoint.give(pod, "main", resource, ids(0, range(size)))
    node.checkpoint.write()
    node.start(pod)
    assert not unproven(node)
    assert not node.decision_log.refs("prestart")


def test_the_entry_of_an_ended_pod_with_the_same_places_is_not_meant(node: Node) -> None:
    """K29: it stays until the next write, and the API may still show the pod."""
    ended = node.admitted(make_pod("ended", asks(30, 8)))
    node.give_back(ended)
    node.record.hide(ended)
    node.checkpoint.late = True
    pod = node.begin(make_pod("a", asks(30, 8)))
    (main,) = pod.demand.containers
    for resource in (CORE, MEMORY):
        node.serve(pod, main, resource)
    node.checkpoint.file = {**node.checkpoint.file, **node.checkpoint.memory}
    node.start(pod)
    assert node.decision_log.refs("prestart") == ["a/main", "a/main"]
    assert not node.decision_log.corrections


# --- the file is one container old: K33 ----------------------------------------------------


def test_a_file_that_is_one_container_old_is_read_again(node: Node) -> None:
    """The next write, by whatever, brings what was overtaken."""
    pod = node.begin(make_pod("a", init(30, 8)))
    node.checkpoint.late = True
    node.admit(pod)
    asked = node.checkpoint.asked

    def the_next_write() -> None:
        if node.checkpoint.asked == asked + 3:
            node.checkpoint.write()

    node.checkpoint.meanwhile = the_next_write
    node.start(pod, "init")
    assert node.decision_log.refs("prestart") == ["a/init", "a/init"]
    assert node.paused == 2
    assert not unproven(node)


def test_a_file_that_stays_one_container_old_vetoes_nothing(node: Node) -> None:
    """Though it has the same places for a pod that has ended (K29)."""
    ended = node.admitted(make_pod("ended", init(30, 8)))
    node.forget(ended)
    node.checkpoint.late = True
    pod = node.admitted(make_pod("a", init(30, 8)))
    node.start(pod, "init")
    assert unproven(node) == [("default/a container init", NOT_SHOWN)] * 2
    assert not node.decision_log.corrections
    assert not node.decision_log.refusals


@pytest.mark.parametrize("which", [CORE, MEMORY])
def test_a_container_with_more_places_than_the_file_shows_is_not_proven(
    node: Node, which: object
) -> None:
    """K30: a device list came in the middle of its admission, and the write after it was late."""
    pod = node.begin(make_pod("a", asks(30, 8)))
    (main,) = pod.demand.containers
    other = MEMORY if which is CORE else CORE
    node.serve(pod, main, CORE if which is CORE else MEMORY)
    node.checkpoint.write()
    node.checkpoint.late = True
    node.serve(pod, main, other)
    node.start(pod)
    assert [reason for _, reason in unproven(node)] == [NOT_SHOWN]
    assert node.decision_log.refs("prestart") == ["a/main"]


# --- the file cannot be read ------------------------------------------------------------------


def test_without_the_file_a_container_starts_unproven_and_that_is_told_once_a_call(
    node: Node,
) -> None:
    pod = node.admitted(make_pod("a", asks(30, 8)))
    node.checkpoint.away = "no such file"
    node.start(pod)
    assert (
        unproven(node)
        == [("default/a container main", "the kubelet's checkpoint cannot be read")] * 2
    )
    assert node.paused == 0
    assert not node.decision_log.refs("prestart")


# --- a wrong guess ------------------------------------------------------------------------------


@pytest.fixture
def misled(node: Node) -> tuple[Node, PodView, PodView]:
    """Without ``List``, ``b`` is guessed by its queue position, and it was ``a``."""
    asked, guessed = make_pod("a", asks(30, 8), at=2), make_pod("b", asks(30, 8), at=1)
    node.bind(asked, guessed)
    node.record.away = "rate limited"
    node.admit(asked)
    assert set(node.decision_log.refs("allocate")) == {"b/main"}
    assert node.writer.of(guessed)["main"].evidence is Evidence.ORDER
    return node, asked, guessed


def test_a_wrong_guess_is_corrected_before_the_start_counted_and_written(
    misled: tuple[Node, PodView, PodView],
) -> None:
    node, asked, guessed = misled
    node.start(asked)
    assert node.decision_log.refs("prestart") == ["a/main", "a/main"]
    assert {
        (each.resource, str(each.guessed), str(each.proven))
        for each in node.decision_log.corrections
    } == {
        (CORE, "default/b container main", "default/a container main"),
        (MEMORY, "default/b container main", "default/a container main"),
    }
    node.record.away = ""
    node.allocator.refresh()
    assert node.writer.of(asked) == {"main": Allocation(("GPU-0",), 30, 8, Evidence.RECORD)}
    node.admit(guessed)
    assert node.writer.of(guessed)["main"].evidence is Evidence.WITNESS
    node.start(guessed)
    assert node.decision_log.refs("prestart")[2:] == ["b/main", "b/main"]


def test_a_wrong_guess_is_corrected_by_the_next_list_where_nothing_starts(
    misled: tuple[Node, PodView, PodView],
) -> None:
    node, asked, guessed = misled
    node.record.away = ""
    node.admit(guessed)
    node.allocator.refresh()
    assert node.writer.of(asked)["main"].evidence is Evidence.RECORD
    assert node.writer.of(guessed)["main"].evidence is Evidence.WITNESS
    assert len(node.decision_log.corrections) == 2


# --- the veto -----------------------------------------------------------------------------------


def _has(node: Node, view: PodView, cores: list[str], memory: list[str]) -> PodView:
    """Have the kubelet's file show a container with these places."""
    node.bind(view)
    for resource, held in ((CORE, cores), (MEMORY, memory)):
        node.got[view.id, "main", resource] = held
        node.checkpoint.give(view, "main", resource, held)
        node.record.give(view, "main", resource, held)
    node.checkpoint.write()
    node.allocator.refresh()
    return view


def test_a_container_that_holds_another_count_than_it_asks_for_is_vetoed(node: Node) -> None:
    pod = _has(node, make_pod("a", asks(40, 8)), ids(0, range(30)), ids(0, range(8)))
    assert veto(node, pod) == "30 places of core, but the container asks for 40"
    pod = _has(node, make_pod("b", asks(10, 9)), ids(0, range(30, 40)), ids(0, range(8, 16)))
    assert veto(node, pod) == "8 places of memory, but the container asks for 9"


@pytest.mark.parametrize("known", [True, False])
def test_a_container_whose_memory_is_on_another_card_is_vetoed(node: Node, *, known: bool) -> None:
    """Also where the API cannot tell what it asks for."""
    pod = _has(node, make_pod("a", asks(30, 8)), ids(0, range(30)), ids(1, range(8)))
    if not known:
        node.pods.remove(pod)
        node.restart_agent()
    assert veto(node, pod) == "memory on GPU-1, but the container's cores are on GPU-0"


def _served_unknown(node: Node) -> PodView:
    """A pod that was placed before the API told of the wish of its author."""
    pod = make_pod("a", asks(30, 8))
    node.pods.away = True
    node.admit(pod)
    node.pods.away = False
    card = node.cards(pod)[0]
    wish = Wishes(nouse_uuids=(card,))
    pod = replace(pod, wishes=wish)
    node.bind(pod)
    node.allocator.catch_up(pod)
    return pod


def test_a_card_that_the_pods_author_has_ruled_out_is_vetoed_if_that_was_not_known(
    node: Node,
) -> None:
    pod = _served_unknown(node)
    card = node.cards(pod)[0]
    assert veto(node, pod) == (
        f"cards that the pod's annotations rule out: {card} by nouse-gpu-uuid; the pod was not "
        "known when they were chosen: delete it, and its successor is placed anew"
    )


def test_a_container_that_runs_already_and_starts_again_is_not_vetoed_for_a_wish(
    node: Node,
) -> None:
    """The annotation was changed since."""
    pod = node.admitted(make_pod("a", asks(30, 8)))
    card = node.cards(pod)[0]
    changed = replace(pod, running=True, wishes=Wishes(nouse_uuids=(card,)))
    node.bind(changed)
    node.allocator.catch_up(changed)
    node.start(pod)
    assert node.decision_log.refs("prestart") == ["a/main", "a/main"]


def test_places_that_no_agent_makes_are_vetoed(node: Node) -> None:
    pod = _has(node, make_pod("a", asks(2, 1)), ["GPU-9::0", "GPU-9::1"], ids(0, range(1)))
    assert "GPU-9" in veto(node, pod)

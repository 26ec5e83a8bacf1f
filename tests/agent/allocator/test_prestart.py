"""``PreStartContainer``: a container starts proven by the kubelet's file, or is vetoed."""

from dataclasses import replace

import pytest

from agent.errors import GrantError
from contract.allocation import Allocation, Evidence
from contract.resource import Resource
from contract.wishes import Wishes
from placement.pods import PodInfo
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import Node, asks, ids, init, make_pod, sidecar

NOT_SHOWN = "the kubelet's checkpoint shows no container with exactly these places"


@pytest.fixture
def node() -> Node:
    return Node()


def veto(node: Node, view: PodInfo, container: str = "main") -> str:
    with pytest.raises(GrantError) as caught:
        node.start(view, container)
    assert node.decision_log.refusals[-1][-1] == str(caught.value)
    return str(caught.value)


def _has(
    node: Node,
    view: PodInfo,
    cores: list[str] | None = None,
    memory: list[str] | None = None,
    *,
    known: bool = True,
) -> PodInfo:
    """Have the kubelet show a container with these places, or with 30 and 8 of GPU-0."""
    for resource, held in (
        (CORE, cores or ids(0, range(30))),
        (MEMORY, memory or ids(0, range(8))),
    ):
        node.got[view.id, "main", resource] = held
        node.checkpoint.give(view, "main", resource, held)
    node.checkpoint.write()
    if known:
        node.bind(view)
        node.show(view)
    node.allocator.refresh()
    return view


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


def test_a_pod_of_which_only_the_file_tells_starts_without_a_name(node: Node) -> None:
    node.start(_has(node, make_pod("static", asks(30, 8)), known=False))
    assert not unproven(node)
    assert not node.decision_log.refs("prestart")


def test_the_entry_of_an_ended_pod_with_the_same_places_is_not_meant(node: Node) -> None:
    """K29: it stays until the next write, and the API may still show the pod."""
    ended = node.admitted(make_pod("ended", asks(30, 8)))
    node.release(ended)
    node.record.hide(ended)
    node.checkpoint.late = True
    pod = node.begin(make_pod("a", asks(30, 8)))
    node.admit(pod)
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


@pytest.mark.parametrize("first", [CORE, MEMORY])
def test_a_container_with_more_places_than_the_file_shows_is_not_proven(
    node: Node, first: Resource
) -> None:
    """K30: a device list came in the middle of its admission, and the write after it was late."""
    pod = node.begin(make_pod("a", asks(30, 8)))
    (main,) = pod.demand.containers
    node.serve(pod, main, first)
    node.checkpoint.write()
    node.checkpoint.late = True
    node.serve(pod, main, first.other)
    node.start(pod)
    assert [reason for _, reason in unproven(node)] == [NOT_SHOWN]
    assert node.decision_log.refs("prestart") == ["a/main"]


# --- a resource that the kubelet did not know: K11 -----------------------------------------


@pytest.mark.parametrize("given", [CORE, MEMORY])
def test_a_container_of_which_the_kubelet_passed_over_a_resource_does_not_start(
    node: Node, given: Resource
) -> None:
    pod = node.begin(make_pod("a", asks(30, 8)))
    (main,) = pod.demand.containers
    node.serve(pod, main, given)
    node.checkpoint.write()
    missing = given.other
    asked = {CORE: 30, MEMORY: 8}[missing]
    assert veto(node, pod) == (
        f"no places of {missing}, but the container asks for {asked}: the kubelet did not know the "
        "resource when it admitted the pod; delete the pod, and its successor has both"
    )
    node.record.away = "rate limited"
    node.start(pod)  # nobody can tell whether the file is old


# --- the file cannot be read ------------------------------------------------------------------


# --- a wrong guess ------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["the start", "the next List"])
def test_a_wrong_guess_is_corrected_counted_and_written(node: Node, by: str) -> None:
    """Without ``List``, ``b`` is guessed by its queue position, and it was ``a``."""
    asked, guessed = make_pod("a", asks(30, 8), at=2), make_pod("b", asks(30, 8), at=1)
    node.bind(asked, guessed)
    node.record.away = "rate limited"
    node.admit(asked)
    assert set(node.decision_log.refs("allocate")) == {"b/main"}
    assert node.writer.of(guessed)["main"].evidence is Evidence.ORDER
    if by == "the start":
        node.start(asked)
        assert node.decision_log.refs("prestart") == ["a/main", "a/main"]
        assert len(node.decision_log.corrections) == 2
        node.record.away = ""
        node.allocator.refresh()
    else:
        node.record.away = ""
    node.admit(guessed)
    node.allocator.refresh()
    assert [
        (each.resource, str(each.guessed), str(each.proven))
        for each in sorted(node.decision_log.corrections, key=lambda each: each.resource)
    ] == [
        (resource, "default/b container main", "default/a container main")
        for resource in (CORE, MEMORY)
    ]
    assert node.writer.of(asked) == {"main": Allocation(("GPU-0",), 30, 8, Evidence.RECORD)}
    assert node.writer.of(guessed)["main"].evidence is Evidence.WITNESS
    node.start(guessed)
    assert node.decision_log.refs("prestart")[-2:] == ["b/main", "b/main"]


# --- the veto -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "cores", "memory", "why"),
    [
        ((40, 8), ids(0, range(30)), [], "30 places of core, but the container asks for 40"),
        ((30, 9), [], ids(0, range(8)), "8 places of memory, but the container asks for 9"),
        ((30, 8), [], ids(1, range(8)), "memory on GPU-1, but the container's cores are on GPU-0"),
        ((2, 1), ["GPU-9::0", "GPU-9::1"], [], "names a card this node does not have"),
    ],
)
def test_a_container_whose_places_contradict_each_other_or_its_request_is_vetoed(
    node: Node, asked: tuple[int, int], cores: list[str], memory: list[str], why: str
) -> None:
    pod = _has(node, make_pod("a", asks(*asked)), cores, memory)
    assert why in veto(node, pod)


def test_a_container_of_which_nobody_knows_what_it_asks_for_is_vetoed_too(node: Node) -> None:
    pod = _has(node, make_pod("a", asks(30, 8)), memory=ids(1, range(8)), known=False)
    assert "memory on GPU-1" in veto(node, pod)


@pytest.mark.parametrize(
    ("cores", "wishes", "told"),
    [
        (30, Wishes(nouse_uuids=("GPU-0",)), "GPU-0 by nouse-gpu-uuid"),
        (200, Wishes(link="nvlink"), "GPU-0, GPU-1 by gpu-link (nvlink)"),
    ],
)
def test_cards_that_the_pods_author_has_ruled_out_are_vetoed_if_that_was_not_known(
    node: Node, cores: int, wishes: Wishes, told: str
) -> None:
    pod = make_pod("a", asks(cores, 8))
    node.pods.away = True
    node.admit(pod)
    node.pods.away = False
    pod = replace(pod, wishes=wishes)
    node.bind(pod)
    assert veto(node, pod) == (
        f"cards that the pod's annotations rule out: {told}; the pod was not "
        "known when they were chosen: delete it, and its successor is placed anew"
    )


def test_a_container_that_runs_already_and_starts_again_is_not_vetoed_for_a_wish(
    node: Node,
) -> None:
    """The annotation was changed since."""
    pod = node.admitted(make_pod("a", asks(30, 8)))
    node.bind(replace(pod, running=True, wishes=Wishes(nouse_uuids=tuple(node.cards(pod)))))
    node.start(pod)
    assert node.decision_log.refs("prestart") == ["a/main", "a/main"]

"""Situation 13: shares that are divided over several cards, beside whole cards of equal counts."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from contract.allocation import Evidence
from tests.situations.build import NAMES, Json, Node, a_node, a_pod, gpu, uid_of, wait_for


def divided(name: str, *containers: Json, init: Any = (), at: int = 0, **cards: int) -> Json:
    """Return a pod whose containers have shares of so many *cards*, by their names."""
    annotations = {NAMES.gpu_cards_of(each): str(count) for each, count in cards.items()}
    return a_pod(name, *containers, init=init, at=at, annotations=annotations)


def parts(node: Node, uid: str, container: str = "c0") -> dict[str, list[int]]:
    held = Counter(
        (resource, device_id.partition("::")[0])
        for resource, device_id in node.held_device_ids(uid, container)
    )
    found: dict[str, list[int]] = {}
    for (resource, _), count in sorted(held.items()):
        found.setdefault(resource, []).append(count)
    return found


def crowd(count: int, *, seed: int, prefix: str = "p") -> list[Json]:
    """Pods by turns with a share of one card, of two, of three, and with a whole card.

    Shares of two cards and whole cards request 100 cores alike.
    """
    random = Random(seed)
    pods = []
    for number in range(count):
        cards, cores = ((1, 10), (2, 100), (3, 30), (1, 100))[number % 4]
        each = gpu("c0", cores, cards * random.choice((1, 2, 4)))
        pods.append(divided(f"{prefix}-{number}", each, at=number, c0=cards))
    random.shuffle(pods)
    return pods


def expected_parts(pod: Json) -> dict[str, list[int]]:
    """Return what the pod's container must hold of each card; memory of whole cards is left out."""
    (container,) = pod["spec"]["containers"]
    cards = int(pod["metadata"]["annotations"][NAMES.gpu_cards_of("c0")])
    limits = container["resources"]["limits"]
    cores, memory = int(limits[NAMES.core]), int(limits[NAMES.memory])
    return {NAMES.core: [cores // cards] * cards, NAMES.memory: [memory // cards] * cards}


def assert_divided_as_requested(node: Node, pods: list[Json]) -> None:
    for pod in pods:
        assert parts(node, uid_of(pod)) == expected_parts(pod), pod["metadata"]["name"]


@pytest.mark.parametrize("seed", range(2))
def test_in_a_burst_whole_cards_and_halves_with_equal_counts_are_distinguished(seed: int) -> None:
    pods = crowd(24, seed=seed)
    with a_node(seed=seed, cards=16, limits=True) as node:
        node.bind(*pods)
        node.settle()
        assert node.decision_log.refusals == []
        node.assert_right(*map(uid_of, pods))
        node.assert_sound()
        assert_divided_as_requested(node, pods)
        assert {each.evidence for each in node.admissions()} == {Evidence.TICKET}
        assert node.wrong_limits() == [], node.wrong_limits()
        assert node.decision_log.counts["corrected"] == node.decision_log.counts["unproven"] == 0


def test_shares_are_divided_although_agent_and_kubelet_are_killed_in_bursts() -> None:
    first, second, third = (crowd(8, seed=each, prefix=f"p{each}") for each in range(3))
    with a_node(seed=5, cards=16, limits=True) as node:
        node.bind(*first)
        wait_for(lambda: len(node.admissions()) > 6)
        node.kill_agent()
        node.start_agent()
        node.wait_until_offered()
        node.bind(*second)
        wait_for(lambda: len(node.admissions()) > 20)
        node.restart_kubelet()
        node.bind(*third)
        node.settle()
        pods = [*first, *second, *third]
        served = [each for each in pods if node.held_device_ids(uid_of(each))]
        assert len(served) > 18  # without a proxy, pods are rejected meanwhile
        node.assert_sound()
        assert_divided_as_requested(node, served)
        assert node.wrong_limits() == [], node.wrong_limits()


def test_pods_that_the_watch_has_not_shown_are_read_with_their_number_of_cards() -> None:
    pods = crowd(8, seed=6)
    with a_node(seed=6, cards=8) as node:
        node.api.hanging = True
        node.bind(*pods)
        node.settle()
        assert node.decision_log.refusals == []
        node.assert_right(*map(uid_of, pods))
        node.assert_no_guess(*map(uid_of, pods))
        assert_divided_as_requested(node, pods)


@pytest.mark.parametrize("seed", range(2))
def test_halves_of_an_init_container_are_reused_by_the_halves_of_the_next(seed: int) -> None:
    """K7: it must take 30 cores of each of two cards, and 20 of each are new."""
    pod = divided("p", gpu("c0", 100, 16), init=[gpu("i0", 60, 8)], c0=2, i0=2)
    with a_node(seed=seed, cards=4) as node:
        node.admit([pod])
        assert parts(node, "uid-p", "i0") == {NAMES.core: [30, 30], NAMES.memory: [4, 4]}
        assert parts(node, "uid-p") == {NAMES.core: [50, 50], NAMES.memory: [8, 8]}
        assert node.held_device_ids("uid-p", "i0") < node.held_device_ids("uid-p")
        node.assert_right("uid-p")
        node.admit([a_pod("probe", gpu("c0", 1, 1))])
        node.assert_sound()


def test_halves_reused_without_a_preferred_call_are_found_by_their_ids() -> None:
    pod = divided("p", gpu("c0", 100, 8), gpu("c1", 20, 2), init=[gpu("i0", 100, 8)], c0=2, i0=2)
    with a_node(cards=4) as node:
        node.admit([pod])
        assert {each.container for each in node.preferred_for("uid-p")} == {"i0", "c1"}
        assert parts(node, "uid-p") == {NAMES.core: [50, 50], NAMES.memory: [4, 4]}
        found = Counter((each.event.container, each.evidence) for each in node.calls_of("uid-p"))
        assert found["c0", Evidence.WITNESS] == 2
        node.assert_right("uid-p")
        node.admit([a_pod("probe", gpu("c0", 1, 1))])
        node.assert_sound()


def test_a_share_of_one_card_is_followed_by_halves_of_which_one_is_on_its_card() -> None:
    init = [gpu("i0", 30, 4), gpu("side", 80, 12, restartPolicy="Always")]
    pod = divided("p", gpu("c0", 100, 16), init=init, side=2, c0=2)
    with a_node(cards=4) as node:
        node.admit([pod])
        assert parts(node, "uid-p", "i0") == {NAMES.core: [30], NAMES.memory: [4]}
        assert parts(node, "uid-p", "side") == {NAMES.core: [40, 40], NAMES.memory: [6, 6]}
        assert parts(node, "uid-p") == {NAMES.core: [50, 50], NAMES.memory: [8, 8]}
        node.assert_right("uid-p")
        node.admit([a_pod("probe", gpu("c0", 1, 1))])
        node.assert_sound()


@pytest.mark.parametrize("seed", range(4))
def test_a_reused_part_of_two_cards_is_even_by_chance_or_refused_with_a_reason(
    seed: int,
) -> None:
    """The webhook denies it: the kubelet chooses 40 of 60 cores, without a preferred call (K7)."""
    pod = divided("p", gpu("c0", 40, 8), init=[gpu("i0", 60, 8)], c0=2, i0=2)
    with a_node(seed=seed, cards=4) as node:
        node.admit([pod])
        text = node.refusal_message("uid-p")
        if seed == 0:
            assert text == "", "by chance"
            assert parts(node, "uid-p")[NAMES.core] == [20, 20]
        else:
            assert "a share of 40 cores must be 20 on each of 2 cards, but is not: " in text
        node.admit([a_pod("probe", gpu("c0", 1, 1))])
        node.assert_right("uid-probe")
        node.assert_sound()

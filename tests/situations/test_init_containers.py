"""Situation 4: init containers and sidecars, and reusable slots.

The kubelet reuses devices of an ordinary init container: without a preferred call if they suffice
(facts K2 and K7), as ``must_include`` if more are needed.
"""

from collections import Counter
from random import Random

import pytest

from contract.allocation import Evidence
from tests.situations.build import Json, a_node, a_pod, gpu, uid_of


@pytest.mark.parametrize("seed", range(2))
def test_devices_of_an_init_container_are_reused_without_a_preferred_call(seed: int) -> None:
    pod = a_pod("p", gpu("c0", 10, 4), gpu("c1", 20, 2), init=[gpu("init", 30, 8)])
    with a_node(seed=seed) as node:
        node.admit([pod])
        assert {each.container for each in node.preferred_for("uid-p")} == {"init"}
        found = Counter((each.event.container, each.evidence) for each in node.calls_of("uid-p"))
        assert found == {
            ("init", Evidence.TICKET): 2,
            ("c0", Evidence.WITNESS): 2,
            ("c1", Evidence.WITNESS): 2,
        }
        had = node.held_device_ids("uid-p", "init")
        assert node.held_device_ids("uid-p", "c0") | node.held_device_ids("uid-p", "c1") <= had
        assert node.evidence_of("uid-p") == {Evidence.WITNESS: 3}
        node.admit([a_pod("probe", gpu("c0", 1, 1))])
        node.assert_right("uid-p", "uid-probe")
        node.assert_sound()
        assert node.decision_log.counts["corrected"] == 0
        assert node.decision_log.refusals == []


def draw(name: str, random: Random) -> Json:
    """A pod of shares that one card holds: any mix of init containers, sidecars, containers."""

    def one(called: str) -> Json:
        return gpu(called, random.choice((1, 5, 10, 15, 20)), random.choice((1, 2, 4, 6)))

    early = [one(f"i{each}") for each in range(random.randint(1, 4))]
    for each in early:
        if random.random() < 0.35:
            each["restartPolicy"] = "Always"
    mains = [one(f"c{each}") for each in range(random.randint(1, 3))]
    return a_pod(name, *mains, init=early)


def test_a_burst_of_every_kind_of_pod_is_attributed_correctly() -> None:
    """On crowded cards some are refused, each because no card fits."""
    random = Random(0)
    pods = [draw(f"p-{number}", random) for number in range(20)]
    with a_node(cards=5) as node:
        node.bind(*pods)
        node.settle()
        node.admit([a_pod("probe", gpu("c0", 1, 1))])
        served = [uid_of(each) for each in pods if not node.refusal_message(uid_of(each))]
        assert 8 < len(served) < len(pods)
        node.assert_right(*served)
        node.assert_sound()
        refused = {each.reason.partition(":")[0] for each in node.decision_log.refusals}
        assert all(each.startswith("no card fits ") for each in refused)
        counts = node.decision_log.counts
        assert counts["prefer by order"] == counts["corrected"] == 0


def test_shares_and_whole_cards_in_one_pod_are_attributed_or_refused_with_a_reason() -> None:
    """The kubelet makes some of these impossible; no call has a wrong target, no slot is lost."""
    excuses = ("no card fits ", "a share of ", "memory on GPU-")
    served = 0
    for number in range(8):
        random = Random(f"mixed/{number}")
        sizes = [(random.choice((5, 40, 100, 200)), random.choice((2, 8))) for _ in range(4)]
        early = [gpu("i0", *sizes[0]), gpu("i1", *sizes[1])]
        if random.random() < 0.5:
            early[random.randint(0, 1)]["restartPolicy"] = "Always"
        pod = a_pod("p", gpu("c0", *sizes[2]), gpu("c1", *sizes[3]), init=early)
        with a_node(seed=number, cards=8, memory="4Gi") as node:
            node.admit([pod])
            reasons = [each.reason for each in node.decision_log.refusals]
            if node.refusal_message("uid-p"):
                assert len(reasons) == 1
                assert reasons[0].startswith(excuses) or " must be whole cards, but " in reasons[0]
                assert reasons[0] in node.refusal_message("uid-p")
            else:
                served += 1
                node.assert_right("uid-p")
            node.admit([a_pod("probe", gpu("c0", 100, 16))])
            node.assert_right("uid-probe")
            node.assert_recorded()
            assert node.decision_log.counts["corrected"] == 0
    assert 2 < served < 8


def test_memory_reused_by_a_container_of_two_cards_is_counted_on_its_own_card() -> None:
    """The kubelet reuses all of it, on the card of the init container."""
    with a_node(cards=3) as node:
        node.admit([a_pod("p", gpu("c0", 200, 8), init=[gpu("init", 40, 8)])])
        node.assert_right("uid-p")
        node.admit([a_pod("probe", gpu("c0", 10, 4))])
        node.assert_right("uid-probe")
        assert node.miscounts() == []

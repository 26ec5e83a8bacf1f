"""Situation 11: the target of a call if the API shows a pod too early, too late or never."""

from random import Random

import pytest

from simulator.node.judge import Attribution
from tests.situations.build import NEVER_ENDS, Json, a_node, a_pod, gpu, plain, wait_for


@pytest.mark.parametrize("old_list", [False, True], ids=["1.34", "1.33"])
def test_force_deleted_pods_that_are_still_listed_are_never_targets(old_list: bool) -> None:
    """Their containers still end, among them some without a GPU (K20)."""
    kubelet = {"grace_s": NEVER_ENDS, "active_pods_only": not old_list}
    with a_node(kubelet=kubelet) as node:
        removed = [f"r{number}" for number in range(6)]
        node.admit([a_pod(each, gpu("c0", 2, 1), plain()) for each in removed])
        for each in removed:
            node.remove(f"uid-{each}")
        wait_for(node.kubelet.idle)
        node.api.hanging = True
        new = [a_pod(f"z{number}", gpu("c0", 10, 4), plain()) for number in range(3)]
        node.admit(new)
        uids = [each["metadata"]["uid"] for each in new]
        for uid in uids:
            assert [each.verdict for each in node.calls_of(uid)] == [Attribution.RIGHT] * 2
            node.assert_no_guess(uid)
        named = {each.ref.container for each in node.decision_log.allocated if each.ref}
        assert "plain" not in named
        assert node.decision_log.counts["corrected"] == 0


@pytest.mark.parametrize(("seed", "removed_pods_stay"), [(0, True), (1, False)])
def test_a_burst_with_force_deletions_is_attributed_correctly(
    seed: int, removed_pods_stay: bool
) -> None:
    """Equal pods by turns, every third deleted by force as soon as it runs, the watch behind."""
    kubelet = {"grace_s": (0.2, 0.4), "removed_pods_stay": removed_pods_stay}
    with a_node(seed=seed, cards=4, kubelet=kubelet, cache_behind=5) as node:
        kept = []
        for number in range(14):
            node.admit([a_pod(f"p{number:02}", gpu("c0", 3, 1), plain(), at=number)])
            if number % 3 == 0:
                node.remove(f"uid-p{number:02}")
            else:
                kept.append(f"uid-p{number:02}")
        node.catch_up()
        node.admit([a_pod("probe", gpu("c0", 3, 1))])
        node.assert_right("uid-probe", *kept)
        assert {each.ref.container for each in node.decision_log.allocated if each.ref} == {"c0"}
        assert node.decision_log.counts["corrected"] == 0
        assert node.decision_log.refusals == []
        wait_for(lambda: len(node.kubelet.held_devices()) == 2 * (len(kept) + 1))
        node.admit([a_pod("last", gpu("c0", 3, 1))])
        node.assert_sound()


def drawn(random: Random, name: str) -> Json:
    """A random static pod with init containers; not every container requests a GPU."""

    def some(prefix: str, least: int) -> list[Json]:
        return [
            gpu(f"{prefix}{each}", random.choice([5, 10, 20]), random.choice([1, 2, 4]))
            if random.random() < 0.7
            else plain(f"{prefix}{each}")
            for each in range(random.randint(least, 2))
        ]

    inits, mains = some("i", 0), some("c", 1)
    made = a_pod(name, *mains, init=inits, stamped=False)
    del made["metadata"]["uid"]
    return made


@pytest.mark.parametrize(("seed", "mirrored"), [(7, False), (23, True)])
def test_a_pod_with_unknown_spec_gets_cores_and_memory_of_one_card(
    seed: int, mirrored: bool
) -> None:
    """``List`` omits its init containers (K4), and their devices are reused (K7)."""
    random = Random(seed)
    with a_node(seed=seed, cards=3) as node:
        uids = []
        for number in range(6):
            uid = node.add_static(drawn(random, f"s{number}"))
            uids.append(uid)
            node.settle()
            assert node.refusal_message(uid) == "", number
            if mirrored:
                node.mirror(uid)
        for uid in uids:
            for each in {
                one.container for one in node.kubelet.held_devices() if one.pod_uid == uid
            }:
                assert len(node.cards_of(uid, each)) == 1, (uid, each)
        assert node.double_grants() == 0
        assert node.decision_log.refusals == []

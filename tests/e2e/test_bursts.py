"""Bursts of pods, with an agent or a kubelet that ends in the middle."""

from collections import Counter

import pytest

from contract.demand import ContainerKind
from tests.e2e.cluster import Json
from tests.e2e.ground import is_ready, wait, was_admitted_again
from tests.e2e.stage import Stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

PODS = 60
UNDER_WAY = 10
"""Allocates after which a burst of 20 pods, each with two or more, is well under way."""


def test_every_container_of_a_burst_gets_its_own_devices(stage: Stage) -> None:
    pods = stage.run(*stage.make.burst(PODS, seed=1))

    assert stage.refused(pods) == {}
    seen = stage.audit("burst", pods)
    assert {each.container.kind for each in seen} == set(ContainerKind)
    assert len(seen) > PODS


def test_a_name_that_comes_back_is_another_pod(stage: Stage) -> None:
    made = [stage.make.single(f"again-{number}", 5, 4) for number in range(20)]
    first = stage.run(*made)
    for name in first:
        stage.cluster.delete(name)
    wait("the first pods' end", lambda: not stage.cluster.pods())

    bigger = [stage.make.single(f"again-{number}", 10, 8) for number in range(20)]
    second = stage.run(*bigger)

    assert stage.refused(second) == {}
    stage.audit("names that come back", second)


@pytest.mark.parametrize("allocates", [1, 15, 40])
def test_an_agent_killed_in_a_burst_fails_no_pod_and_finds_the_right_targets(
    stage: Stage, allocates: int
) -> None:
    made = stage.make.burst(PODS, seed=3)
    before, after = made[: PODS // 2], made[PODS // 2 :]
    creating = stage.submit(before)
    wait("the burst is under way", lambda: len(stage.agent.events("allocate")) >= allocates)
    stage.kill_agent()
    creating += stage.submit(after)
    pods = stage.settle(creating)

    assert stage.refused(pods) == {}
    stage.audit("agent killed", pods, init_recorded=False)
    stage.wait_for_cards()
    later = stage.run(*(stage.make.single(f"later-{number}", 5, 4) for number in range(10)))
    assert stage.refused(later) == {}
    stage.audit("after the kill", pods | later, init_recorded=False)


def test_a_kubelet_restarted_midway_loses_nothing(stage: Stage) -> None:
    if not stage.settings.restart_kubelet:
        pytest.skip("GPU_TURNSTILE_E2E_RESTART_KUBELET names no command")
    made = stage.make.burst(PODS, seed=4)
    running, under_way, later = made[:20], made[20:40], made[40:]
    before = stage.run(*running)
    assert stage.refused(before) == {}
    wait("all containers run", lambda: all(map(is_ready, stage.cluster.pods().values())))
    stage.agent.mark()
    creating = stage.submit(under_way)
    wait("the burst is under way", lambda: len(stage.agent.events("allocate")) >= UNDER_WAY)
    stage.restart_kubelet()
    pods = before | stage.settle(creating)

    _only_the_kubelet_refused(stage, "kubelet restarted", pods)
    # Pods in mid-admission may be refused; running ones stay, and new ones start.
    lost = stage.refused({name: pods[name] for name in before})
    assert {
        name: words for name, words in lost.items() if not was_admitted_again(pods[name], words)
    } == {}
    seen = stage.audit("kubelet restarted", pods)
    assert len(seen) > len(before)
    stage.wait_for_cards()
    pods |= stage.run(*later)
    assert stage.refused({name: pods[name] for name in map(_name, later)}) == {}
    seen = stage.audit("after the restart", pods)
    assert len(seen) > len(running) + len(later)


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _only_the_kubelet_refused(stage: Stage, what: str, pods: dict[str, Json]) -> None:
    """Check that only the kubelet refused pods, while no plugin was registered."""
    messages = stage.refused(pods)
    for message, count in Counter(messages.values()).most_common():
        stage.report(f"{what}: {count} pods: {message}")
    assert [each for each in messages.values() if "gpu-turnstile" in each] == []

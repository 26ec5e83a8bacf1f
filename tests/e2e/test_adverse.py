"""Bursts in which pods are refused, and deleted by force, while agent or kubelet end."""

from collections import Counter

import pytest

from tests.e2e.adverse import Adverse, adverse_burst, named_without_gpus, unexplained
from tests.e2e.cluster import Json
from tests.e2e.ground import wait
from tests.e2e.manifests import BLOCKS, CARDS
from tests.e2e.stage import Stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PODS = 64
UNDER_WAY = 25


@pytest.mark.parametrize(
    "midway", ["nothing", "agent upgraded", "agent killed", "kubelet restarted"]
)
def test_no_refusal_names_another_pod(stage: Stage, midway: str) -> None:
    if midway == "kubelet restarted" and not stage.settings.restart_kubelet:
        pytest.skip("GPU_TURNSTILE_E2E_RESTART_KUBELET names no command")
    burst = adverse_burst(stage.make, stage.names, PODS, seed=9)
    creating = stage.submit([each.manifest for each in burst])
    disturbed = False
    for each, done in zip(burst, creating, strict=True):
        done.result(60)
        if each.deleted:  # before, while and after the kubelet admits it
            stage.cluster.delete(each.name)
        if not disturbed and len(stage.agent.events("allocate")) >= UNDER_WAY:
            _disturb(stage, midway)
            disturbed = True
    if not disturbed:
        wait("the burst is under way", lambda: len(stage.agent.events("allocate")) >= UNDER_WAY)
        _disturb(stage, midway)

    pods = stage.settled(each.name for each in burst if not each.deleted)

    restarted = midway == "kubelet restarted"
    what = f"adverse burst, {midway}"
    _report(stage, what, burst, pods)
    left = [each for each in burst if not each.deleted]
    assert unexplained(left, stage.refused(pods), disturbed=restarted) == {}
    stage.audit(what, pods, init_recorded=midway == "nothing")
    # The spec of a pod that was deleted by force while no agent ran is unknown: its containers are
    # guessed, and the guess is corrected before one of them starts.
    known = [each for each in burst if not (each.deleted and midway.startswith("agent"))]
    named = {(pod, each) for pod, each in _named(stage) if pod in {one.name for one in known}}
    assert named_without_gpus(known, named, stage.names) == set()
    # The agent counts no more slots than are held: all can be allocated again.
    stage.clear()
    stage.wait_for_cards()
    whole = stage.run(*(stage.make.single(f"whole-{each}", 100, BLOCKS) for each in range(CARDS)))
    assert stage.refused(whole) == {}
    stage.audit(f"whole cards after {what}", whole)


def _disturb(stage: Stage, midway: str) -> None:
    if midway == "agent upgraded":
        stage.upgrade_agent()
    elif midway == "agent killed":
        stage.kill_agent()
    elif midway == "kubelet restarted":
        stage.restart_kubelet()


def _named(stage: Stage) -> set[tuple[str, str]]:
    """Return all containers that the agent's log or a pod's annotation names."""
    lines = [
        each
        for event in ("prefer", "allocate", "prestart", "refused", "unproven")
        for each in stage.agent.events(event)
        if each.get("container")
    ]
    logged = {(each["pod"].rpartition("/")[2], each["container"]) for each in lines}
    recorded = {
        (name, container)
        for name, pod in stage.cluster.pods().items()
        for container in stage.allocations(pod)
    }
    return logged | recorded


def _report(stage: Stage, what: str, burst: list[Adverse], pods: dict[str, Json]) -> None:
    messages = Counter(stage.refused(pods).values())
    corrected = len(stage.agent.events("corrected"))
    deleted = sum(each.deleted for each in burst)
    stage.report(
        f"{what}: {len(burst)} pods, {deleted} deleted by force, {messages.total()} refused, "
        f"{corrected} corrections at PreStart"
    )
    for message, count in messages.most_common():
        stage.report(f"  {count} times {message[:200]}")

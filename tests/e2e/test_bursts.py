"""Bursts of pods, some refused or deleted by force, while agent or kubelet end."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import pytest

from contract.demand import ContainerKind
from contract.names import Names
from contract.requests import read_pod_demand
from tests.e2e.cluster import Json
from tests.e2e.ground import is_ready, wait, was_admitted_again
from tests.e2e.manifests import BLOCKS, CARDS, Maker
from tests.e2e.stage import Stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PODS = 60
UNDER_WAY = 10
"""Allocates after which a burst of 20 pods, each with two or more, is well under way."""


def test_every_container_of_a_burst_gets_its_own_devices(stage: Stage) -> None:
    pods = stage.run(*stage.make.burst(PODS, seed=1))
    seen = stage.check("burst", pods)
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
    stage.check("names that come back", second)


@pytest.mark.parametrize("allocates", [1, 15, 40])
def test_an_agent_killed_in_a_burst_fails_no_pod_and_finds_the_right_targets(
    stage: Stage, allocates: int
) -> None:
    made = stage.make.burst(PODS, seed=3)
    before, after = made[: PODS // 2], made[PODS // 2 :]
    creating = stage.submit(before)
    stage.wait_for_allocations(allocates)
    stage.kill_agent()
    creating += stage.submit(after)
    pods = stage.settle(creating)
    stage.check("agent killed", pods, init_recorded=False)
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
    stage.wait_for_allocations(UNDER_WAY)
    stage.restart_kubelet()
    pods = before | stage.settle(creating)
    messages = stage.refused(pods)  # only by the kubelet, while no plugin was registered
    for message, count in Counter(messages.values()).most_common():
        stage.report(f"kubelet restarted: {count} pods: {message}")
    assert [each for each in messages.values() if "gpu-turnstile" in each] == []
    # Pods in mid-admission may be refused; running ones stay, and new ones start.
    lost = stage.refused({name: pods[name] for name in before})
    assert {
        name: words for name, words in lost.items() if not was_admitted_again(pods[name], words)
    } == {}
    seen = stage.audit("kubelet restarted", pods)
    assert len(seen) > len(before)
    stage.wait_for_cards()
    new = stage.run(*later)
    pods |= new
    assert stage.refused(new) == {}
    seen = stage.audit("after the restart", pods)
    assert len(seen) > len(running) + len(later)


_AGENT = "desc = gpu-turnstile: "


@dataclass(frozen=True, slots=True)
class Adverse:
    """One pod of the burst; *refused* is a pattern of the refusal that it must get."""

    manifest: Json
    refused: str | None = None
    deleted: bool = False

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


def adverse_burst(make: Maker, names: Names, count: int, *, seed: int) -> list[Adverse]:
    """Draw a burst of which three of eight pods are refused, each for another reason."""
    random = Random(seed)
    return [_draw(make, names, number, random) for number in range(count)]


def _draw(make: Maker, names: Names, number: int, random: Random) -> Adverse:
    containers = [
        make.container(f"c{each}", random.choice((5, 10)), random.choice((4, 8)))
        for each in range(random.choice((1, 1, 2)))
    ]
    kind = number % 8
    if kind == 1:  # the agent plans the pod as a whole, and refuses its first call
        containers.append(make.container("large", 10, BLOCKS + 1))
    if number % 32 == 3:
        containers = [make.container("whole", 100)]
    if random.random() < 3 / 4:
        containers.insert(random.choice((0, len(containers))), make.idle("plain"))
    init = []
    if random.random() < 1 / 4:
        init.append(make.idle("plain-init", run="true"))
    if random.random() < 1 / 7:
        init.append(make.container("init", 5, 4, run="true"))
    pod = make.pod(f"adverse-{number}", containers, initContainers=init)
    if kind == 1:
        # A pod that is only guessed to be the one is not refused for a container that comes later.
        large = f"10 cores and {BLOCKS + 1} memory blocks( of container large)?"
        return Adverse(pod, f"{_AGENT}no card fits {large}[,:]")
    if kind == 2:
        pod["metadata"]["annotations"] = {names.use_gpu_uuid: "GPU-of-another-node"}
        return Adverse(pod, f"{_AGENT}no card fits .*use-gpu-uuid")
    if kind == 3:  # past the scheduler: the kubelet looks at selectors after the device plugin
        affinity = pod["spec"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        pod["spec"]["nodeName"] = terms[0]["matchFields"][0]["values"][0]
        pod["spec"]["nodeSelector"] = {"e2e/never": "true"}
        return Adverse(pod, "Predicate NodeAffinity failed")
    return Adverse(pod, deleted=kind in (4, 6))


def unexplained(
    burst: list[Adverse], messages: Mapping[str, str], *, disturbed: bool = False
) -> dict[str, str]:
    wrong = {}
    for each in burst:
        message = messages.get(each.name)
        if message is None:
            if each.refused is not None and not each.deleted:
                wrong[each.name] = "runs"
        elif each.refused is not None and re.search(each.refused, message):
            continue
        elif _AGENT in message or not disturbed:
            wrong[each.name] = message
    return wrong


def named_without_gpus(burst: list[Adverse], named: set[tuple[str, str]], names: Names) -> set[str]:
    requesting = {
        (each.name, container.name)
        for each in burst
        for container in read_pod_demand(each.manifest, names)[0].containers
    }
    return {f"{pod} {container}" for pod, container in named - requesting}


ADVERSE_PODS = 64
ADVERSE_UNDER_WAY = 25


@pytest.mark.parametrize(
    "midway", ["nothing", "agent upgraded", "agent killed", "kubelet restarted"]
)
def test_no_refusal_names_another_pod(stage: Stage, midway: str) -> None:
    if midway == "kubelet restarted" and not stage.settings.restart_kubelet:
        pytest.skip("GPU_TURNSTILE_E2E_RESTART_KUBELET names no command")
    burst = adverse_burst(stage.make, stage.names, ADVERSE_PODS, seed=9)
    creating = stage.submit([each.manifest for each in burst])
    disturbed = False
    for each, done in zip(burst, creating, strict=True):
        done.result(60)
        if each.deleted:  # before, while and after the kubelet admits it
            stage.cluster.delete(each.name)
        if not disturbed and len(stage.agent.events("allocate")) >= ADVERSE_UNDER_WAY:
            stage.disturb(midway)
            disturbed = True
    if not disturbed:
        stage.wait_for_allocations(ADVERSE_UNDER_WAY)
        stage.disturb(midway)
    pods = stage.settled(each.name for each in burst if not each.deleted)
    restarted = midway == "kubelet restarted"
    what = f"adverse burst, {midway}"
    messages = Counter(stage.refused(pods).values())
    corrected = len(stage.agent.events("corrected"))
    stage.report(
        f"{what}: {len(burst)} pods, {sum(each.deleted for each in burst)} deleted by force, "
        f"{messages.total()} refused, {corrected} corrections at PreStart"
    )
    for message, count in messages.most_common():
        stage.report(f"  {count} times {message[:200]}")
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
    stage.check(f"whole cards after {what}", whole)


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

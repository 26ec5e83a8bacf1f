"""The component for preemption by card: evictions on a node whose totals suffice.

On each card two batch pods hold 80 cores, so 240 cores of the node are free, and no card has 60.
"""

import json
import time
from collections.abc import Iterator
from random import Random

import pytest

from placement.cluster.nominations import CONDITION
from tests.e2e.cluster import Json, Kubectl
from tests.e2e.ground import Ground, phase, wait
from tests.e2e.installation import (
    KUBE_SCHEDULER,
    NAMESPACE,
    Deploy,
    Deployed,
    deploying_scheduler,
    kill,
)
from tests.e2e.manifests import CARDS
from tests.e2e.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

PRIORITIES = {"e2e-batch": 10, "e2e-prod": 1000}
BATCH, PROD = 40, 60
_TRY_AGAIN_SECONDS = 15.0
# kube-scheduler tries a pod again up to 10 s after another has ended.


@pytest.fixture(scope="module")
def whole(settings: Settings, kubectl: Kubectl, deploy: Deploy) -> Iterator[Deployed]:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    made = [kind | {"metadata": {"name": n}, "value": value} for n, value in PRIORITIES.items()]
    classes = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    with deploying_scheduler(deploy, settings, "scheduler-preemption") as deployed:
        try:
            kubectl.run("apply", "--filename=-", stdin=classes)
            yield deployed
        finally:
            kubectl.run("delete", "--filename=-", "--ignore-not-found", stdin=classes)


@pytest.fixture
def deployed(whole: Deployed) -> Iterator[Deployed]:
    yield whole
    whole.kubectl.run(
        "delete", "poddisruptionbudgets", "--all", f"--namespace={whole.ground.cluster.namespace}"
    )
    whole.ground.clear()


def test_one_pod_leaves_within_its_grace_period_and_the_other_runs(deployed: Deployed) -> None:
    ground = deployed.ground
    _fill(ground, grace=30)
    began = time.monotonic()
    ground.cluster.create(_pod(ground, "prod", PROD, "e2e-prod"))
    wait("a pod is evicted", lambda: _leaving(ground), within=20)
    (victim,) = _leaving(ground)
    evicted = time.monotonic() - began
    assert _leaving(ground)[victim]["metadata"]["deletionGracePeriodSeconds"] == 30
    nominated = ground.cluster.pods()["prod"]
    assert CONDITION in {each["type"] for each in nominated["status"]["conditions"]}
    wait("it runs", lambda: _runs(ground, "prod"), within=30 + _TRY_AGAIN_SECONDS)
    ran = time.monotonic() - began
    assert _missing(ground) == {victim}
    ground.report(f"preemption: evicted after {evicted:.1f} s, grace 30 s, runs after {ran:.1f} s")
    pods = ground.settled(["prod"])
    ground.audit("after preemption", ground.cluster.pods())
    assert ground.refused(pods) == {}
    ground.wait_for_event(victim, "Preempted")
    ground.wait_for_event("prod", "GPUPreemption")
    wait(
        "no condition is left",
        lambda: CONDITION not in str(ground.cluster.pods()["prod"]["status"].get("conditions")),
    )


def test_a_pod_protected_by_a_budget_is_not_evicted(deployed: Deployed) -> None:
    ground = deployed.ground
    _fill(ground, app={name: "kept" for name in _names() if name != "batch-7b"})
    kept = len(_names()) - 1
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "kept", "namespace": ground.cluster.namespace},
        "spec": {"minAvailable": kept, "selector": {"matchLabels": {"app": "kept"}}},
    }
    deployed.kubectl.run("apply", "--filename=-", stdin=json.dumps(budget))
    where = ("poddisruptionbudget", "kept", f"--namespace={ground.cluster.namespace}")
    wait(
        "the budget is known",
        lambda: deployed.kubectl.json("get", *where)["status"].get("currentHealthy") == kept,
    )
    ground.cluster.create(_pod(ground, "prod", PROD, "e2e-prod"))
    ground.cluster.create(_pod(ground, "late", PROD, "e2e-prod"))
    wait("one runs", lambda: _runs(ground, "prod") or _runs(ground, "late"), within=40)
    waits = "late" if _runs(ground, "prod") else "prod"
    time.sleep(10)  # nothing may happen now: there is no event to wait for
    assert _missing(ground) == {"batch-7b"}
    assert phase(ground.cluster.pods()[waits]) == "Pending"
    deployed.kubectl.run("delete", *where)
    wait("the other runs too", lambda: _runs(ground, waits), within=90)
    assert len(_missing(ground)) == 2


def test_two_pods_at_once_get_a_card_each(deployed: Deployed) -> None:
    ground = deployed.ground
    _fill(ground, grace=5)
    pods = [_pod(ground, name, PROD, "e2e-prod") for name in ("prod-1", "prod-2")]
    running = ground.run(*pods)
    assert ground.refused(running) == {}
    assert len(_missing(ground)) == 2
    ground.audit("after two preemptions", ground.cluster.pods())


def test_replacements_of_victims_do_not_get_the_freed_cards(deployed: Deployed) -> None:
    ground = deployed.ground
    _fill(ground, grace=5)
    ground.cluster.create(_pod(ground, "prod", PROD, "e2e-prod"))
    wait("a pod is evicted", lambda: _leaving(ground), within=20)
    for number in range(3):
        ground.cluster.create(_pod(ground, f"again-{number}", BATCH, "e2e-batch"))
    wait("it runs", lambda: _runs(ground, "prod"), within=5 + _TRY_AGAIN_SECONDS)
    assert len(_missing(ground)) == 1
    assert not any(_runs(ground, f"again-{number}") for number in range(3))


def test_on_a_full_node_both_victims_leave_one_card(deployed: Deployed) -> None:
    """kube-scheduler would take any two: it calls the extender, which chooses."""
    ground = deployed.ground
    _fill(ground, cores=50, grace=5)
    cards = {name: _card(ground, name) for name in _names()}
    began = time.monotonic()
    ground.cluster.create(_pod(ground, "prod", 100, "e2e-prod"))
    wait("it runs", lambda: _runs(ground, "prod"), within=5 + 2 * _TRY_AGAIN_SECONDS)
    ground.report(f"preemption on a full node: runs after {time.monotonic() - began:.1f} s")
    ground.settled(["prod"])
    missing = _missing(ground)
    assert len(missing) == 2
    assert {cards[name] for name in missing} == {_card(ground, "prod")}


@pytest.mark.timeout(4000)
def test_a_killed_extender_evicts_no_pod_in_vain(deployed: Deployed) -> None:
    """It is killed somewhere between filter and Binding, and another pod needs a card then."""
    ground, installation, chance = deployed.ground, deployed.installation, Random(43)
    kills = ground.settings.kills
    _fill(ground, grace=2)
    waited = []
    for number in range(kills):
        began = time.monotonic()
        ground.cluster.create(_pod(ground, f"prod-{number}", PROD, "e2e-prod"))
        time.sleep(chance.uniform(0, 4))  # anywhere in it
        leader = installation.holder(KUBE_SCHEDULER)
        if leader is not None:
            kill("scheduler", leader["metadata"]["uid"])
            # Else the kubelet would wait longer after each kill before it starts it again.
            where = (leader["metadata"]["name"], f"--namespace={NAMESPACE}")
            deployed.kubectl.run("delete", "pod", *where, "--wait=false")
        wait(
            f"pod {number} runs",
            lambda name=f"prod-{number}": _runs(ground, name),  # type: ignore[misc]
            within=90,
        )
        waited.append(time.monotonic() - began)
        wait("the victims' end", lambda: not _leaving(ground))
        missing = _missing(ground)
        assert len(missing) == 1, f"kill {number}: {sorted(missing)} were evicted"
        ground.cluster.delete(f"prod-{number}")
        wait("its end", lambda name=f"prod-{number}": name not in ground.cluster.pods())  # type: ignore[misc]
        (victim,) = missing
        ground.run(_pod(ground, victim, BATCH, "e2e-batch", grace=2))
        installation.rolled_out(NAMESPACE, f"deployment/{KUBE_SCHEDULER}")
    ground.report(
        f"extender killed {kills} times: {kills} pods evicted for {kills}, 0 in vain; the pods run "
        f"after {min(waited):.1f} to {max(waited):.1f} s"
    )


def _names() -> list[str]:
    return [f"batch-{card}{letter}" for card in range(CARDS) for letter in "ab"]


def _pod(
    ground: Ground, name: str, cores: int, priority: str, *, grace: int = 1, app: str = ""
) -> Json:
    """Make a pod; its container ignores SIGTERM, as the first process of it, until it is killed."""
    containers = [ground.make.container("main", cores, 4)]
    spec = {"priorityClassName": priority, "terminationGracePeriodSeconds": grace}
    made = ground.make.pod(name, containers, **spec)
    made["metadata"]["labels"] = {"app": app} if app else {}
    return made


def _fill(
    ground: Ground, *, cores: int = BATCH, grace: int = 1, app: dict[str, str] | None = None
) -> None:
    labels = app or {}
    pods = [
        _pod(ground, name, cores, "e2e-batch", grace=grace, app=labels.get(name, ""))
        for name in _names()
    ]
    assert ground.refused(ground.run(*pods)) == {}


def _card(ground: Ground, name: str) -> str:
    (card,) = ground.allocations(ground.cluster.pods()[name])["main"].cards
    return card


def _leaving(ground: Ground) -> dict[str, Json]:
    pods = ground.cluster.pods()
    return {name: pod for name, pod in pods.items() if "deletionTimestamp" in pod["metadata"]}


def _missing(ground: Ground) -> set[str]:
    there = ground.cluster.pods().keys() - _leaving(ground).keys()
    return {*_names()} - there


def _runs(ground: Ground, name: str) -> bool:
    pod = ground.cluster.pods().get(name)
    return pod is not None and phase(pod) == "Running"

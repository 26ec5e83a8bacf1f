"""Kueue asks the controller of its admission checks: all pods find cards, or there is no quota.

The cluster has Kueue, which the suite does not install.
"""

import json
import time
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import DEPLOY
from tests.e2e.cluster import Json, KubectlError
from tests.e2e.ground import phase, wait
from tests.e2e.installation import Deploy, Deployed, deploying_scheduler, kill
from tests.e2e.manifests import CARDS
from tests.e2e.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

_GATES = "gpu-turnstile-gates"
_QUEUES = ("gpu-turnstile-e2e-a", "gpu-turnstile-e2e-b")
_JOB = "batch.kubernetes.io/job-name"


@pytest.fixture(scope="module")
def whole(settings: Settings, deploy: Deploy) -> Iterator[Deployed]:
    with deploying_scheduler(deploy, settings, "scheduler-queues") as deployed:
        yield deployed


class Queues:
    """Two queues in a cohort, each with half of all cards; Kueue evicts for one of them."""

    def __init__(self, deployed: Deployed) -> None:
        self.ground, self.installation = deployed.ground, deployed.installation
        self.namespace = self.ground.cluster.namespace
        self.kubectl = deployed.kubectl.inside(self.namespace)
        self._objects = [*self._made()]

    def open(self) -> None:
        self.apply(*self._objects)

    def close(self) -> None:
        self.kubectl.run("delete", "jobs", "--all", "--cascade=foreground", within=120)
        self.ground.clear()
        wait("the workloads' end", lambda: not self.workloads())
        for each in reversed(self._objects):  # what another one uses stays as long as that
            self.kubectl.run("delete", each["kind"], each["metadata"]["name"])

    def apply(self, *objects: Json) -> None:
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl.run("apply", "--filename=-", stdin=document)

    def _made(self) -> Iterator[Json]:
        names = self.ground.names
        check = yaml.safe_load((DEPLOY / "examples/kueue/check.yaml").read_text(encoding="utf-8"))
        group = {
            "coveredResources": [names.core, names.memory],
            "flavors": [
                {
                    "name": _QUEUES[0],
                    "resources": [
                        {"name": names.core, "nominalQuota": CARDS * 50},
                        {"name": names.memory, "nominalQuota": 10_000},
                    ],
                }
            ],
        }
        yield _kueue("ResourceFlavor", _QUEUES[0], {})
        yield check
        for name in _QUEUES:
            spec = {
                "cohortName": _QUEUES[0],
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": self.namespace}
                },
                "admissionChecksStrategy": {
                    "admissionChecks": [{"name": check["metadata"]["name"]}]
                },
                "preemption": {"reclaimWithinCohort": "Any"} if name == _QUEUES[1] else {},
                "resourceGroups": [group],
            }
            yield _kueue("ClusterQueue", name, spec)
            yield _kueue("LocalQueue", name, {"clusterQueue": name}, namespace=self.namespace)

    def job(
        self,
        name: str,
        cores: int,
        count: int = 1,
        *,
        queue: str = _QUEUES[0],
        run: str = "sleep 3600",
        grace: int = 0,
    ) -> Json:
        memory = None if cores == 100 else 4
        pod = self.ground.make.pod(
            name,
            [self.ground.make.container("main", cores, memory, run=run)],
            restartPolicy="Never",
            terminationGracePeriodSeconds=grace,
        )
        spec = {"parallelism": count, "completions": count, "backoffLimit": 0}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}},
            "spec": {**spec, "template": {"spec": pod["spec"]}},
        }

    def workloads(self) -> dict[str, Json]:
        """Return all workloads, by the name of their Job."""
        found = self.kubectl.items("workloads.kueue.x-k8s.io")
        return {each["metadata"]["ownerReferences"][0]["name"]: each for each in found}

    def with_condition(self, kind: str) -> set[str]:
        return {name for name, each in self.workloads().items() if _condition(each, kind)}

    def waits_without_quota(self, *names: str) -> bool:
        found = self.workloads()
        return all(
            name in found
            and not _condition(found[name], "QuotaReserved")
            and found[name]["status"]["admissionChecks"][0]["state"] == "Retry"
            for name in names
        )

    def running(self, *names: str) -> bool:
        """Return whether all pods of these Jobs run."""
        jobs = {each["metadata"]["name"]: each for each in self.kubectl.items("jobs")}
        return all(jobs[name]["status"].get("ready") == _count(jobs[name]) for name in names)

    def without_card(self) -> dict[str, str]:
        """Return what kube-scheduler says of pods that Kueue has let go, and that find no card."""
        return {
            name: str(each.get("message"))
            for name, pod in self.ground.cluster.pods().items()
            if not pod["spec"].get("schedulingGates") and phase(pod) == "Pending"
            for each in pod["status"].get("conditions") or ()
            if each.get("reason") == "Unschedulable"
        }


@pytest.fixture
def queues(whole: Deployed) -> Iterator[Queues]:
    try:
        whole.kubectl.run("get", "crd", "workloads.kueue.x-k8s.io")
    except KubectlError:
        pytest.skip("the cluster has no Kueue")
    made = Queues(whole)
    made.open()
    try:
        yield made
    finally:
        made.close()


def test_shares_with_quota_and_without_a_card_wait_without_quota(queues: Queues) -> None:
    names = [f"share-{at}" for at in range(CARDS + 4)]
    queues.apply(*(queues.job(name, 60) for name in names))
    wait("one runs on each card", lambda: len(queues.with_condition("Admitted")) == CARDS)
    admitted = queues.with_condition("Admitted")
    waiting = sorted(set(names) - admitted)
    wait("the others have no quota", lambda: queues.waits_without_quota(*waiting))
    (check,) = queues.workloads()[waiting[0]]["status"]["admissionChecks"]
    assert check["message"].startswith("no room on cards: cards for 0 of 1 pod: ")
    wait("all run", lambda: queues.running(*admitted))
    queues.kubectl.run("delete", "job", min(admitted))
    began = time.monotonic()
    wait("another one runs", lambda: len(queues.with_condition("Admitted")) == CARDS, within=20)
    queues.ground.report(f"Kueue: next workload {time.monotonic() - began:.1f} s after a card")
    assert queues.without_card() == {}


def test_a_gang_starts_whole_or_waits(queues: Queues) -> None:
    queues.apply(queues.job("small", 60))
    wait("a share runs", lambda: queues.running("small"))
    queues.apply(queues.job("gang", 60, CARDS))
    wait("it waits", lambda: queues.waits_without_quota("gang"))
    assert len(queues.ground.cluster.pods()) == 1
    queues.kubectl.run("delete", "job", "small")
    wait("it runs", lambda: queues.running("gang"))
    assert queues.without_card() == {}


def test_cards_of_pods_that_kueue_evicts_are_waited_for(queues: Queues) -> None:
    stubborn = "sh -c 'trap \"\" TERM; while true; do sleep 1; done'"
    queues.apply(queues.job("borrows", 100, CARDS // 2 + 2, run=stubborn, grace=15))
    wait("it borrows", lambda: queues.running("borrows"))
    queues.apply(queues.job("reclaims", 100, CARDS // 2, queue=_QUEUES[1]))
    wait("it is evicted", lambda: queues.with_condition("Evicted") == {"borrows"})
    began = time.monotonic()
    wait("the other one runs", lambda: queues.running("reclaims"))
    queues.ground.report(f"Kueue: runs {time.monotonic() - began:.1f} s after the eviction, of 15")
    assert queues.without_card() == {}


@pytest.mark.parametrize("seed", [1])
def test_no_admitted_pod_is_without_a_card_whatever_is_killed(queues: Queues, seed: int) -> None:
    random = Random(seed)
    shares, counts = (20, 30, 40, 50, 60, 100), (1, 1, 2, 3, 4, 8)
    made = [
        queues.job(
            f"random-{at}",
            random.choice(shares),
            random.choice(counts),
            queue=random.choice(_QUEUES),
            run=f"sleep {random.randint(1, 5)}",
        )
        for at in range(60)
    ]
    queues.apply(*made)
    seen: dict[str, str] = {}
    kills, killed, next_kill = 0, "", time.monotonic() + 5

    def finished() -> bool:
        nonlocal kills, killed, next_kill
        seen.update(queues.without_card())
        leader = queues.installation.holder(_GATES)
        uid = str(leader["metadata"]["uid"]) if leader else ""
        if kills < 4 and uid not in ("", killed) and time.monotonic() > next_kill:
            kill("gates", uid)
            kills, killed, next_kill = kills + 1, uid, time.monotonic() + 12
        return len(queues.with_condition("Finished")) == len(made)

    began = time.monotonic()
    wait("all have run", finished, within=400, pause=0.5)
    queues.ground.report(
        f"Kueue: {len(made)} workloads in {time.monotonic() - began:.0f} s, controller killed "
        f"{kills} times, {len(seen)} admitted pods without a card"
    )
    assert seen == {}
    failed = {name: phase(pod) for name, pod in queues.ground.cluster.pods().items()}
    assert set(failed.values()) <= {"Succeeded"}


def _kueue(kind: str, name: str, spec: Mapping[str, Any], **metadata: str) -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def _condition(workload: Json, kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == (kind, "True") for each in conditions)


def _count(job: Json) -> int:
    return int(job["spec"]["parallelism"])

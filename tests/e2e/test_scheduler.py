"""A second kube-scheduler with the extender in its pod: the agent allocates the cards it chose."""

import time
from collections.abc import Iterator

import pytest

from contract.requests import read_pod_demand
from tests.e2e.cluster import Json, KubectlError
from tests.e2e.ground import Ground, is_ready, phase, wait
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

CONTAINER = "scheduler"
"""The extender's, in each pod of that one."""


@pytest.fixture(scope="module")
def whole(settings: Settings, deploy: Deploy) -> Iterator[Deployed]:
    with deploying_scheduler(deploy, settings) as deployed:
        yield deployed


def test_containers_get_the_cards_that_the_extender_chose(deployed: Deployed) -> None:
    """By the extender's log: the agent writes the annotation too, once it has decided."""
    ground = deployed.ground
    pods = ground.run(*ground.make.burst(30, seed=5), ground.make.single("whole", 200))
    seen = ground.check("burst through the extender", pods)
    got = {(each.pod, each.container.name): each.visible for each in seen}
    namespace = f"{ground.cluster.namespace}/"
    bound = {
        line["pod"].removeprefix(namespace): _cards(line["cards"])
        for line in deployed.installation.lines(KUBE_SCHEDULER, CONTAINER)
        if line.get("message") == "bound" and line["pod"].startswith(namespace)
    }
    assert bound.keys() == pods.keys()
    for name, chosen in bound.items():
        assert chosen == {each: _indices(got[name, each]) for each in chosen}, name
        requests = read_pod_demand(pods[name], ground.names)[0].containers
        assert chosen.keys() == {each.name for each in requests}, name


def test_a_pod_that_no_card_has_room_for_waits_and_is_bound_after_a_release(
    deployed: Deployed,
) -> None:
    """A stock scheduler would bind it, for the node has enough free cores, and it would fail."""
    ground = deployed.ground
    ground.run(*(ground.make.single(f"full-{number}", 60, 4) for number in range(CARDS)))
    ground.cluster.create(ground.make.single("waits", 50, 4))
    wait("its refusal", lambda: "no card has 50 cores" in _why_not(ground.cluster.pods()["waits"]))
    assert "nodeName" not in ground.cluster.pods()["waits"]["spec"]
    ground.cluster.delete("full-7")
    wait("it runs", lambda: phase(ground.cluster.pods()["waits"]) == "Running", within=30)


@pytest.mark.parametrize("killed", ["the extender", "its pod", "kube-scheduler"])
def test_a_leader_that_ends_or_is_killed_fails_no_pod_of_a_burst(
    deployed: Deployed, killed: str
) -> None:
    ground, installation = deployed.ground, deployed.installation
    burst = [ground.make.single(f"burst-{number}", 10, 4) for number in range(90)]
    half = len(burst) // 2
    creating = ground.submit(burst[:half])
    wait("a part of the burst is bound", lambda: len(_bound(ground)) > half // 2)
    leader = installation.holder(KUBE_SCHEDULER)
    assert leader is not None
    if killed == "its pod":  # with its grace period: both containers end in their order
        name = leader["metadata"]["name"]
        deployed.kubectl.run("delete", "pod", name, f"--namespace={NAMESPACE}", "--wait=false")
    else:
        program = "scheduler" if killed == "the extender" else "kube-scheduler"
        kill(program, leader["metadata"]["uid"])
    ended = time.monotonic()
    creating += ground.submit(burst[half:])  # pods come after the end, however fast the others are
    at_the_end = len(_bound(ground))
    for done in creating:
        done.result(60)
    wait("another one is bound", lambda: len(_bound(ground)) > at_the_end, within=60)
    gap = time.monotonic() - ended
    pods = ground.settle(creating)
    ground.report(
        f"{killed} ended with {at_the_end} of {len(burst)} pods bound, next after {gap:.1f} s"
    )
    ground.check(f"after the end of {killed}", pods)
    installation.rolled_out(NAMESPACE, f"deployment/{KUBE_SCHEDULER}")


def test_only_the_extenders_own_pod_may_request_a_binding(deployed: Deployed) -> None:
    """By the pod's address; the API server's proxy is no client of its own pod either."""
    leader = deployed.installation.holder(KUBE_SCHEDULER)
    assert leader is not None
    port = f"{leader['metadata']['name']}:8444"
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{port}/proxy/bind"
    with pytest.raises(KubectlError, match="only requests from the same pod are handled"):
        deployed.kubectl.run("create", "--raw", path, "--filename=-", stdin="{}")


def test_pods_without_gpus_stay_with_the_cluster_s_own_scheduler(deployed: Deployed) -> None:
    ground = deployed.ground
    ground.cluster.create(ground.make.plain("plain"))
    gpu = ground.run(ground.make.single("gpu", 10, 4))["gpu"]
    wait("the plain pod runs", lambda: is_ready(ground.cluster.pods()["plain"]))
    schedulers = {name: pod["spec"]["schedulerName"] for name, pod in ground.cluster.pods().items()}
    assert schedulers == {"plain": "default-scheduler", "gpu": "gpu-turnstile-scheduler"}
    assert ground.refused({"gpu": gpu}) == {}


def _bound(ground: Ground) -> list[str]:
    return [name for name, pod in ground.cluster.pods().items() if pod["spec"].get("nodeName")]


def _why_not(pod: Json) -> str:
    conditions = pod["status"].get("conditions") or ()
    return " ".join(str(each.get("message")) for each in conditions if each["status"] == "False")


def _cards(text: str) -> dict[str, set[int]]:
    """Read the cards of each container as the extender logs them: ``c0: 3, c1: 4,5``."""
    parts = [each.partition(": ") for each in text.split(", ") if each]
    return {name: set(map(int, cards.split(","))) for name, _, cards in parts}


def _indices(visible: tuple[str, ...] | None) -> set[int]:
    return {int(each.split("-")[1]) for each in visible or ()}

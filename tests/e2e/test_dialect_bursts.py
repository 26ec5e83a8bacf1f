"""Bursts of shares of several cards, half of the pods written for other systems."""

from collections.abc import Iterator
from random import Random

import pytest

from contract.demand import Demand
from contract.names import Names
from contract.requests import read_pod_demand
from tests.deploy.kustomize import build_components
from tests.deploy.manifests import containers, environment, pod_specs
from tests.e2e.cluster import Json
from tests.e2e.ground import wait
from tests.e2e.manifests import Maker, dialect_webhooks
from tests.e2e.stage import Stage, Webhook
from tests.foreign_pods import FOREIGN

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PODS = 60
UNDER_WAY = 25
SHARES = [each for each in FOREIGN if each.demand.is_share]


@pytest.fixture(scope="module")
def accepting(whole_stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """A webhook beside the stage's that translates, with the component's entry."""
    (container,) = containers(
        pod_specs(build_components("dialects"))["Deployment/gpu-turnstile-webhook"]
    )
    accept = environment(container)["GPU_TURNSTILE_WEBHOOK_ACCEPT"]
    stage, folder = whole_stage, tmp_path_factory.mktemp("accepting")
    configuration = dialect_webhooks(stage.cluster.namespace)
    webhook = Webhook(stage.cluster, folder, stage.settings.webhook_host, "--accept", accept)
    try:
        webhook.start()
        webhook.install(configuration)
        probe = stage.make.pod(
            "probe", [stage.make.idle("main", resources={"limits": {"nvidia.com/gpu": "1"}})]
        )

        def translated() -> bool:
            made = stage.cluster.create(probe, dry_run=True)
            return stage.names.translated_from in (made["metadata"].get("annotations") or {})

        wait("the API server calls the webhook", translated)
        yield webhook
    finally:
        stage.cluster.delete_webhooks(configuration["metadata"]["name"])
        webhook.stop()


def _burst(make: Maker, names: Names, *, seed: int) -> tuple[list[Json], dict[str, list[Demand]]]:
    """Draw pods, and what their containers must get: all fit at the same time."""
    random, pods, wanted = Random(seed), [], {}
    for number in range(PODS):
        drawn = _foreign if number % 2 else _divided
        pod, demands = drawn(make, names, f"burst-{number}", number // 2, random)
        pods.append(pod)
        wanted[pod["metadata"]["name"]] = demands
    return pods, wanted


def _divided(
    make: Maker, names: Names, name: str, number: int, random: Random
) -> tuple[Json, list[Demand]]:
    drawn = {}
    for container in ("c0", "c1") if number % 4 == 0 else ("c0",):
        cards = random.choice((2, 3))
        drawn[container] = Demand(
            random.choice((4, 6)) * cards, random.choice((2, 4)) * cards, cards
        )
    if number % 4 == 0:  # c0 takes all that it leaves
        cards = random.randint(2, drawn["c0"].cards)
        drawn = {"init": Demand(4 * cards, 2 * cards, cards), **drawn}
    made = {
        container: make.container(
            container, each.cores, each.memory, run="true" if container == "init" else "sleep 3600"
        )
        for container, each in drawn.items()
    }
    init = [made.pop("init")] if "init" in made else []
    pod = make.pod(name, [*made.values()], initContainers=init)
    pod["metadata"]["annotations"] = {
        names.gpu_cards_of(container): str(each.cards) for container, each in drawn.items()
    }
    return pod, [*drawn.values()]


def _foreign(
    make: Maker, names: Names, name: str, number: int, random: Random
) -> tuple[Json, list[Demand]]:
    """Draw a pod of another system; every fourth that may has an init container with a request."""
    written = SHARES[number % len(SHARES)]
    resources = {"limits": written.resources}
    init = []
    if written.resources and random.random() < 1 / 4:
        init = [make.idle("init", run="true", resources=resources)]
    pod = make.pod(name, [make.idle("main", resources=resources)], initContainers=init)
    pod["metadata"]["annotations"] = dict(written.annotations)
    return pod, [written.demand] * (1 + len(init))


@pytest.mark.parametrize("midway", ["nothing", "agent killed", "kubelet killed"])
@pytest.mark.usefixtures("accepting")
def test_every_container_gets_its_own_parts_of_its_own_cards(admitting: Stage, midway: str) -> None:
    stage = admitting
    if midway == "kubelet killed" and not stage.settings.kill_kubelet:
        pytest.skip("GPU_TURNSTILE_E2E_KILL_KUBELET names no command")
    burst, wanted = _burst(stage.make, stage.names, seed=41)
    creating = stage.submit(burst)
    stage.wait_for_allocations(UNDER_WAY)
    stage.disturb(midway)
    pods = stage.settle(creating)
    for name, pod in pods.items():
        demand, errors = read_pod_demand(pod, stage.names)
        assert ([each.demand for each in demand.containers], errors) == (wanted[name], ())
    messages = stage.refused(pods)
    if midway == "kubelet killed":  # what was in the middle of it, by the kubelet's own words
        assert [each for each in messages.values() if "gpu-turnstile" in each] == []
    else:
        assert messages == {}
    seen = stage.audit(f"shares and dialects, {midway}", pods, init_recorded=midway == "nothing")
    several = [each for each in seen if each.container.demand.cards > 1]
    stage.report(
        f"shares and dialects, {midway}: {len(several)} of {len(seen)} containers on several "
        f"cards, {len(messages)} pods refused by the kubelet"
    )
    assert midway == "kubelet killed" or len(seen) >= PODS
    assert several

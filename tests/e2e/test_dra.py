"""The component ``dra``, installed: cards by claims, with the limits kept."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from random import Random

import pytest

from bench import start
from contract.claims import named_template
from tests.e2e.claimed import Claimed, ClaimGround, claiming
from tests.e2e.cluster import ApiError, Cluster, Json, Kubectl, KubectlError
from tests.e2e.ground import is_ready, occupied, phase, wait
from tests.e2e.installation import NAMESPACE
from tests.e2e.manifests import CARDS
from tests.e2e.settings import Settings
from view.model.state import ClusterState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PODS = 60
KUBE_CONTROLLER_MANAGER_SECONDS = 5
"""It writes 20 times a second, after 30 at once; the next burst must not wait for the last one."""
SWEPT_AFTER = 60
"""Seconds after which the tests' claims program sweeps a template that no pod names."""


@pytest.fixture(scope="module")
def claim_ground(
    settings: Settings, cluster: Cluster, kubectl: Kubectl, node: str, report: Callable[[str], None]
) -> Iterator[ClaimGround]:
    ground = ClaimGround(
        settings, cluster, kubectl=kubectl, node=node, report=report, enforced=True
    )
    if why := ground.missing_support():
        pytest.skip(why)
    with occupied(ground):
        yield ground


@pytest.fixture(scope="module")
def whole(claim_ground: ClaimGround, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Claimed]:
    with claiming(claim_ground, tmp_path_factory.mktemp("dra"), unused=SWEPT_AFTER) as claimed:
        try:
            yield claimed
        finally:
            claimed.ground.clear()  # without its driver, the kubelet does not end a pod


@pytest.fixture
def claimed(whole: Claimed) -> Iterator[Claimed]:
    """The installation, ready, with no pod of the tests on it."""
    yield whole
    whole.ground.clear()


def _burst(ground: ClaimGround, *, seed: int) -> list[Json]:
    """Draw pods; every second one without init containers has shares of two cards."""
    random = Random(seed)
    pods = ground.make.burst(PODS, seed=seed)
    for pod in [each for each in pods if not each["spec"]["initContainers"]][::2]:
        first = pod["spec"]["containers"][0]
        limits = first["resources"]["limits"]
        limits[ground.names.core], limits[ground.names.memory] = str(random.choice((8, 12))), "8"
        pod["metadata"]["annotations"] = {ground.names.gpu_cards_of(first["name"]): "2"}
    return pods


def test_the_api_server_has_no_warning_about_policies(claimed: Claimed) -> None:
    assert claimed.installation.policy_warnings() == {}


@pytest.mark.parametrize("midway", ["nothing", "agent", "kubelet", "claims"])
def test_every_container_gets_its_own_limits(claimed: Claimed, midway: str) -> None:
    """Whatever is killed in the burst: thrice the agent, the kubelet, or both claims programs."""
    ground = claimed.ground
    if midway == "kubelet" and not ground.settings.kill_kubelet:
        pytest.skip("GPU_TURNSTILE_E2E_KILL_KUBELET names no command")
    pods = _burst(ground, seed=len(midway))
    with claimed.timed(f"burst of {PODS} pods, killed: {midway}"):
        made = ground.submit(pods)
        if midway == "agent":
            for part in (0, PODS // 4, PODS // 2):
                wait("a part runs", partial(claimed.runs_more_than, part))
                claimed.kill("agent")
        elif midway == "kubelet":
            wait("a part runs", lambda: claimed.running() > PODS / 4)
            ground.kill_kubelet()
        elif midway == "claims":
            claimed.kill("claims", NAMESPACE)
        running = ground.settle(made)
    seen = ground.check(f"claims, killed: {midway}", running)
    assert {each.recorded.evidence.value for each in seen if each.recorded} == {"claim"}
    held = sum(len(ids) for each in ground.listed().values() for ids in each.values())
    assert held
    _assert_nothing_allocated_twice(ground)


@pytest.mark.timeout(1200)
def test_the_start_of_a_burst_is_measured(claimed: Claimed) -> None:
    found = start.run(turns=3)
    claimed.ground.report(f"bench start: {found.tables[0].rows}")
    assert [row[0] for row in found.tables[0].rows] == ["claims"]


def test_a_burst_with_a_killed_agent_is_timed(claimed: Claimed) -> None:
    """To be compared with that of the device plugin."""
    ground = claimed.ground

    def kill() -> None:
        for part in (0, 9, 18):
            wait("a part runs", partial(claimed.runs_more_than, part))
            claimed.kill("agent")

    for _ in range(3):
        ground.report(f"claims, agent killed thrice: {ground.run_timed(36, kill)}")
        ground.clear()
        wait("the end of all claims", lambda: not ground.claims())
        time.sleep(KUBE_CONTROLLER_MANAGER_SECONDS)


def _assert_nothing_allocated_twice(ground: ClaimGround) -> None:
    sums: dict[tuple[str, str], int] = {}
    for claim in ground.claims():
        for each in claim["status"]["allocation"]["devices"]["results"]:
            for capacity, amount in each["consumedCapacity"].items():
                key = each["device"], capacity
                sums[key] = sums.get(key, 0) + int(amount)
    assert all(amount <= 100 for amount in sums.values()), sums


def test_quota_and_limit_range_count_limits(claimed: Claimed) -> None:
    ground, core = claimed.ground, claimed.ground.names.core
    quota = {"hard": {f"requests.{core}": "100"}}
    bounds = {"limits": [{"type": "Container", "max": {core: "60"}}]}
    claimed.create({"apiVersion": "v1", "kind": "ResourceQuota", "spec": quota}, "quota")
    claimed.create({"apiVersion": "v1", "kind": "LimitRange", "spec": bounds}, "bounds")
    try:
        running = ground.run(ground.make.single("first", 60, 4))
        assert phase(running["first"]) == "Running"
        wait("the quota counts it", lambda: claimed.used("quota") == {f"requests.{core}": "60"})
        with pytest.raises(ApiError, match="exceeded quota: quota"):
            ground.cluster.create(ground.make.single("second", 60, 4))
        with pytest.raises(ApiError, match=f"maximum {core} usage per Container is 60"):
            ground.cluster.create(ground.make.single("third", 70, 4))
    finally:
        claimed.delete("resourcequota/quota", "limitrange/bounds")


def test_claims_go_with_their_pods_and_templates_soon_after(claimed: Claimed) -> None:
    """Twenty shapes: each has other amounts."""
    ground, shapes = claimed.ground, 20
    pods = [
        ground.make.pod(
            f"short-{number}",
            [ground.make.container("main", 1, number % shapes + 1, run="true")],
            restartPolicy="Never",
        )
        for number in range(ground.settings.sweep_pods)
    ]
    named = set[str]()
    with claimed.timed(f"{len(pods)} pods of {shapes} shapes ended"):
        for made in ground.submit(pods):
            named.add(named_template(made.result(120)))
        assert len(named) == shapes
        ended = partial(claimed.count, lambda pod: phase(pod) in ("Succeeded", "Failed"))
        wait("their end", lambda: ended() == len(pods), within=400)
    assert ground.refused(ground.cluster.pods()) == {}
    with claimed.timed("their claims went"):
        wait("no claim is left", lambda: not ground.claims())
    ground.clear()
    with claimed.timed(f"templates swept, {SWEPT_AFTER} s after the last pod"):
        wait("no template is left", lambda: not ground.templates(), within=SWEPT_AFTER + 60)
    assert ground.prepared() == []


def test_an_agent_unavailable_for_a_minute_fails_no_pod(claimed: Claimed) -> None:
    ground = claimed.ground
    with claimed.without_agent():
        made = ground.submit([ground.make.single(f"late-{number}", 10, 4) for number in range(10)])
        names = [each.result(60)["metadata"]["name"] for each in made]
        wait("all are bound", lambda: claimed.count(lambda pod: "nodeName" in pod["spec"]) == 10)
        time.sleep(60)
        assert claimed.running() == 0
    with claimed.timed("10 pods ran after a minute without an agent"):
        running = ground.settled(names)
    ground.check("a minute without an agent", running)


def test_an_emptied_cdi_folder_is_filled_again(claimed: Claimed) -> None:
    """As after a reboot: the kubelet starts with new sandboxes."""
    ground = claimed.ground
    running = ground.run(*(ground.make.single(f"stays-{number}", 10, 4) for number in range(3)))
    for each in ground.prepared():
        each.unlink()
    claimed.kill_sandboxes()

    def run_again() -> bool:
        pods = ground.cluster.pods().values()
        started = [each for pod in pods for each in pod["status"]["containerStatuses"]]
        return all(map(is_ready, pods)) and all(each["restartCount"] for each in started)

    wait("they run again", run_again, within=180)
    assert len(ground.prepared()) == len(running)
    ground.audit("CDI folder emptied", ground.settled(running))


def test_a_deleted_slice_comes_back(claimed: Claimed) -> None:
    ground = claimed.ground
    ground.kubectl.run("delete", "resourceslices", f"--field-selector=spec.driver={ground.driver}")
    wait("the slice", lambda: len(ground.devices()) == CARDS, within=90)
    ground.audit("slice deleted", ground.run(ground.make.single("after", 10, 4)))


CHAIN, CLIQUE = [(0, 1), (1, 2)], [*combinations((3, 4, 5), 2)]
ALLOCATED_SETS = [(0, 1), *CLIQUE, (3, 4, 5)]
"""Of the sets of two or three cards of the chain, and of the clique."""


def test_kube_scheduler_allocates_one_pair_of_a_chain_and_every_set_of_a_clique(
    claimed: Claimed,
) -> None:
    """``kubectl gpu fit`` predicts each."""
    ground = claimed.ground
    sets = [
        each
        for trio in ((0, 1, 2), (3, 4, 5))
        for size in (2, 3)
        for each in combinations(trio, size)
    ]
    with claimed.linked([*CHAIN, *CLIQUE]):
        groups = [{"gpu-0", "gpu-1"}, {"gpu-3", "gpu-4", "gpu-5"}]
        wait("the groups", lambda: claimed.nvlink_groups() == groups, within=90)
        wait("the node's counts", lambda: ground.offered() == CARDS * 100)
        allocated = [each for each in sets if _is_allocated(claimed, each)]
    assert allocated == ALLOCATED_SETS
    ground.report(f"gpu-link nvlink by claim, of {len(sets)} sets: {allocated}")


def _is_allocated(claimed: Claimed, cards: tuple[int, ...]) -> bool:
    """Create a pod that wants exactly these cards; assert that ``fit`` predicts the result."""
    ground, name = claimed.ground, "set-" + "-".join(map(str, cards))
    uuids = ground.devices()
    wanted = [uuids[f"gpu-{each}"] for each in cards]
    pod = ground.make.single(name, 100 * len(cards))
    pod["metadata"]["annotations"] = {
        ground.names.gpu_link: "nvlink",
        ground.names.use_gpu_uuid: ",".join(wanted),
    }
    state = ClusterState(ground.names, now=lambda: datetime.now(UTC))
    state.put_node(ground.cluster.node(ground.node))
    predicted = state.fit(pod)[0].fits
    ground.cluster.create(pod)
    wait(f"{name} is decided", lambda: claimed.scheduled(name) is not None)
    allocated = bool(claimed.scheduled(name))
    if allocated:
        running = ground.settled([name])
        assert {*ground.allocations(running[name])["main"].cards} == {*wanted}
    assert predicted == allocated, cards
    ground.clear()
    wait("the claim's end", lambda: not ground.claims())
    return allocated


def test_the_second_pod_of_a_card_allocated_twice_waits_for_the_first(claimed: Claimed) -> None:
    """As two schedulers would do it: the second pod waits, and does not fail."""
    ground = claimed.ground
    first = ground.run(ground.make.single("first", 100))["first"]
    second = ground.make.single("second", 100)
    second["spec"]["schedulerName"] = "e2e-by-hand"
    ground.cluster.create(second)
    claimed.allocate_as(first, "second")
    ground.wait_for_event("second", "FailedPrepareDynamicResources")
    assert phase(ground.cluster.pods()["second"]) == "Pending"
    ground.cluster.delete("first")
    with claimed.timed("a card allocated twice: the second ran after the first's end"):
        running = ground.settled(["second"])
    ground.check("allocated twice", running)


def test_a_pod_without_a_claim_is_denied(claimed: Claimed) -> None:
    """A later webhook may cause it: the policy checks the final object."""
    ground = claimed.ground
    made = ground.cluster.create(ground.make.single("good", 10, 4), dry_run=True)
    assert named_template(made)
    bare = ground.make.single("static", 10, 4)
    bare["spec"]["nodeName"] = ground.node
    with pytest.raises(ApiError, match="nodeName"):
        ground.cluster.create(bare)
    own = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "spec": {
            "devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": ground.driver}}]}
        },
    }
    with pytest.raises(KubectlError, match="no quota counts a claim"):
        claimed.create(own, "own")

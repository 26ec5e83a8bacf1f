"""The kubelet is upgraded and set back in place: GPU pods run, and others start at that moment."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest

from contract.inventory import Amounts
from contract.names import Names
from tests.e2e.cluster import Json
from tests.e2e.ground import Ground, Seen, is_ready, phase, wait, was_admitted_again
from tests.e2e.installation import Deploy, Deployed, kill
from tests.e2e.manifests import BLOCKS, CARDS, Maker
from tests.e2e.settings import Settings
from tests.e2e.stage import Stage
from tests.e2e.test_bursts import adverse_burst, unexplained

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

STAYING, STARTING, LATER = 14, 30, 16
UNDER_WAY = 5
"""Pods of the burst that run when the kubelet is ended."""
PUBLISHED_SECONDS = 15.0
VERSION_SECONDS = 180.0
_POLL_SECONDS = 0.2
_T = TypeVar("_T")
_ALL_FREE = (Amounts(100, BLOCKS),) * CARDS
BY_THE_KUBELET = (
    "no healthy devices present",  # K11, K19: it admits the pod before we are registered
    "client connection is closing",
)


@pytest.fixture(scope="module", autouse=True)
def _commands(settings: Settings) -> None:
    if not settings.upgrade_kubelet:
        pytest.skip("GPU_TURNSTILE_E2E_UPGRADE_KUBELET names no commands")


@pytest.fixture(scope="module")
def whole(deploy: Deploy) -> Iterator[Deployed]:
    with deploy() as deployed:
        yield deployed


@pytest.mark.parametrize("meanwhile", ["nothing", "agents killed", "agents replaced"])
def test_pods_of_an_installation_survive_upgrades_of_the_kubelet(
    deployed: Deployed, meanwhile: str
) -> None:
    installation = deployed.installation

    def kill_agent() -> None:
        for each in installation.agent_uids():
            kill("agent", each)

    acts = {
        "nothing": lambda: None,
        "agents killed": kill_agent,
        "agents replaced": installation.roll_agents,
    }
    with _going_back(deployed.ground):
        _Upgrades(deployed.ground).run(f"installed, {meanwhile}", acts[meanwhile])


def test_no_pod_fails_on_a_node_that_is_drained_for_the_upgrade(deployed: Deployed) -> None:
    with _going_back(deployed.ground):
        for number, step in enumerate(deployed.ground.settings.upgrade_kubelet):
            _upgrade_drained(deployed, number, step)


def _upgrade_drained(deployed: Deployed, number: int, step: Sequence[str]) -> None:
    ground, kubectl = deployed.ground, deployed.kubectl
    ground.run(*ground.make.burst(STAYING, seed=51))
    kubectl.run(
        *("drain", ground.node, "--force", "--ignore-daemonsets", "--delete-emptydir-data"),
        "--pod-selector=!app.kubernetes.io/name",  # our own pods stay
        within=180,
    )
    made = _named(f"drained-{number}", ground.make.burst(STARTING, seed=number))
    for each in made:
        del each["spec"]["tolerations"]  # it would tolerate the cordon
    creating = ground.submit(made)
    versions, _ = _execute(ground, step, lambda: None)
    deployed.wait_for_cards()
    kubectl.run("uncordon", ground.node)
    pods = ground.settle(creating)
    ground.check(f"drained, {versions}", pods)
    ground.clear()


@pytest.mark.parametrize("meanwhile", ["nothing", "agent killed", "agent upgraded"])
def test_pods_survive_upgrades_of_the_kubelet(stage: Stage, meanwhile: str) -> None:
    """A killed agent is away until the next kubelet starts."""
    upgrades = _Upgrades(stage)
    with _going_back(stage):
        if meanwhile == "nothing":
            upgrades.run(meanwhile)
        elif meanwhile == "agent upgraded":
            upgrades.run(meanwhile, stage.upgrade_agent)
        else:
            kill_agent = partial(stage.agent.stop, signal.SIGKILL)
            upgrades.run(meanwhile, stage.agent.start, before=kill_agent)
    stage.wait_for_cards()


class _Upgrades:
    """Pods that run through all upgrades, and bursts of pods at each one."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def run(
        self,
        what: str,
        after: Callable[[], object] = lambda: None,
        *,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Take all steps; *before* and *after* are done around each command, in mid-burst."""
        ground = self._ground
        staying = ground.run(*_staying(ground.make, ground.names))
        wait("all containers run", lambda: all(map(is_ready, ground.cluster.pods().values())))
        refused = self._adverse("before")  # an older List goes on to show these
        self._keep(staying)
        wanted = self._judge(f"{what}, before", staying)
        free = self._steady_amounts()
        for number, step in enumerate(ground.settings.upgrade_kubelet):
            made = _named(f"start-{number}", ground.make.burst(STARTING, seed=60 + number))
            creating = ground.submit(made[::2])
            wait("a burst is under way", partial(self._are_under_way, made))
            with _collecting(ground.free_amounts) as seen_free:
                before()

                def then(rest: Sequence[Json] = made[1::2]) -> list[Future[Json]]:
                    submitted = ground.submit(rest)
                    after()
                    return submitted

                versions, late = _execute(ground, step, then)
                pods = ground.settle([*creating, *late])
            begun, listed = f"{what}, {versions}", ground.cluster.pods()
            staying = {name: listed[name] for name in staying}
            lost = self._explain(begun, staying, pods)
            now = self._judge(begun, staying | pods)
            wanted = {each: seen for each, seen in wanted.items() if each[0] not in lost}
            assert {each: now.get(each) for each in wanted} == wanted
            wait("the node's cards", self._offers_all, within=VERSION_SECONDS)
            self._keep(staying)
            if lost:
                staying = {name: pod for name, pod in staying.items() if name not in lost}
                free = self._steady_amounts()
            else:
                assert not [each for each in seen_free if _exceeds(each, free)]
                wait("the free amounts from before", partial(self._is_free, free))
            later = self._adverse(f"later-{number}")
            self._judge(f"{begun}, later", staying | later)
            self._keep(staying)
        assert refused.keys() & ground.cluster.pods().keys()
        ground.clear()
        wait("everything is free", partial(self._is_free, _ALL_FREE))

    def _adverse(self, prefix: str) -> dict[str, Json]:
        """Run a burst of pods of which some are refused, each for its own reason."""
        ground = self._ground
        drawn = adverse_burst(ground.make, ground.names, LATER, seed=70)
        _named(prefix, [each.manifest for each in drawn])
        burst = [replace(each, deleted=False) for each in drawn]
        pods = ground.run(*(each.manifest for each in burst))
        assert unexplained(burst, ground.refused(pods)) == {}
        return pods

    def _are_under_way(self, made: Sequence[Json]) -> bool:
        pods = self._ground.cluster.pods()
        run = [each for each in _names(made) if each in pods and phase(pods[each]) == "Running"]
        return len(run) >= UNDER_WAY

    def _judge(self, what: str, pods: dict[str, Json]) -> dict[tuple[str, str], Seen]:
        seen = self._ground.audit(what, pods, init_recorded=False)
        return {(each.pod, each.container.name): each for each in seen}

    def _explain(self, what: str, staying: dict[str, Json], pods: dict[str, Json]) -> set[str]:
        """Report which pods failed, and fail if not by the kubelet; return those that ran."""
        ground = self._ground
        lost, failed = ground.refused(staying), ground.refused(pods)
        restarts = sum(
            each["restartCount"]
            for pod in staying.values()
            for each in pod["status"].get("containerStatuses", ())
        )
        ground.report(
            f"{what}: {len(lost)} of {len(staying)} running pods ended, {restarts} containers "
            f"restarted; {len(failed)} of {len(pods)} starting pods failed"
        )
        for words, count in Counter((*lost.values(), *failed.values())).most_common():
            ground.report(f"  {count} times {words[:200]}")
        assert {n: w for n, w in lost.items() if not was_admitted_again(staying[n], w)} == {}
        assert {
            name: words
            for name, words in failed.items()
            if not any(text in words for text in BY_THE_KUBELET)
            and not ground.was_interrupted(words)
        } == {}
        return set(lost)

    def _keep(self, staying: Mapping[str, Json]) -> None:
        """Delete all other pods that run; those that were refused remain."""
        cluster = self._ground.cluster
        pods = cluster.pods()
        ended = {each for each in pods.keys() - staying.keys() if phase(pods[each]) != "Failed"}
        for each in ended:
            cluster.delete(each)
        wait("the other pods' end", lambda: not ended & cluster.pods().keys())
        listed = self._ground.listed
        wait("their end in List", lambda: not ended & {pod for pod, _ in listed()})

    def _offers_all(self) -> bool:
        return self._ground.offered() == CARDS * 100

    def _is_free(self, wanted: Sequence[Amounts]) -> bool:
        return self._ground.free_amounts() == wanted

    def _steady_amounts(self) -> Sequence[Amounts]:
        """Return the free amounts once the agent has had time to publish them."""
        time.sleep(PUBLISHED_SECONDS)
        return self._ground.free_amounts()


@contextmanager
def _collecting(look: Callable[[], Sequence[Amounts]]) -> Iterator[set[Sequence[Amounts]]]:
    """Collect what the agent says is free on each card, over a time."""
    seen: set[Sequence[Amounts]] = set()
    over = threading.Event()

    def collect() -> None:
        while not over.wait(_POLL_SECONDS):
            seen.add(look())

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(collect)
        try:
            yield seen
        finally:
            over.set()
    running.result()


def _exceeds(found: Sequence[Amounts], most: Sequence[Amounts]) -> bool:
    return not all(limit.covers(each) for each, limit in zip(found, most, strict=True))


def _staying(make: Maker, names: Names) -> list[Json]:
    """Make pods of all kinds: shares, whole cards, shares of two cards, init containers."""
    init = make.container("init", 20, 8, run="true")
    pods = [
        *_named("staying", make.burst(STAYING, seed=50)),
        make.single("whole", 100, BLOCKS),
        make.single("two-whole", 200),
        make.pod("two-parts", [make.container("main", 30, 12)]),
        make.pod(
            "init-and-sidecar",
            [make.container("main", 10, 4)],
            initContainers=[init, make.container("sidecar", 5, 4, restartPolicy="Always")],
        ),
    ]
    pods[-2]["metadata"]["annotations"] = {names.gpu_cards_of("main"): "2"}
    return pods


def _named(prefix: str, made: list[Json]) -> list[Json]:
    for number, each in enumerate(made):
        each["metadata"]["name"] = f"{prefix}-{number}"
    return made


def _names(made: Iterable[Json]) -> list[str]:
    return [each["metadata"]["name"] for each in made]


@contextmanager
def _going_back(ground: Ground) -> Iterator[None]:
    """Go back to the first version, if a test fails before it takes the last step."""
    first = ground.kubelet_version()
    try:
        yield
    finally:
        if ground.kubelet_version() != first:
            ground.execute(ground.settings.upgrade_kubelet[-1])


def _execute(ground: Ground, step: Sequence[str], then: Callable[[], _T]) -> tuple[str, _T]:
    """Change the kubelet's version by a command; return both versions, and what *then* returns.

    *then* is called while the next kubelet starts.
    """
    before = ground.kubelet_version()
    ground.execute(step)
    result = then()
    # It first waits some seconds for each container whose start the command has cut.
    wait("another version", lambda: ground.kubelet_version() != before, within=VERSION_SECONDS)
    return f"{before} -> {ground.kubelet_version()}", result

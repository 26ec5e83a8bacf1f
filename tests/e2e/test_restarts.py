"""Agent, kubelet and proxy end while pods are created all the time."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.ground import phase, wait, was_admitted_again
from tests.e2e.manifests import CARDS
from tests.e2e.stage import PATIENCE, Stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

TIMES = 4
SECONDS = 75.0
UNDER_WAY = 40
FEW = 8
"""So few pods wait on the node, even if it is slow."""
OFFERED = CARDS * 100
_POLL_SECONDS = 0.2
_SENTENCE = "has been unavailable for more than"


@pytest.mark.parametrize("how", ["killed", "upgraded"])
def test_the_end_of_an_agent_fails_no_pod(stage: Stage, how: str) -> None:
    staying = stage.run(*stage.make.burst(20, seed=5))
    with _offers(stage) as offers, stage.stream(most=UNDER_WAY) as stream:
        for _ in _evenly():
            if how == "killed":  # the kubelet starts a container that was killed at once
                stage.kill_agent(gap=1)
            else:
                stage.upgrade_agent()
    stage.report(f"agent {how} {TIMES} times: {stream}; the node offered {sorted(offers)}")
    assert stream.failed == {}
    assert len(stream.pods) > SECONDS
    assert offers == {OFFERED}
    stage.audit(f"agent {how}", staying)


@pytest.mark.parametrize("together", [True, False], ids=["together", "kubelet first"])
def test_a_killed_kubelet_and_agent_fail_only_interrupted_starts(
    stage: Stage, together: bool
) -> None:
    if not stage.settings.kill_kubelet:
        pytest.skip("GPU_TURNSTILE_E2E_KILL_KUBELET names no command")
    staying = stage.run(*stage.make.burst(20, seed=6))
    with stage.stream(most=UNDER_WAY) as stream:
        for _ in _evenly():
            if together:
                stage.agent.stop(signal.SIGKILL)
                stage.kill_kubelet()
            else:
                stage.kill_kubelet()
                stage.agent.stop(signal.SIGKILL)
                time.sleep(2)
            stage.agent.start()
            wait("the agent is registered", stage.registered)
    how = "together" if together else "the kubelet first"
    stage.report(f"agent and kubelet killed {TIMES} times, {how}: {stream}")
    assert [each for each in stream.failed.values() if not stage.was_interrupted(each)] == []
    now = stage.cluster.pods()
    kept = {name: now[name] for name in staying}
    lost = stage.refused(kept)
    stage.report(f"agent and kubelet killed, {how}: {len(lost)} pods with an init container ended")
    assert {
        name: words for name, words in lost.items() if not was_admitted_again(kept[name], words)
    } == {}
    stage.audit(f"agent and kubelet killed, {how}", kept, init_recorded=False)


def test_an_agent_that_stays_unavailable_has_pods_refused_with_a_reason(stage: Stage) -> None:
    stage.run(stage.make.single("before", 5, 4))
    stage.agent.stop(signal.SIGKILL)
    began = time.monotonic()
    stage.cluster.create(stage.make.single("refused", 5, 4))
    wait("it is refused", lambda: phase(stage.cluster.pods()["refused"]) == "Failed", within=40)
    waited = time.monotonic() - began
    words = stage.refused(stage.cluster.pods())["refused"]
    wait("the node offers nothing", lambda: stage.offered() == 0)
    stage.agent.start()
    wait("the agent is registered", stage.registered)
    back = time.monotonic()
    # Bound by hand: a scheduler waits until the node's status shows the devices.
    bound = stage.make.single("after", 5, 4)
    del bound["spec"]["affinity"]
    bound["spec"]["nodeName"] = stage.node
    pods = stage.run(bound)
    served = time.monotonic() - back
    wait("the node offers all", lambda: stage.offered() == OFFERED)
    offered = time.monotonic() - back
    stage.report(f"agent down: refused after {waited:.1f} s: {words}")
    stage.report(
        f"agent back: a pod runs {served:.2f} s after it is registered, all is offered after "
        f"{offered:.2f} s"
    )
    assert _SENTENCE in words
    assert PATIENCE - 1 < waited < PATIENCE + 5
    assert stage.refused(pods) == {}


@pytest.mark.parametrize(
    ("number", "most"),
    [pytest.param(signal.SIGKILL, 8, id="killed"), pytest.param(signal.SIGTERM, 1, id="ended")],
)
def test_the_end_of_a_proxy_fails_few_pods(stage: Stage, number: int, most: int) -> None:
    """The agent stands in for it. Pods that wait on the node when it is killed fail."""
    with _offers(stage) as offers, stage.stream(most=FEW) as stream:
        for _ in _evenly():
            stage.proxy.stop(number)
            time.sleep(1)
            stage.proxy.start()
            wait("the agent is registered", stage.registered)
    stage.report(
        f"proxy down {TIMES} times, for a second each: {stream}; the node offered {sorted(offers)}"
    )
    assert len(stream.failed) <= most
    assert [each for each in stream.failed.values() if "gpu-turnstile: " in each] == []
    stage.wait_for_cards()


def _evenly() -> Iterator[int]:
    """Count to TIMES, evenly over SECONDS."""
    began = time.monotonic()
    for number in range(TIMES):
        time.sleep(max(0.0, began + (number + 0.5) * SECONDS / TIMES - time.monotonic()))
        yield number
    time.sleep(max(0.0, began + SECONDS - time.monotonic()))


@contextmanager
def _offers(stage: Stage) -> Iterator[set[int]]:
    """Collect how many cores the node offers, over a time."""
    seen: set[int] = set()
    over = threading.Event()

    def collect() -> None:
        while not over.wait(_POLL_SECONDS):
            seen.add(stage.offered())

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()

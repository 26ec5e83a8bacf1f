"""An agent ends, another stands by or does not: what becomes of pods that come all the time."""

import signal

import pytest

from tests.e2e.ground import wait
from tests.e2e.stage import Stage
from tests.e2e.stream import Stream

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

HANDOVERS = 8
KILLS = 3
PODS = 60
UNDER_WAY = 15


def test_no_pod_is_lost_in_handovers(stage: Stage) -> None:
    staying = stage.run(*stage.make.burst(PODS // 3, seed=5))
    with stage.stream() as stream:
        wait("pods", stream.more(10))
        for _ in range(HANDOVERS):
            stage.stand_by()
            stage.hand_over()
        wait("more pods", stream.more(10))

    stage.report(f"{HANDOVERS} handovers: {stream}")
    assert stream.failed == {}
    assert len(stream.pods) > HANDOVERS * 5
    stage.audit("after the handovers", staying)


def test_a_burst_across_a_handover_gets_exactly_its_own(stage: Stage) -> None:
    made = stage.make.burst(PODS, seed=6)
    stage.stand_by()
    creating = stage.submit(made)
    wait("the burst is under way", lambda: len(stage.agent.events("allocate")) >= UNDER_WAY)
    stage.hand_over()
    for done in creating:
        done.result(60)

    pods = stage.settled(each["metadata"]["name"] for each in made)

    assert stage.refused(pods) == {}
    seen = stage.audit("handover in a burst", pods)
    assert len(seen) > PODS


def test_an_agent_killed_beside_a_standby_costs_next_to_nothing(stage: Stage) -> None:
    """What is refused before the other has registered is the kubelet's doing, and is reported."""
    staying = stage.run(*stage.make.burst(PODS // 3, seed=7))
    with stage.stream() as stream:
        for _ in range(KILLS):
            stage.stand_by()
            wait("pods", stream.more(10))
            stage.kill_agent()
        wait("more pods", stream.more(10))

    stage.report(f"{KILLS} times kill -9 beside a standby: {stream}")
    _only_the_kubelet_refused(stream)
    stage.audit("after kill -9 beside a standby", staying)


def test_an_agent_killed_alone_is_back_as_soon_as_it_starts(stage: Stage) -> None:
    """For comparison with the one above."""
    staying = stage.run(*stage.make.burst(PODS // 3, seed=8))
    with stage.stream() as stream:
        for _ in range(KILLS):
            wait("pods", stream.more(10))
            stage.agent.stop(signal.SIGKILL)
            stage.agent.start()
            wait("the agent is registered", stage.registered)
        wait("more pods", stream.more(10))

    stage.report(f"{KILLS} times kill -9 alone: {stream}")
    _only_the_kubelet_refused(stream)
    stage.audit("after kill -9 alone", staying)


def _only_the_kubelet_refused(stream: Stream) -> None:
    assert [each for each in stream.failed.values() if "gpu-turnstile: " in each] == []

"""The whole cluster as real processes: killed in the middle of bursts and started again."""

import signal

import pytest

from contract.names import Names
from contract.resource import Resource
from simulator.audit import held_twice, holdings_of, records_of, unequal_records
from simulator.burst import burst_pods, submit
from simulator.cluster import NODE, SimulatedCluster
from simulator.manifests import Json
from simulator.node.judge import Attribution, decisions_in_log, judge

NAMES = Names()
RESOURCES = {NAMES.core: Resource.CORE, NAMES.memory: Resource.MEMORY}
PODS = 28
AGENT, KUBELET = f"agent-{NODE}", f"kubelet-{NODE}"
pytestmark = pytest.mark.timeout(1800)


def _phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase"))


def _allocates(cluster: SimulatedCluster) -> int:
    return sum(each.rpc == "Allocate" and not each.error for each in cluster.trace())


def _wait_for_calls(cluster: SimulatedCluster, count: int) -> None:
    cluster.wait(f"{count} calls", lambda: _allocates(cluster) >= count)


def _burst(name: str, seed: int) -> list[Json]:
    return burst_pods(PODS, seed=seed, names=NAMES, prefix=name)


def _settled(cluster: SimulatedCluster, burst: list[Json]) -> list[Json]:
    """Wait until all of a burst runs or has failed; return its pods."""
    names = {each["metadata"]["name"] for each in burst}

    def pods() -> list[Json]:
        return [each for each in cluster.pods() if each["metadata"]["name"] in names]

    def settled() -> bool:
        return len(pods()) == PODS and all(
            _phase(each) == "Failed"
            or (
                _phase(each) == "Running"
                and NAMES.gpu_allocation in (each["metadata"].get("annotations") or {})
            )
            for each in pods()
        )

    cluster.wait("pods settle", settled)
    return pods()


def _audit(cluster: SimulatedCluster) -> None:
    """Check that no slot is held twice, and that running pods' annotations are right."""
    trace = cluster.trace()
    running = [each for each in cluster.pods() if _phase(each) == "Running"]
    live = {each["metadata"]["uid"] for each in running}
    held = {who: ids for who, ids in holdings_of(trace).items() if who[0] in live}
    assert held_twice(held) == []
    # List never shows an ordinary init container (fact K4): if an agent was killed between its call
    # and the pod's annotation, the next agent cannot know what it got.
    unequal = unequal_records(held, records_of(running, NAMES), NAMES)
    assert [each for each in unequal if "'init'): recorded None" not in each] == []
    judged = judge(trace, decisions_in_log(cluster.agent_log()), RESOURCES)
    # The response of a call just before a SIGKILL may be missing from the log: a lost line, not a
    # wrong target.
    assert [each for each in judged if each.verdict is Attribution.WRONG and each.decision] == []


def _kill_in_burst(cluster: SimulatedCluster, killed: list[str], seed: int) -> None:
    """Create a burst in three waves, and kill programs in the first two of them."""
    pods = _burst(f"burst-{seed}", seed)
    for wave in (pods[:10], pods[10:20]):
        before = _allocates(cluster)
        submit(cluster.create, wave, clients=8)
        _wait_for_calls(cluster, before + 6)
        for each in killed:
            cluster.kill(each, number=signal.SIGKILL)
        for each in reversed(killed):
            cluster.start(each)
        cluster.wait("the node's devices", cluster.ready)
    submit(cluster.create, pods[20:], clients=8)
    found = _settled(cluster, pods)
    refusals = [each["status"]["message"] for each in found if _phase(each) == "Failed"]
    # While a plugin is disconnected, the kubelet refuses with its own texts; none of these is ours.
    assert [text for text in refusals if "gpu-turnstile" in text] == []
    assert AGENT in killed or refusals == []
    last = {each["metadata"]["name"] for each in pods[20:]}
    assert {_phase(each) for each in found if each["metadata"]["name"] in last} == {"Running"}
    _audit(cluster)


def test_a_replica_killed_in_a_burst_loses_nothing_and_all_programs_end_at_sigterm() -> None:
    """The pods of one burst still run during the next one."""
    # A restarted kubelet waits for its plugins as long as a slow machine needs.
    with SimulatedCluster(seed=5, kubelet_options=("--plugin-wait", "120")) as cluster:
        cluster.start_nodes(NODE)
        cluster.wait_for_nodes()
        for seed, killed in ((7, [AGENT]), (8, [KUBELET]), (9, [KUBELET, AGENT])):
            _kill_in_burst(cluster, killed, seed)
        names = (AGENT, "webhook", "scheduler", KUBELET, "apiserver")
        ended = {name: cluster.kill(name, number=signal.SIGTERM) for name in names}
        assert ended == dict.fromkeys(names, 0)

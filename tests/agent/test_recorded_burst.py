"""A burst on a real kubelet, recorded: 80 pods of 1 to 3 GPU containers from 32 clients at once.

Whom a call was for is read off the recording itself, by :mod:`bench.recording`: at any moment one
pod was lacking, and within it the first container that lacked (facts K1 and K3). The bench replays
the same calls with all that an agent remembers between them.
"""

from agent.allocator.interfaces import Checkpoint
from agent.allocator.resolver import LastCall, Request, resolve
from agent.allocator.snapshot import SnapshotContext, build_snapshot
from bench.recording import RECORDING, load_burst
from contract.allocation import Evidence
from contract.demand import PodDemand
from contract.resource import count_of
from placement.pods import AdmissionRank, PodId, PodInfo
from tests.agent.builders import pods_of
from tests.agent.fakes import NAMES


def test_a_call_with_a_witness_is_resolved_to_the_container_the_kubelet_was_admitting() -> None:
    """Each as the first call of an agent, to which the API shows all pods."""
    burst = load_burst(RECORDING, NAMES)
    views = {
        each.pod: PodInfo(
            PodId(*each.pod.partition("/")[::2], each.uid),
            PodDemand(each.containers),
            AdmissionRank(each.bound_ns, "", "", 0, each.uid),
        )
        for each in burst.pods
    }
    witnessed = 0
    for call in burst.calls:
        record = build_snapshot(
            checkpoint=Checkpoint(),
            listed=call.observe.lacking if call.observe is not None else None,
            served=(),
            known=pods_of(*views.values()),
            context=SnapshotContext(confirmed={each.id.uid for each in views.values()}),
        )
        found = resolve(Request(call.request.resource, call.request.size), record, LastCall())
        if call.observe is None:  # refused by the kubelet's rate limit (K5)
            assert found.evidence is Evidence.ORDER
            continue
        witnessed += 1
        assert (found.pod, found.evidence) == (views[call.request.pod].id, Evidence.WITNESS)
        assert found.container is not None
        assert found.container.name == call.request.container
        # Guards the truth: a wrong reading of it would show here.
        assert count_of(found.container.demand, call.request.resource) == call.request.size
    assert (len(burst.pods), len(burst.calls), witnessed) == (80, 268, 247)

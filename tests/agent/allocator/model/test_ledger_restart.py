"""The book over a restart of the kubelet that died in the middle of a pod."""

from agent.allocator.model.ledger import ContainerRef, Holding, Ledger
from agent.allocator.model.pod_view import PodId
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource

POD = PodId("default", "half-served", "uid-1")


def test_only_the_container_whose_places_are_offered_again_is_forgotten() -> None:
    ledger = Ledger()
    for container, ids in (("c0", {"A::0", "A::1"}), ("c1", {"A::2"})):
        ledger.record(
            ContainerRef(POD, container),
            ContainerKind.MAIN,
            Resource.CORE,
            Holding(frozenset(ids), Evidence.WITNESS),
        )
    offered = frozenset({(Resource.CORE, "A::2"), (Resource.CORE, "A::3")})
    ledger.reconcile([], live=frozenset({POD}), offered=offered)
    assert set(ledger.owners) == {(Resource.CORE, "A::0"), (Resource.CORE, "A::1")}
    ledger.check()

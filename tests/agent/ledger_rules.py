"""What must hold of every ledger, whatever has happened to it."""

from agent.allocator.model.ledger import ContainerRef, Ledger
from agent.allocator.model.pod_view import PodId
from contract.demand import ContainerKind
from contract.resource import Resource


def check(ledger: Ledger) -> None:
    """Assert that each device ID has one owner, and one container that is no init container."""
    owners: dict[tuple[Resource, str], PodId] = {}
    holders: dict[tuple[Resource, str], ContainerRef] = {}
    for ref, kind, holdings in ledger.refs():
        for resource, held in holdings.items():
            for device_id in held.ids:
                place = resource, device_id
                assert owners.setdefault(place, ref.pod) == ref.pod
                if kind is not ContainerKind.INIT:
                    assert holders.setdefault(place, ref) == ref
    assert owners == ledger.owners

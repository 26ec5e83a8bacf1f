"""Short ways to write nodes and pods as the API server has them."""

from collections.abc import Mapping, Sequence
from typing import Any

from contract.allocation import Allocation, Evidence, encode_allocations
from contract.cordon import write_cordon
from contract.inventory import NOTHING, Card, Link, PublishedInventory, encode_inventory
from contract.names import Names
from placement.cluster.nodes import Node, parse_node
from placement.pods import PodInfo, read_gpu_pod

Json = dict[str, Any]
NAMES = Names()
BLOCK = 256 << 20


def make_node(
    name: str = "n1",
    cards: int = 2,
    *,
    blocks: int | Sequence[int] = 32,
    models: Sequence[str] = (),
    unhealthy: Sequence[int] = (),
    cordoned: Sequence[int | str] = (),
    links: Mapping[tuple[int, int], str] | None = None,
    numa: Sequence[int | None] = (),
    allocatable: str | None = "200",
) -> Json:
    """A node whose cards are ``GPU-<name>-<index>``."""
    sizes = [blocks] * cards if isinstance(blocks, int) else list(blocks)
    inventory = PublishedInventory(
        BLOCK,
        tuple(
            Card(
                f"GPU-{name}-{index}",
                index,
                models[index] if models else "NVIDIA A100",
                size * BLOCK,
                numa[index] if numa else None,
                "Xid 79" if index in unhealthy else "",
            )
            for index, size in enumerate(sizes)
        ),
        tuple(Link(pair, kind) for pair, kind in (links or {}).items()),
        (NOTHING,) * len(sizes),
    )
    node = bare_node(name, encode_inventory(inventory))
    if cordoned:
        uuids = write_cordon(
            each if isinstance(each, str) else f"GPU-{name}-{each}" for each in cordoned
        )
        node["metadata"]["annotations"][NAMES.gpu_cordoned] = uuids
    if allocatable is not None:
        node["status"] = {"allocatable": {NAMES.core: allocatable}}
    return node


def bare_node(name: str = "n1", inventory: object = None) -> Json:
    """A node with any text for an inventory, or none."""
    annotations = {} if inventory is None else {NAMES.gpu_cards: inventory}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": annotations},
    }


def make_pod(
    name: str,
    *limits: tuple[int, int],
    inits: Sequence[tuple[int, int]] = (),
    sidecars: Sequence[tuple[int, int]] = (),
    split: Mapping[str, int] | None = None,
    node: str = "",
    annotations: Mapping[str, str] | None = None,
    phase: str = "Pending",
    uid: str | None = None,
    namespace: str = "default",
) -> Json:
    """A pod with containers ``c<i>``, init containers ``i<i>`` and sidecars ``s<i>``.

    *split* has the numbers of cards over which the shares of containers are divided.
    Its UID is ``u-<name>`` by default; with an empty one a simulated API server accepts it.
    """
    early = [
        *(_container(f"i{index}", each) for index, each in enumerate(inits)),
        *(
            {**_container(f"s{index}", each), "restartPolicy": "Always"}
            for index, each in enumerate(sidecars)
        ),
    ]
    spec: Json = {"containers": [_container(f"c{i}", each) for i, each in enumerate(limits)]}
    if early:
        spec["initContainers"] = early
    if node:
        spec["nodeName"] = node
    divided = {NAMES.gpu_cards_of(each): str(cards) for each, cards in (split or {}).items()}
    metadata: Json = {
        "name": name,
        "namespace": namespace,
        "annotations": {**divided, **(annotations or {})},
    }
    if uid != "":
        metadata["uid"] = uid or f"u-{name}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": phase},
    }


def _container(name: str, limit: tuple[int, int]) -> Json:
    cores, memory = limit
    limits = {NAMES.core: str(cores)}
    if memory:
        limits[NAMES.memory] = str(memory)
    return {"name": name, "image": "none", "resources": {"limits": limits}}


def record(**containers: tuple[Sequence[str], int, int]) -> dict[str, str]:
    """The annotations of an agent's record: container -> cards, cores, blocks."""
    allocations = {
        name: Allocation(tuple(cards), cores, blocks, Evidence.WITNESS)
        for name, (cards, cores, blocks) in containers.items()
    }
    return {NAMES.gpu_allocation: encode_allocations(allocations)}


def hint(*cards: str, inits: Sequence[str] = ()) -> dict[str, str]:
    """The annotations of a scheduler's choice: of each container the indices."""
    of_inits = {NAMES.predicate_gpu_idx(f"init-{at}"): text for at, text in enumerate(inits)}
    return {NAMES.predicate_gpu_idx(at): text for at, text in enumerate(cards)} | of_inits


def a_node(*args: Any, **kwargs: Any) -> Node:
    return parse_node(make_node(*args, **kwargs), NAMES)


def a_pod(*args: Any, **kwargs: Any) -> PodInfo:
    found = read_gpu_pod(make_pod(*args, **kwargs), NAMES)
    assert found is not None
    return found

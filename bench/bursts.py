"""Bursts of pods as an API server would hand them to a kubelet: drawn from a seed, pure."""

from random import Random
from typing import Any

from contract.names import Names
from contract.stamps import OrderStamp
from simulator.burst import container, pod

Json = dict[str, Any]

_CORES = (5, 10)
_MEMORY = (4, 8)
_CONTAINERS = (1, 1, 2, 2, 3, 5)
_WRITERS = 32
_BEGAN_NS = 1_736_928_000_000_000_000
_CREATED = "2025-01-15T08:00:00Z"


def draw_burst(count: int, *, seed: int) -> list[Json]:
    """Draw a burst of pods, bound, in the order in which the kubelet comes to know them.

    Most containers are equal in cores and many differ in memory. The stamps are in another
    order than the pods: 32 clients write at once, so a stamp is up to 31 places off.
    """
    names = Names()
    random = Random(seed)  # noqa: S311 -- a burst is to be repeatable
    pods = []
    for number in range(count):
        containers = [
            _draw(f"c{each}", random, names) for each in range(random.choice(_CONTAINERS))
        ]
        inits = []
        kind = random.random()
        if kind < 0.15:
            inits.append(_draw("init", random, names))
        if 0.1 < kind < 0.2:
            inits.append(_draw("sidecar", random, names, restartPolicy="Always"))
        spec = {"initContainers": inits} if inits else {}
        drawn = pod(f"burst-{seed}-{number}", containers, **spec)
        pods.append(_bound(drawn, _BEGAN_NS + number * 1_000_000, names))
    places = {id(each): place + random.random() * _WRITERS for place, each in enumerate(pods)}
    return sorted(pods, key=lambda each: places[id(each)])


def _draw(name: str, random: Random, names: Names, **fields: Any) -> Json:
    return container(name, random.choice(_CORES), random.choice(_MEMORY), names, **fields)


def _bound(drawn: Json, stamp_ns: int, names: Names) -> Json:
    """Write what webhook, API server and scheduler write."""
    name = drawn["metadata"]["name"]
    stamp = OrderStamp(stamp_ns, "bench", 0).encode()
    drawn["metadata"] |= {
        "uid": f"uid-{name}",
        "creationTimestamp": _CREATED,
        "annotations": {
            names.predicate_time: str(stamp_ns),
            names.admission_order: stamp,
            names.bind_order: stamp,
            names.gpu_assigned: "false",
        },
    }
    drawn["spec"]["nodeName"] = "bench"
    drawn["status"] = {"phase": "Pending"}
    return drawn

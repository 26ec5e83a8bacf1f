"""Random bursts of GPU pods, repeatable by a seed, and clients that create them concurrently."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from contract.names import Names

Json = dict[str, Any]

_CORES = (1, 2)
_MEMORY = (1, 2)
_CONTAINERS = (1, 1, 2, 3)


def container(name: str, cores: int, memory: int, names: Names, **fields: Any) -> Json:
    """Return a GPU container."""
    limits = {names.core: str(cores), names.memory: str(memory)}
    return {
        "name": name,
        "image": "registry.example/cuda:12",
        "resources": {"limits": limits},
        **fields,
    }


def pod(name: str, containers: Sequence[Json], **spec: Any) -> Json:
    """Return a pod in the default namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": list(containers), **spec},
    }


def burst_pods(count: int, *, seed: int, names: Names, prefix: str = "burst") -> list[Json]:
    """Return random pods of one to three containers; many have equal cores but unequal memory."""
    random = Random(seed)  # noqa: S311 -- a burst must be repeatable
    pods = []
    for number in range(count):
        containers = [
            container(f"c{each}", random.choice(_CORES), random.choice(_MEMORY), names)
            for each in range(random.choice(_CONTAINERS))
        ]
        spec: Json = {}
        if random.random() < 0.1:
            spec["initContainers"] = [container("init", random.choice(_CORES), 1, names)]
        pods.append(pod(f"{prefix}-{number}", containers, **spec))
    return pods


def submit(create: Callable[[Json], object], pods: Sequence[Json], *, clients: int) -> None:
    """Create all *pods* from *clients* threads at the same time.

    Raises:
        Exception: the first error of *create*, after all clients have ended.
    """
    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(create, each) for each in pods]:
            done.result()

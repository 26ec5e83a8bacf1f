"""Random pods: many are alike, and some are unusual."""

from dataclasses import replace
from random import Random

from contract.allocation import Allocation, Evidence, encode_allocations
from contract.demand import ContainerKind
from tests.in_memory.pods import NAMES, Container, Pod, stamps

INIT, SIDECAR, MAIN = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.MAIN

_SHARES = ((10, 2), (10, 2), (10, 4), (20, 2), (30, 4), (50, 8), (90, 12))
_WHOLE = ((100, 0), (100, 0), (100, 16), (100, 6), (200, 0), (200, 5))
_REPLICAS = 0.4
"""Probability that a pod requests the same as the previous one."""
_UNCHECKED = ((150, 4), (0, 3), (10, 0))


def draw_containers(random: Random) -> tuple[Container, ...]:
    drawn: list[Container] = []
    if random.random() < 0.25:
        drawn.append(_share("init", INIT, random))
        if random.random() < 0.25:
            drawn.append(_share("init2", INIT, random))
    if random.random() < 0.15:
        drawn.append(_share("sidecar", SIDECAR, random))
    for number in range(random.choice((1, 1, 1, 2, 2, 3))):
        name = f"c{number}"
        if random.random() < 0.12:
            cores, memory = random.choice(_WHOLE)
            drawn.append(Container(name, MAIN, cores, memory, random.random() < 0.4))
        else:
            drawn.append(_share(name, MAIN, random))
    for where in (0, len(drawn)):
        if random.random() < 0.25:
            kind = MAIN if where or not drawn or drawn[0].kind is MAIN else INIT
            drawn.insert(where, Container(f"plain{where}", kind))
    if random.random() < 0.02:
        cores, memory = random.choice(_UNCHECKED)
        drawn.append(Container("unchecked", MAIN, cores, memory))
    return tuple(drawn)


def _share(name: str, kind: ContainerKind, random: Random) -> Container:
    cores, memory = random.choice(_SHARES)
    return Container(name, kind, cores, memory, random.random() < 0.2)


def divide(containers: tuple[Container, ...], random: Random) -> tuple[Container, ...]:
    """Return the containers with some of their shares divided over two or three cards.

    Some of them request the same counts as whole cards. What an init container leaves must fit the
    later containers, so all shares of such a pod are mostly divided alike.
    """
    alike = random.choice((2, 3)) if containers[0].hands_on and random.random() < 0.8 else 0
    divided = []
    for each in containers:
        split = alike or random.choice((1, 2, 2, 3))
        if not each.demand.is_share or not each.memory or split == 1:
            divided.append(each)
            continue
        cores = 100 // split if split == 2 and random.random() < 0.3 else each.cores
        memory = min(each.memory, 4) * split
        divided.append(replace(each, cores=cores * split, memory=memory, split=split))
    return tuple(divided)


def draw_pod(
    number: int,
    name: str,
    cards: tuple[str, ...],
    random: Random,
    like: Pod | None = None,
    *,
    divided: bool = False,
) -> Pod:
    """Return a random pod, with stamps, wishes, forged annotations and failing plugins.

    It may be another replica of the pod *like*.
    """
    if like is not None and random.random() < _REPLICAS:
        containers = like.containers
    elif random.random() < 0.06:
        containers = (Container("plain", MAIN),)
    else:
        containers = draw_containers(random)
        containers = divide(containers, random) if divided else containers
    pod = Pod("default", name, f"u{number}-{name}", containers, number)
    if pod.requests_gpus and random.random() < 0.95:
        pod.annotations |= stamps(number, random)
    if random.random() < 0.12:
        pod.annotations[NAMES.use_gpu_uuid] = ",".join(random.sample(cards, 2))
    elif random.random() < 0.05:
        pod.annotations[NAMES.nouse_gpu_uuid] = random.choice(cards)
    if pod.requests_gpus and random.random() < 0.05:
        pod.annotations[NAMES.gpu_policy] = random.choice(("binpack", "spread"))
    if random.random() < 0.08:
        pod.annotations |= forged(pod, cards, random)
    pod.refused_before = random.random() < 0.04
    pod.refused_after = random.random() < 0.06
    pod.other_fails = random.random() < 0.6
    return pod


def forged(pod: Pod, cards: tuple[str, ...], random: Random) -> dict[str, str]:
    """Return forged allocation annotations, as copied from another pod or another cluster."""
    named = random.choice((("GPU-elsewhere",), (random.choice(cards),)))
    allocations = {
        each.name: Allocation(named, each.cores, each.memory, Evidence.TICKET)
        for each in pod.containers
        if each.requests_gpus or random.random() < 0.5
    }
    if len(allocations) > 1 and random.random() < 0.5:
        del allocations[random.choice(sorted(allocations))]
    made = {NAMES.gpu_allocation: encode_allocations(allocations)}
    if random.random() < 0.5:
        made[NAMES.gpu_assigned] = "true"
    if random.random() < 0.5:
        made[NAMES.predicate_gpu_idx(0)] = random.choice(("0", "1", "7"))
    return made

"""Demands of pods for the tests of rules."""

from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand

Requested = tuple[ContainerKind, int, int, *tuple[int, ...]]
"""Kind, cores and memory blocks of a container, and over how many cards they are divided."""


def demand_of(*containers: Requested) -> PodDemand:
    return PodDemand(
        tuple(
            ContainerDemand(f"c{index}", kind, index, Demand(*counts))
            for index, (kind, *counts) in enumerate(containers)
        )
    )

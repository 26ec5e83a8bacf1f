"""What the webhook fills in where an author left it out: memory, scheduler, RuntimeClass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, read_pod_demand
from contract.names import Names
from contract.quantity import parse_quantity
from webhook.admission.options import DefaultMemory, Options
from webhook.admission.patches import set_value
from webhook.admission.verdicts import Operation, cut

_LONGEST_NAME = 40

_DEFAULT_SCHEDULER = "default-scheduler"
"""What an API server fills in where a pod names no scheduler, before it asks any webhook."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A pod, or a pod template, with the memory that its shares left out.

    Attributes:
        pod: the object with the memory filled in; the given one when nothing was.
        patch: the same as operations on the given object.
        warnings: one for each container.
    """

    pod: Mapping[str, Any]
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()


def fill_memory(pod: Mapping[str, Any], *, names: Names, options: Options) -> Filled:
    """Fill in the memory of shares that name none: their part of the largest card.

    ``cores / 100`` of ``options.largest_card``, rounded down, so that shares of 100 cores
    together always fit one such card; at least one block. It is written as an author would
    have: in ``limits``, and in ``requests`` where the API server has made them from the
    limits already. Whole cards and anything that cannot be read stay as they are.

    Args:
        pod: with a ``spec``, as decoded JSON, possibly hostile; is not changed.
        names: resources.
        options: the operator's.
    """
    if options.default_memory is not DefaultMemory.PROPORTIONAL:
        return Filled(pod)
    demand, _ = read_pod_demand(pod.get("spec"), names)
    spec: Any = pod.get("spec")
    lists: dict[str, list[Any]] = {}
    patch: list[Operation] = []
    warnings = []
    for container in demand.containers:
        field = "containers" if container.kind is ContainerKind.MAIN else "initContainers"
        resources = spec[field][container.index]["resources"]
        if not container.demand.is_share or _names_memory(resources, names):
            continue
        blocks = max(1, container.demand.cores * options.largest_card // CORES_PER_CARD)
        filled = dict(resources)
        for listing in ("limits", "requests"):
            if isinstance(resources.get(listing), Mapping):
                steps = ("spec", field, container.index, "resources", listing, names.memory)
                patch.append(set_value(steps, str(blocks)))
                filled[listing] = {**resources[listing], names.memory: str(blocks)}
        if field not in lists:  # once: a pod may have thousands of containers
            lists[field] = list(spec[field])
        lists[field][container.index] = {**spec[field][container.index], "resources": filled}
        warnings.append(_told(container, blocks, options.largest_card))
    if not patch:
        return Filled(pod)
    return Filled({**pod, "spec": {**spec, **lists}}, tuple(patch), tuple(warnings))


def choose_scheduler(spec: Mapping[str, Any], name: str) -> tuple[Operation, ...]:
    """Return the change that gives a pod another scheduler than the default one.

    Whether its author wrote ``default-scheduler`` cannot be told: the API server fills it in
    (``SetDefaults_PodSpec``) before it asks webhooks.
    """
    given = spec.get("schedulerName")
    if not name or name == given or given not in (None, "", _DEFAULT_SCHEDULER):
        return ()
    return (set_value(("spec", "schedulerName"), name),)


def choose_runtime_class(spec: Mapping[str, Any], name: str) -> tuple[Operation, ...]:
    """Return the change that gives a RuntimeClass to a pod that names none.

    The API server's own plugin ``RuntimeClass`` runs again after a webhook changed the pod:
    it adds the overhead and the node selector of the class. An empty name is no name that
    could be meant: the API server refuses it.
    """
    if not name or spec.get("runtimeClassName") is not None:
        return ()
    return (set_value(("spec", "runtimeClassName"), name),)


def _names_memory(resources: Mapping[str, Any], names: Names) -> bool:
    return any(
        isinstance(listing, Mapping)
        and names.memory in listing
        and parse_quantity(listing[names.memory]) != 0
        for listing in (resources.get("limits"), resources.get("requests"))
    )


def _told(container: ContainerDemand, blocks: int, largest: int) -> str:
    name, cores = cut(container.name, _LONGEST_NAME), container.demand.cores
    given = "1 block" if blocks == 1 else f"{blocks} blocks"
    return f"container {name}: no memory: gets {given}, {cores}% of the largest card ({largest})"

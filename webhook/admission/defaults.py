"""What the webhook fills in where an author left it out: memory, scheduler, RuntimeClass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.demand import CORES_PER_CARD, ContainerKind, Demand
from contract.names import Names
from contract.quantity import parse_quantity
from contract.requests import read_pod_demand
from contract.resource import Resource
from webhook.admission.decision import Operation, short
from webhook.admission.options import AdmissionOptions, DefaultMemory
from webhook.admission.patches import set_value

_DEFAULT_SCHEDULER = "default-scheduler"
"""What an API server fills in where a pod names no scheduler, before it asks any webhook."""


@dataclass(frozen=True, slots=True)
class AdjustedPod:
    """A pod, or a pod template, with the memory that its containers can get.

    Attributes:
        pod: the object with the memory adjusted; the given one when nothing was.
        patch: the same as operations on the given object.
        warnings: one for each container.
    """

    pod: Mapping[str, Any]
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()


def adjust_memory(
    pod: Mapping[str, Any], *, names: Names, options: AdmissionOptions
) -> AdjustedPod:
    """Fill in the memory of shares that name none, and lower that of whole cards to what they have.

    A share gets its part of the largest card, ``cores / 100`` of ``options.largest_card``, rounded
    down, so that shares of 100 cores together always fit one such card; at least one block. A
    whole card has all its memory, and gpu-manager did not read what was asked for beside it: more
    than ``options.largest_card`` a card would fit none, ever. It is written as an author would
    have: in ``limits``, and in ``requests`` where the API server has made them from the
    limits already. What cannot be read stays as it is.

    Args:
        pod: with a ``spec``, as decoded JSON, possibly hostile; is not changed.
        names: resources.
        options: the operator's.
    """
    if not options.largest_card:
        return AdjustedPod(pod)
    demand, errors = read_pod_demand(pod.get("spec"), names)
    refused = any(each.rule != "share-without-memory" for each in errors)
    spec: Any = pod.get("spec")
    lists: dict[str, list[Any]] = {}
    patch: list[Operation] = []
    warnings = []
    for container in demand.containers:
        field = "containers" if container.kind is ContainerKind.MAIN else "initContainers"
        resources = spec[field][container.index]["resources"]
        found = _other_memory(container.demand, resources, names, options)
        if found is None or (refused and not container.demand.is_share):
            continue
        blocks, told = found
        filled = dict(resources)
        for listing in ("limits", "requests"):
            if isinstance(resources.get(listing), Mapping):
                steps = ("spec", field, container.index, "resources", listing, names.memory)
                patch.append(set_value(steps, str(blocks)))
                filled[listing] = {**resources[listing], names.memory: str(blocks)}
        if field not in lists:  # once: a pod may have thousands of containers
            lists[field] = list(spec[field])
        lists[field][container.index] = {**spec[field][container.index], "resources": filled}
        warnings.append(f"container {short(container.name)}: {told}")
    if not patch:
        return AdjustedPod(pod)
    return AdjustedPod({**pod, "spec": {**spec, **lists}}, tuple(patch), tuple(warnings))


def _other_memory(
    demand: Demand, resources: Mapping[str, Any], names: Names, options: AdmissionOptions
) -> tuple[int, str] | None:
    """Return the blocks that a container gets and why, where they are not those it asks for."""
    largest = options.largest_card
    if demand.is_share:
        proportional = options.default_memory is DefaultMemory.PROPORTIONAL
        if not proportional or _names_memory(resources, names):
            return None
        blocks = max(1, demand.cores * largest // CORES_PER_CARD)
        given = "1 block" if blocks == 1 else f"{blocks} blocks"
        return blocks, f"no memory: gets {given}, {demand.cores}% of the largest card ({largest})"
    if not demand.cores or demand.most_per_card(Resource.MEMORY) <= largest:
        return None
    blocks = demand.cards * largest
    return blocks, f"memory {demand.memory} is more than {blocks}, all that its whole cards have"


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

"""Fields that the webhook fills in if a pod's author left them out: memory, scheduler, class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.demand import CORES_PER_CARD, ContainerKind, Demand
from contract.names import Names
from contract.quantity import parse_quantity
from contract.requests import read_pod_demand
from contract.resource import Resource
from contract.text import format_count
from webhook.admission.decision import Operation, short
from webhook.admission.options import AdmissionOptions, DefaultMemory
from webhook.admission.patches import set_value

_DEFAULT_SCHEDULER = "default-scheduler"
"""The API server fills this in if a pod names no scheduler, before it calls any webhook."""


@dataclass(frozen=True, slots=True)
class AdjustedPod:
    """A pod, or a pod template, with the memory that its containers can get.

    Attributes:
        pod: the object with its memory adjusted; the original one if nothing was.
        patch: the adjustment as operations on the original object.
        warnings: one for each adjusted container.
    """

    pod: Mapping[str, Any]
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()


def adjust_memory(
    pod: Mapping[str, Any], *, names: Names, options: AdmissionOptions
) -> AdjustedPod:
    """Set the memory of shares that name none; lower the memory of whole cards to what they have.

    A share gets memory in proportion to its cores: ``cores / 100`` of ``options.largest_card``,
    rounded down, so that shares of 100 cores together always fit one such card; at least one
    block. A container with whole cards has all their memory, and gpu-manager ignored the memory
    requested beside them. More than ``options.largest_card`` for each card would never fit.

    The memory is written as an author would write it: in ``limits``, and in ``requests`` if the
    API server has already copied the limits there. Unreadable fields stay as they are.
    """
    if not options.largest_card:
        return AdjustedPod(pod)
    demand, errors = read_pod_demand(pod, names)
    denied = any(each.rule != "share-without-memory" for each in errors)
    spec: Any = pod.get("spec")
    lists: dict[str, list[Any]] = {}
    patch: list[Operation] = []
    warnings = []
    for container in demand.containers:
        field = "containers" if container.kind is ContainerKind.MAIN else "initContainers"
        resources = spec[field][container.index]["resources"]
        adjusted = _adjusted_blocks(container.demand, resources, names, options)
        if adjusted is None or (denied and not container.demand.is_share):
            continue
        blocks, reason = adjusted
        filled = dict(resources)
        for listing in ("limits", "requests"):
            if isinstance(resources.get(listing), Mapping):
                steps = ("spec", field, container.index, "resources", listing, names.memory)
                patch.append(set_value(steps, str(blocks)))
                filled[listing] = {**resources[listing], names.memory: str(blocks)}
        if field not in lists:  # once: a pod may have thousands of containers
            lists[field] = list(spec[field])
        lists[field][container.index] = {**spec[field][container.index], "resources": filled}
        warnings.append(f"container {short(container.name)}: {reason}")
    if not patch:
        return AdjustedPod(pod)
    return AdjustedPod({**pod, "spec": {**spec, **lists}}, tuple(patch), tuple(warnings))


def _adjusted_blocks(
    demand: Demand, resources: Mapping[str, Any], names: Names, options: AdmissionOptions
) -> tuple[int, str] | None:
    """Return the blocks that a container gets and why; ``None`` if it gets those it requests."""
    largest = options.largest_card
    if demand.is_share:
        proportional = options.default_memory is DefaultMemory.PROPORTIONAL
        if not proportional or _names_memory(resources, names):
            return None
        each = max(1, demand.cores_per_card * largest // CORES_PER_CARD)
        blocks, several = each * demand.cards, f" of each of {demand.cards} cards"
        gets = format_count(each, "block") + several * (demand.cards > 1)
        part = f"{demand.cores_per_card}% of the largest card ({largest})"
        return blocks, f"no memory: gets {gets}, {part}"
    if not demand.cores or demand.most_per_card(Resource.MEMORY) <= largest:
        return None
    blocks = demand.cards * largest
    return blocks, f"memory {demand.memory} lowered to {blocks}, all that its whole cards have"


def choose_scheduler(spec: Mapping[str, Any], name: str) -> tuple[Operation, ...]:
    """Return the change that replaces a pod's default scheduler.

    An explicit ``default-scheduler`` is replaced too: the API server fills in this name
    (``SetDefaults_PodSpec``) before it calls webhooks, so both cases look the same.
    """
    given = spec.get("schedulerName")
    if not name or name == given or given not in (None, "", _DEFAULT_SCHEDULER):
        return ()
    return (set_value(("spec", "schedulerName"), name),)


def choose_runtime_class(spec: Mapping[str, Any], name: str) -> tuple[Operation, ...]:
    """Return the change that gives a RuntimeClass to a pod that names none.

    The API server's own plugin ``RuntimeClass`` runs again after a webhook changed the pod:
    it adds the overhead and the node selector of the class. A pod with an empty name is not
    changed: the API server rejects it.
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

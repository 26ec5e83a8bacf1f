"""Refusals: whether a pod could have run, and whether anybody could have known."""

from collections import Counter
from typing import TYPE_CHECKING

from agent.errors import PlacementError, Refusal
from bench.adversary.judge import Call
from bench.adversary.oracle import Task, fits
from bench.adversary.pods import card_of
from contract.demand import ContainerKind
from contract.resource import Resource
from simulator.kubelet.devices import PreferCall

if TYPE_CHECKING:
    from bench.adversary.world import World


def refused(world: "World", call: Call, error: Refusal, *, fit: bool) -> None:
    """Judge the refusal of a call.

    Args:
        world: the node.
        call: which call.
        error: what the agent said.
        fit: whether there is a place for all that the pod still lacks.
    """
    pod = call.pod
    cornered = not fit and pod.uid in world.could and isinstance(error, PlacementError)
    if not fit and not cornered:
        world.judge.verdicts["rightly refused"] += 1
        return
    excuse = _excuse(world, call)
    if not excuse and not call.seen and isinstance(error, PlacementError):
        excuse = "without List nobody can tell who was rejected"
    if excuse:
        world.judge.excused[excuse] += 1
    else:
        world.judge.find("cornered" if cornered else "refused", f"{call}: {error}")


def _excuse(world: "World", call: Call) -> str:
    """Return why nobody could have known better; empty when somebody could."""
    pod = call.pod
    if pod.invalid:
        return "no webhook would have passed it"
    if pod.deleting or not (pod.static or world.api.has(pod)):
        return "it was being deleted"
    if not call.known and not call.reachable:
        return "nobody could tell its spec"
    if pod.uid in world.confused or _in_another_name(world, call):
        return "another was named in its calls"  # which is a finding, or without List none
    return ""


def _in_another_name(world: "World", call: Call) -> bool:
    return any(
        each.word == "refused" and each.ref is not None and not world.judge.right(call, each)
        for each in world.diary.everything
    )


def could_run(world: "World", call: Call, offer: PreferCall) -> bool:
    """Return whether a pod's containers from here on have places, by an exact search."""
    pod, devices = call.pod, world.devices
    if pod.invalid:
        return False
    tasks = []
    for container in pod.containers[pod.containers.index(call.container) :]:
        held = devices.of(pod.uid, container.name)
        lacking = frozenset(r for r in Resource if container.count(r) and r not in held)
        cards = frozenset(card_of(device_id) for ids in held.values() for device_id in ids)
        if lacking:
            tasks.append(Task(container, lacking, cards))
    free: dict[str, dict[Resource, int]] = {}
    left: dict[str, dict[Resource, int]] = {}
    for resource in Resource:
        if resource == offer.resource:
            reusable = frozenset(offer.must_include)
            offered = frozenset(offer.available) - reusable
        else:
            reusable = frozenset(devices.core.reusable.get(resource, ()))
            if call.container.kind is not ContainerKind.INIT:  # what it keeps is left to nobody
                reusable -= devices.of(pod.uid, call.container.name).get(resource, frozenset())
            offered = frozenset(devices.free(resource))
        counts = Counter(map(card_of, offered - devices.held(resource)))
        handed_on = Counter(map(card_of, reusable))
        for card in world.cards:
            if pod.wished(card) and card not in world.ill:
                free.setdefault(card, {})[resource] = counts[card]
            left.setdefault(card, {})[resource] = handed_on[card]
    return fits(tasks, free, left)

"""Starts of containers: what the agent lets through, and what it vetoes (K10)."""

from agent.errors import Refusal
from bench.adversary.judge import Call
from bench.adversary.kubelet import Known
from bench.adversary.pods import Container, Pod, card_of
from bench.adversary.world import World
from contract.resource import Resource


def prestart(world: World, known: Known, container: Container) -> bool:
    """Start a container, or try to; return whether it was let through."""
    pod = known.pod
    held = world.devices.of(pod.uid, container.name)
    asked = [each for each in Resource if container.count(each)]
    world.random.shuffle(asked)
    if asked and not world.devices.connected:
        return False
    for resource in asked:
        ids = held.get(resource)
        # What has been freed already the kubelet does not ask about.
        if ids is None or not _lets_start(world, pod, container, resource, ids):
            return False
    cards = {card_of(each) for ids in held.values() for each in ids}
    if asked:
        told = world.host.knows(pod.uids) and not world.api.away
        world.judge.started(pod, container, cards, known=told)
    return True


def _lets_start(
    world: World, pod: Pod, container: Container, resource: Resource, ids: frozenset[str]
) -> bool:
    call = Call(pod, container, resource, known=True, seen=not world.kubelet.blind)
    call.alike = {
        name
        for name, held in world.devices.pod_devices.get(pod.uid, {}).items()
        if held.get(resource) == ids
    }
    world.trace(f"-> PreStart {call}")
    before, world.proving = world.diary.take(), True  # it may come in the middle of a call
    try:
        world.host.allocator.prestart(resource, sorted(ids))
    except Refusal as error:
        world.trace(f"   vetoed: {error}")
        wished = all(pod.wished(card_of(each)) for each in ids)
        if wished and not pod.invalid and pod.uid not in world.confused:
            world.judge.find("veto", f"{call}: {error}")
        return False
    except Exception as error:  # noqa: BLE001 -- the judge's finding
        world.judge.find("failed", f"PreStart {call}: {error!r}")
        return False
    finally:
        call.said = world.diary.take()
        written = world.devices.saved.get(pod.uid, {}).get(container.name, {})
        for each in call.said:
            world.trace(f"   {each}")
            if each.word == "unproven":
                world.judge.unproven(call, each, overtaken=written.get(resource) != ids)
        world.judge.named(call)
        world.diary.everything, world.proving = before, False
    return True

"""Check a quiet node: without any call, the agent's reports must become correct."""

from collections import Counter
from collections.abc import Collection

from agent.allocator.slot_holdings import key_of
from contract.allocation import decode_allocations
from contract.errors import ContractError
from contract.resource import Resource
from tests.adversary.world import World
from tests.in_memory.pods import NAMES, card_of


def settle(world: World) -> None:
    """Deliver all pending events and writes, as two seconds without a call do."""
    world.api.away = False
    world.api.failing = 0
    world.list_error = ""
    for pod in world.kubelet.starting():
        for container in world.kubelet.to_start(pod):
            if not world.try_to_start(pod, container):
                break
    world.kubelet.write_statuses()
    for _ in range(3):
        world.watch.deliver()
        world.now += 1.0
        world.refresh()
        world.api.write()
    world.watch.deliver()
    world.decision_log.take()


def check(world: World) -> None:
    """Compare the agent's reports on a quiet node with the true state."""
    world.trace("quiet")
    if not world.misled:
        _check_free(world)
        _check_known(world)
        _check_annotations(world)


def _check_free(world: World) -> None:
    world.look()
    # The devices of a rejected or deleted pod become free at the next admission, at the latest;
    # until then List may show them (K20, K21).
    state = world.kubelet.state
    ended = state.devices.pods.keys() - state.active()
    pods = world.kubelet.pods
    # If a killed kubelet lost a part of a pod's devices (K33), the others may count either way.
    lost = {each for each in world.lost if not world.has_all(pods[each[0]], each[1])}
    ended |= {uid for uid, _ in lost}
    unlisted = ended - {each.pod.uid for each in state.listed()}
    for resource in Resource:
        reported = world.allocator.free(resource)
        most, least = _free(world, resource, but=ended), _free(world, resource, but=unlisted)
        for card in world.cards_here:
            if not least[card] <= reported[card] <= most[card]:
                text = f"{resource} of {card}: {most[card]} are free, reported {reported[card]}"
                world.judge.find("free", text)


def _free(world: World, resource: Resource, *, but: Collection[str]) -> dict[str, int]:
    held = Counter(map(card_of, world.kubelet.held(resource, but=but)))
    by_card = world.table.by_card(resource).items()
    return {card: len(ids) - held[card] for card, ids in by_card}


def _check_known(world: World) -> None:
    """Check the entitlement of each running container, which vcuda may request at any time."""
    for pod in world.kubelet.running():
        if not world.knows(pod) or pod.uid in world.confused:
            continue
        for container in pod.containers:
            held = world.held(pod, container.name).get(Resource.CORE)
            if held is None or container.hands_on:
                continue
            found = world.allocator.entitled(pod.uid, container.name)
            if found is None or found.key != key_of(held):
                world.judge.find("unknown", f"{pod.uid} {container.name}: {found}")


def _check_annotations(world: World) -> None:
    for pod in world.kubelet.running():
        text = pod.annotations.get(NAMES.gpu_allocation)
        if not world.api.has(pod) or pod.uid in world.confused:
            continue
        try:
            allocations = decode_allocations(text) if text is not None else {}
        except ContractError:
            continue
        held = {
            name: {card_of(each) for ids in resources.values() for each in ids}
            for name, resources in world.kubelet.holdings.get(pod.uid, {}).items()
            if (pod.uid, name) not in world.lost or world.has_all(pod, name)
        }
        if pod.requests_gpus:
            cards = {name: set(each.cards) for name, each in allocations.items() if name in held}
            world.judge.annotated(pod, held, cards)
            missing = {
                each.name
                for each in pod.containers
                if each.requests_gpus and not each.hands_on and each.name not in cards
            }
            lost = {each for each in missing if (pod.uid, each) in world.lost}
            forgotten = {each for each in lost if not world.has_all(pod, each)}
            if forgotten:
                world.judge.excused["a killed kubelet had not saved it (K28, K33)"] += 1
            missing -= forgotten
            if missing and not pod.invalid:
                world.judge.find("record", f"{pod.uid}: no allocation for {sorted(missing)}")

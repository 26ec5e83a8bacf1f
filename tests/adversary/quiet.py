"""A node on which nothing happens: what the agent tells then must be so, without any call."""

from collections import Counter
from collections.abc import Collection

from contract.allocation import decode_allocations
from contract.errors import ContractError
from contract.resource import Resource
from tests.adversary.world import World
from tests.in_memory.pods import NAMES, card_of


def come_to_rest(world: World) -> None:
    """Let everything that is on its way arrive, as two seconds without a call do."""
    world.api.away = False
    world.api.failing = 0
    world.list_away = ""
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
    world.diary.take()


def check(world: World) -> None:
    """Compare what the agent tells of a quiet node with the truth."""
    world.trace("quiet")
    if not world.misled:
        _check_free(world)
        _check_known(world)
        _check_records(world)


def _check_free(world: World) -> None:
    world.look()
    # What a rejected or deleted pod got is free as soon as another comes, at the latest; until
    # then List may show it (K20, K21).
    state = world.kubelet.state
    over = state.devices.pods.keys() - state.active()
    pods = world.kubelet.pods
    # What is left of a pod of which a dead kubelet took a part (K33) may be either.
    lost = {each for each in world.lost if not world.has_all(pods[each[0]], each[1])}
    over |= {uid for uid, _ in lost}
    unlisted = over - {each.pod.uid for each in state.listed()}
    for resource in Resource:
        told = world.allocator.free(resource)
        most, least = _free(world, resource, but=over), _free(world, resource, but=unlisted)
        for card in world.cards_here:
            if not least[card] <= told[card] <= most[card]:
                what = f"{resource} of {card}: {most[card]} are free, told {told[card]}"
                world.judge.find("free", what)


def _free(world: World, resource: Resource, *, but: Collection[str]) -> dict[str, int]:
    held = Counter(map(card_of, world.kubelet.held(resource, but=but)))
    places = world.table.by_card(resource).items()
    return {card: len(ids) - held[card] for card, ids in places}


def _check_known(world: World) -> None:
    """Ask, as a running container may at any time (vcuda), what it may use."""
    for pod in world.kubelet.running():
        if not world.knows(pod) or pod.uid in world.confused:
            continue
        for container in pod.containers:
            held = world.held(pod, container.name).get(Resource.CORE)
            if held is None or container.hands_on:
                continue
            found = world.allocator.entitled(pod.uid, container.name)
            if found is None or found.core_ids != held:
                world.judge.find("unknown", f"{pod.uid} {container.name}: {found}")


def _check_records(world: World) -> None:
    for pod in world.kubelet.running():
        text = pod.annotations.get(NAMES.gpu_allocation)
        if not world.api.has(pod) or pod.uid in world.confused:
            continue
        try:
            records = decode_allocations(text) if text is not None else {}
        except ContractError:
            continue
        held = {
            name: {card_of(each) for ids in resources.values() for each in ids}
            for name, resources in world.kubelet.holdings.get(pod.uid, {}).items()
        }
        if pod.asks:
            told = {name: set(each.cards) for name, each in records.items() if name in held}
            world.judge.recorded(pod, held, told)
            missing = {
                each.name
                for each in pod.containers
                if each.asks and not each.hands_on and each.name not in told
            }
            lost = {each for each in missing if (pod.uid, each) in world.lost}
            forgotten = {each for each in lost if not world.has_all(pod, each)}
            if forgotten:
                world.judge.excused["the kubelet died before its checkpoint had it (K28, K33)"] += 1
            missing -= forgotten
            if missing and not pod.invalid:
                world.judge.find("record", f"{pod.uid}: no record for {sorted(missing)}")

"""A node on which nothing happens: what the agent tells then must be so, without any call."""

from collections import Counter
from collections.abc import Collection

from bench.adversary.kubelet import State
from bench.adversary.pods import NAMES, card_of
from bench.adversary.world import World
from contract.allocation import decode_allocations
from contract.demand import ContainerKind
from contract.errors import ContractError
from contract.resource import Resource


def come_to_rest(world: World) -> None:
    """Let everything that is on its way arrive, as two seconds without a call do."""
    world.api.away = False
    world.api.failing = 0
    world.kubelet.blind = False
    world.kubelet.write_statuses(1_000_000)
    for _ in range(3):
        world.host.watch.deliver()
        world.now += 1.0
        world.refresh()
        world.api.write()
    world.host.watch.deliver()
    world.diary.take()


def check(world: World) -> None:
    """Compare what the agent tells of a quiet node with the truth."""
    world.trace("quiet")
    if not world.misled:
        _check_free(world)
        _check_known(world)
        _check_records(world)


def _check_free(world: World) -> None:
    world.kubelet.look()
    # What a rejected or deleted pod got is free as soon as another comes, at the latest; until
    # then List may show it (K20, K21).
    over = world.devices.core.pods.keys() - set(world.kubelet.active())
    unlisted = over - {each.pod.uid for each in world.kubelet.listed()}
    for resource in Resource:
        told = world.host.allocator.free(resource)
        most, least = _free(world, resource, but=over), _free(world, resource, but=unlisted)
        for card in world.cards:
            if not least[card] <= told[card] <= most[card]:
                what = f"{resource} of {card}: {most[card]} are free, told {told[card]}"
                world.judge.find("free", what)


def _free(world: World, resource: Resource, *, but: Collection[str]) -> dict[str, int]:
    held = Counter(map(card_of, world.devices.held(resource, but=but)))
    places = world.table.by_card(resource).items()
    return {card: len(ids) - held[card] for card, ids in places}


def _check_known(world: World) -> None:
    """Ask, as a running container may at any time (vcuda), what it may use."""
    for known in world.kubelet.known.values():
        if known.state is not State.RUNNING or not world.host.knows(known.pod.uids):
            continue
        if known.pod.uid in world.confused:
            continue
        for container in known.pod.containers:
            held = world.devices.of(known.pod.uid, container.name).get(Resource.CORE)
            if held is None or container.kind is ContainerKind.INIT:
                continue
            found = world.host.allocator.entitled(known.pod.uid, container.name)
            if found is None or found.core_ids != held:
                world.judge.find("unknown", f"{known.pod.uid} {container.name}: {found}")


def _check_records(world: World) -> None:
    for known in world.kubelet.known.values():
        pod = known.pod
        text = pod.annotations.get(NAMES.gpu_allocation)
        if known.state is not State.RUNNING or not world.api.has(pod):
            continue
        if pod.uid in world.confused:
            continue
        try:
            records = decode_allocations(text) if text is not None else {}
        except ContractError:
            continue
        held = {
            name: {card_of(each) for ids in resources.values() for each in ids}
            for name, resources in world.devices.pod_devices.get(pod.uid, {}).items()
        }
        if pod.asks:
            told = {name: set(each.cards) for name, each in records.items() if name in held}
            world.judge.recorded(pod, held, told)
            missing = {
                each.name
                for each in pod.containers
                if each.asks and each.kind is not ContainerKind.INIT and each.name not in told
            }
            if missing and not pod.invalid:
                world.judge.find("record", f"{pod.uid}: no record for {sorted(missing)}")

"""Creates the parts that depend on the cards, once these are known."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from agent.allocator.slots import DeviceTable
from agent.app.claim_door import ClaimDoor
from agent.app.container_setup import EnforcerRunner, Injector, set_up_containers
from agent.app.door import Door, DoorParts
from agent.app.missing_cards import MissingCards
from agent.app.plugin_door import PluginDoor
from agent.app.refresher import Refresher, RefreshPace
from agent.cards.discovery import CardWatch
from agent.enforcement.vcuda.manager import Entitled
from agent.holdings.holding import ContainerRef
from agent.kubelet.device_list import check_size
from agent.kubernetes_api.annotation_writer import PatchQueue
from agent.kubernetes_api.client import Api
from agent.kubernetes_api.pods import PodCache
from agent.observability.metrics import Metrics
from agent.settings import AgentMode, Settings
from common.apiserver.events import EventSubject, Notice
from contract.inventory import Inventory

log = logging.getLogger(__name__)

_DOORS: Mapping[AgentMode, Callable[[DoorParts], Door]] = {
    AgentMode.PLUGIN: PluginDoor,
    AgentMode.DRA: ClaimDoor,
}


@dataclass(frozen=True, slots=True)
class CardServices:
    """The parts that depend on the cards.

    Attributes:
        table: the cards that are served.
        writer: the queue of allocation annotations.
        enforcer_runner: runs enforcement.
        door: hands out the cards.
        refresher: writes what is missing, from time to time.
    """

    table: DeviceTable
    writer: PatchQueue
    enforcer_runner: EnforcerRunner
    door: Door
    refresher: Refresher


def open_table(inventory: Inventory, settings: Settings) -> DeviceTable:
    """Make the node's device table.

    Raises:
        SettingsError: a memory block is larger than a card, or too small for the kubelet.
    """
    table = DeviceTable(inventory, settings.memory_block)
    if settings.mode is AgentMode.PLUGIN:
        check_size(table, numa=settings.numa)
    return table


def open_services(  # noqa: PLR0913 -- its surroundings, by keyword
    inventory: Inventory,
    *,
    settings: Settings,
    api: Api,
    pods: PodCache,
    watch: CardWatch,
    metrics: Metrics,
    send_event: Callable[[Notice], None],
    stop: threading.Event,
    entitled: Entitled,
    on_change: Callable[[], None],
    runtime: Callable[[], str],
    pace: RefreshPace,
) -> CardServices:
    """Create the parts that serve these cards; nothing runs yet.

    *entitled* returns what a running container holds, by pod UID and name. *on_change* is called
    when other amounts of the cards are free than before. *runtime* is as in :class:`Injector`, the
    rest as in :class:`DoorParts`.

    Raises:
        SettingsError: as :func:`open_table`, or the specs of claims cannot be read.
    """
    table = open_table(inventory, settings)
    node = EventSubject("Node", "", settings.node_name, settings.node_name)

    def report_host_specs(problem: str) -> None:
        metrics.cdi_specs_unused.clear()
        metrics.cdi_specs_unused.labels(problem).set(bool(problem))
        if problem:
            text = "containers get no driver files (libcuda), the host's CDI specs are not used"
            send_event(Notice(node, "GPUHostSpecsUnused", f"{text}: {problem}"))

    injector = Injector(settings, inventory, runtime=runtime, on_host_specs=report_host_specs)

    def driver() -> str:
        found = watch.status.discovery
        return found.driver if found is not None else ""

    def patched(result: str) -> None:
        metrics.patches.labels(result).inc()
        on_change()  # an allocation was written, so less is free

    def report_daemon_lost(ref: ContainerRef, why: str) -> None:
        subject = EventSubject("Pod", ref.pod.namespace, ref.pod.name, ref.pod.uid)
        text = f"container {ref.container}: {why}: restart it if its CUDA calls fail"
        send_event(Notice(subject, "GPUDaemonEnded", text))

    def container_name(uid: str, container_id: str) -> str:
        found = (each.by_id for each in pods.pods() if each.id.uid == uid)
        return next(found, {}).get(container_id, "")

    enforcer, enforcer_runner = set_up_containers(
        settings,
        inventory,
        driver=driver,
        entitled=entitled,
        on_registered=lambda result: metrics.registrations.labels(result).inc(),
        on_outdated=metrics.hami_core_outdated.set,
        on_unusable=metrics.hami_core_problem.set,
        on_daemon_lost=report_daemon_lost,
        container_name=container_name,
        show_limits=partial(setattr, metrics, "read_limits"),
    )
    writer = PatchQueue(
        api=api,
        names=settings.names,
        indices={card.uuid: card.index for card in inventory.cards},
        on_result=patched,
    )
    log.info(
        "cards",
        extra={
            "cards": {card.uuid: card.model for card in inventory.cards},
            "memory_block": settings.memory_block,
            "inject": str(settings.inject),
            "enforcement": str(settings.enforcement),
        },
    )
    door = _DOORS[settings.mode](
        DoorParts(
            settings=settings,
            table=table,
            api=api,
            pods=pods,
            watch=watch,
            metrics=metrics,
            send_event=send_event,
            injector=injector,
            enforcer=enforcer,
            writer=writer,
            stop=stop,
        )
    )
    missing = MissingCards(settings.node_name, send_event)

    def tick() -> None:
        enforcer_runner.tick()
        injector.refresh()
        door.tick()
        if door.knows_all and pods.is_synced():
            missing.report_once(door.core.holdings)

    refresher = Refresher(
        core=door.core,
        synced=pods.synced,
        stop=stop,
        on_released=on_change,
        on_tick=tick,
        pace=pace,
    )
    return CardServices(table, writer, enforcer_runner, door, refresher)

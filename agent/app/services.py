"""The parts that depend on the cards, and those of ``--mode dra``."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.allocator.allocator import Allocator
from agent.allocator.grants import ContainerEdits, Grant
from agent.allocator.interfaces import ContainerRef
from agent.allocator.outcomes import Enforcer
from agent.allocator.slots import DeviceTable
from agent.app.container_setup import EnforcerRunner
from agent.app.refresher import Refresher
from agent.cards.discovery import CardWatch
from agent.cards.pci import pcie_root
from agent.dra.claims import is_allocated
from agent.dra.counts import NodeCounts
from agent.dra.devices import devices_of, slices_of
from agent.dra.driver import ClaimDriver
from agent.dra.server import DriverServer
from agent.dra.slices import SlicePublisher
from agent.dra.specs import ClaimSpecs
from agent.errors import EnforcementError, SettingsError
from agent.kubelet.registration import Registrar
from agent.kubernetes_api.annotation_writer import PatchQueue
from agent.kubernetes_api.client import CLAIMS, Api
from agent.kubernetes_api.pods import PodCache
from agent.kubernetes_api.watched_objects import WatchedObjects
from agent.settings import Settings
from agent.usage.holdings import Holdings
from contract.resource import Resource, count_of


@dataclass(frozen=True, slots=True)
class DriverParts:
    """The parts of ``--mode dra``.

    Attributes:
        driver: the prepared claims.
        server: the sockets for the kubelet.
        threads: what else runs, each by a name, until the agent stops.
        wake: reports that the health or the cordon of a card has changed.
        counts: the counts in the node's status.
        close: ends the threads that do not watch the API server.
    """

    driver: ClaimDriver
    server: DriverServer
    threads: Mapping[str, Callable[[], None]]
    wake: Callable[[], None]
    counts: NodeCounts
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class CardServices:
    """The parts that depend on the cards; what both modes have is called in the same way.

    Attributes:
        writer: the queue of allocation annotations.
        allocator: knows who holds what.
        registrar: serves the kubelet.
        enforcer_runner: runs enforcement.
        refresher: writes what is missing, from time to time.
        holdings: returns what containers hold.
        parts: those of ``--mode dra``.
    """

    writer: PatchQueue
    allocator: Allocator | ClaimDriver
    registrar: Registrar | DriverServer
    enforcer_runner: EnforcerRunner
    refresher: Refresher
    holdings: Callable[[], Holdings]
    parts: DriverParts | None = None


def make_driver(  # noqa: PLR0913 -- its surroundings, by keyword
    settings: Settings,
    table: DeviceTable,
    *,
    api: Api,
    pods: PodCache,
    watch: CardWatch,
    stop: threading.Event,
    inject: Callable[[Grant], ContainerEdits],
    locate: Callable[[str], str],
    enforcer: Enforcer,
    writer: PatchQueue,
    on_prepared: Callable[[], None],
    on_refusal: Callable[[ContainerRef, str], None],
) -> DriverParts:
    """Make the parts of ``--mode dra``, and read the claims of an earlier agent.

    Raises:
        SettingsError: the specs of claims cannot be read.
    """
    node, driver = settings.node_name, settings.claim_driver
    inventory = table.inventory
    roots = {card.bus_id: pcie_root(card.bus_id) for card in inventory.cards}
    # Claims have no field selector but name and namespace: those of the whole cluster are read.
    claims = WatchedObjects(
        api, CLAIMS, "ResourceClaim", keeps=lambda claim: is_allocated(claim, driver, node)
    )
    try:
        made = ClaimDriver(
            table=table,
            driver=driver,
            pool=node,
            claims=claims,
            api=api,
            pods=pods,
            specs=ClaimSpecs(settings.cdi_dir, driver, locate),
            inject=inject,
            enforcer=enforcer,
            writer=writer,
            unhealthy=watch.unhealthy,
            on_prepared=on_prepared,
            on_refusal=on_refusal,
        )
    except EnforcementError as error:
        raise SettingsError(str(error)) from error

    def specs() -> Mapping[str, dict[str, Any]]:
        found = watch.status.discovery
        devices = devices_of(
            table,
            domain=settings.names.domain,
            driver_version=found.driver if found is not None else "",
            unhealthy=watch.unhealthy,
            cordoned=watch.cordoned,
            pcie_root=roots.__getitem__,
        )
        return slices_of(devices, driver=driver, node=node)

    def counts() -> Mapping[str, Mapping[str, int]]:
        usable = [card for card in inventory.cards if not watch.withheld(card.uuid)]
        return {
            status: {
                settings.names.of(each): sum(count_of(card.size(table.block), each) for card in of)
                for each in Resource
            }
            for status, of in (("capacity", inventory.cards), ("allocatable", usable))
        }

    slices = SlicePublisher(api=api, node=node, driver=driver, specs=specs)
    return DriverParts(
        driver=made,
        server=DriverServer(
            made, plugins=settings.claim_plugins, registry=settings.plugin_registry
        ),
        threads={
            "claims": lambda: claims.run(stop),
            "slices": lambda: slices.slices.run(stop),
            "slice-writer": slices.run,
        },
        wake=slices.poke,
        counts=NodeCounts(api=api, node=node, kubelet_dir=settings.kubelet_dir, counts=counts),
        close=slices.stop,
    )

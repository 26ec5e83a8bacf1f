"""Claims of Dynamic Resource Allocation as a door: ``--mode dra``."""

from collections.abc import Callable, Mapping
from typing import Any

from agent.app.door import DoorParts
from agent.app.unclaimed import UnclaimedPods
from agent.cards.pci import pcie_root
from agent.dra.claims import is_allocated
from agent.dra.counts import NodeCounts
from agent.dra.devices import devices_of, slices_of
from agent.dra.driver import ClaimDriver
from agent.dra.server import DriverServer
from agent.dra.slices import SlicePublisher
from agent.dra.specs import ClaimSpecs
from agent.errors import EnforcementError, SettingsError
from agent.holdings.core import NodeCore
from agent.holdings.holding import ContainerRef
from agent.kubernetes_api.client import CLAIMS, Json
from agent.kubernetes_api.watched_objects import WatchedObjects
from contract.allocation import Evidence
from contract.resource import Resource


class ClaimDoor:
    """Implements :class:`agent.app.door.Door` by a driver of claims."""

    stands_in = False
    """It does not stand in for a proxy: the kubelet calls again for a claim that has failed."""

    def __init__(self, parts: DoorParts) -> None:
        """Create the parts, and read the claims of an earlier agent.

        Raises:
            SettingsError: the specs of claims cannot be read.
        """
        settings, api, metrics = parts.settings, parts.api, parts.metrics
        node, driver = settings.node_name, settings.claim_driver
        self._parts = parts
        self._roots = {card.bus_id: pcie_root(card.bus_id) for card in parts.table.inventory.cards}
        # Claims have no field selector but name and namespace: those of the whole cluster are read.
        claims = WatchedObjects(
            api, CLAIMS, "ResourceClaim", keeps=lambda claim: is_allocated(claim, driver, node)
        )
        try:
            self._driver = ClaimDriver(
                table=parts.table,
                driver=driver,
                pool=node,
                claims=claims,
                api=api,
                pods=parts.pods,
                specs=ClaimSpecs(settings.cdi_dir, driver, parts.injector.locate),
                inject=parts.injector.edits_for,
                enforcer=parts.enforcer,
                writer=parts.writer,
                unhealthy=parts.watch.unhealthy,
                on_prepared=metrics.decisions.labels("prepare", Evidence.CLAIM).inc,
                on_refusal=self._refuse,
            )
        except EnforcementError as error:
            raise SettingsError(str(error)) from error
        self._server = DriverServer(
            self._driver, plugins=settings.claim_plugins, registry=settings.plugin_registry
        )
        self._slices = SlicePublisher(api=api, node=node, driver=driver, specs=self._specs)
        self._counts = NodeCounts(
            api=api, node=node, kubelet_dir=settings.kubelet_dir, counts=self._count
        )
        self._unclaimed = UnclaimedPods(parts.send_event)
        self.core: NodeCore = self._driver
        self.threads: Mapping[str, Callable[[], None]] = {
            "claims": lambda: claims.run(parts.stop),
            "slices": lambda: self._slices.slices.run(parts.stop),
            "slice-writer": self._slices.run,
            "registrar": self._server.run,  # at last: its calls look into the watch of claims
        }

    @property
    def registered(self) -> bool:
        """Whether a kubelet has registered this instance of the driver."""
        return self._server.registered

    @property
    def knows_all(self) -> bool:
        """Whether the API has all claims that an earlier agent had prepared."""
        return self._driver.confirmed

    @property
    def counts_problem(self) -> str:
        """Why the node's status does not have the counts of the cards; empty if it has."""
        return self._counts.problem

    def update_node(self, node: Json) -> None:
        """Write the counts of the cards if the node's status has others."""
        self._counts.update(node)

    def wake(self) -> None:
        """Compare the node's ResourceSlices with the health of its cards."""
        self._slices.poke()

    def tick(self) -> None:
        """Report pods that run without a claim."""
        if self._driver.confirmed:
            self._unclaimed.report(self._parts.pods.pods(), self._driver.claimed_pods())

    def stop(self) -> None:
        """End the registration; calls in flight finish."""
        self._server.stop()
        self._slices.stop()

    def close(self) -> None:
        """Do nothing: the driver has no connection of its own."""

    def _refuse(self, ref: ContainerRef, reason: str) -> None:
        self._parts.metrics.refusals.labels("prepare", Resource.CORE).inc()
        self._parts.report_refusal("prepare", ref, reason)

    def _specs(self) -> Mapping[str, dict[str, Any]]:
        settings, watch = self._parts.settings, self._parts.watch
        found = watch.status.discovery
        devices = devices_of(
            self._parts.table,
            domain=settings.names.domain,
            driver_version=found.driver if found is not None else "",
            unhealthy=watch.unhealthy,
            cordoned=watch.cordoned,
            pcie_root=self._roots.__getitem__,
        )
        return slices_of(devices, driver=settings.claim_driver, node=settings.node_name)

    def _count(self) -> Mapping[str, Mapping[str, int]]:
        """Return the wanted ``capacity`` and ``allocatable``, by resource."""
        table, names = self._parts.table, self._parts.settings.names
        cards = table.inventory.cards
        usable = [card for card in cards if not self._parts.watch.withheld(card.uuid)]
        return {
            status: {
                names.of(each): sum(each.count_in(card.size(table.block)) for card in of)
                for each in Resource
            }
            for status, of in (("capacity", cards), ("allocatable", usable))
        }

"""The device plugin as a door: one plugin for each resource, and the allocator behind both."""

import time
from collections.abc import Callable, Mapping

from agent.allocator.allocator import Allocator
from agent.app.door import DoorParts
from agent.holdings.core import NodeCore
from agent.host.stale_sockets import remove_dead
from agent.host.state_file import StateFile
from agent.kubelet.checkpoint import CheckpointFile
from agent.kubelet.device_list import HealthFeed
from agent.kubelet.kubelet_instance import KubeletInstance
from agent.kubelet.podresources import PodResources
from agent.kubelet.registration import Registrar
from agent.kubelet.server import DevicePluginService, RefusalPace
from agent.kubernetes_api.client import Json
from agent.observability.decision_log import LoggedDecisions
from common.apiserver.access import own_pod
from common.apiserver.events import EventSubject, Notice
from common.kubelet_api import KUBELET_SOCKET
from contract.resource import Resource

CURRENT_POD_FILE = "current-pod.json"
"""The file with the current pod, in the folder of the sockets that the agent registers."""

_PROXY_ENDED = (
    "the device plugin proxy of this node has ended, and the agent stands in for it: if it was "
    "killed, GPU pods that waited on the node have failed (no healthy devices present), and their "
    "controllers create them again"
)


class PluginDoor:
    """Implements :class:`agent.app.door.Door` by the device plugin API."""

    counts_problem = ""
    """The kubelet writes the counts of a device plugin."""

    def __init__(self, parts: DoorParts) -> None:
        """Create the parts; nothing is served or read yet."""
        settings, names = parts.settings, parts.settings.names
        self._parts = parts
        self._feed = HealthFeed(parts.watch.withheld_cards)
        self._pod_resources = PodResources(
            settings.pod_resources_socket,
            resources=names.resources,
            kubelet_socket=settings.kubelet_dir / KUBELET_SOCKET,
            own=own_pod(),
        )
        checkpoint = CheckpointFile(settings.kubelet_dir, names.resources)
        parts.metrics.checkpoint_readable.set_function(lambda: checkpoint.readable)
        parts.metrics.list_readable.set_function(lambda: self._pod_resources.readable)
        self._decision_log = LoggedDecisions(parts.metrics, on_refusal=parts.report_refusal)
        self._allocator = Allocator(
            table=parts.table,
            pods=parts.pods,
            pod_resources=self._pod_resources,
            checkpoint=checkpoint,
            store=StateFile(settings.plugin_dir / CURRENT_POD_FILE),
            kubelet=KubeletInstance(settings.kubelet_dir).current,
            writer=parts.writer,
            decision_log=self._decision_log,
            inject=parts.injector.edits_for,
            enforcer=parts.enforcer,
            withheld=parts.watch.withheld,
            policy=settings.policy,
            strict=settings.strict_predicate,
        )
        self._pace = RefusalPace(time.monotonic)
        self._registrar = Registrar(
            plugin_dir=settings.plugin_dir,
            kubelet_dir=settings.kubelet_dir,
            services={name: self._service(each) for name, each in names.resources.items()},
            on_gap=parts.metrics.unregistered.observe,
            on_proxy_end=self._report_proxy_end,
        )
        self.core: NodeCore = self._allocator
        self.threads: Mapping[str, Callable[[], None]] = {"registrar": self._register}

    @property
    def registered(self) -> bool:
        """Whether the kubelet, or the proxy, has registered both resources."""
        return self._registrar.registered

    @property
    def stands_in(self) -> bool:
        """Whether it is registered with the kubelet itself because the proxy has ended."""
        return self._registrar.stands_in

    @property
    def knows_all(self) -> bool:
        """Whether ``List`` has been read."""
        return self._allocator.snapshot().listing

    def update_node(self, node: Json) -> None:
        """Do nothing: the kubelet writes the counts of a device plugin."""

    def wake(self) -> None:
        """Send the lists of devices again."""
        self._feed.wake()

    def tick(self) -> None:
        """Log what was not repeated one by one."""
        self._decision_log.tick()

    def stop(self) -> None:
        """End the registration; streams end, and calls in flight finish."""
        self._registrar.stop()

    def close(self) -> None:
        """Close the connection to the kubelet, after all threads have ended."""
        self._pod_resources.close()

    def _register(self) -> None:
        remove_dead(self._parts.settings.plugin_dir, ["vcore*.sock", "vmemory*.sock"])
        self._registrar.run()

    def _service(self, resource: Resource) -> Callable[[], DevicePluginService]:
        parts = self._parts
        return lambda: DevicePluginService(
            resource=resource,
            table=parts.table,
            calls=self._allocator,
            health_feed=self._feed,
            numa=parts.settings.numa,
            before_refusal=lambda: parts.stop.wait(self._pace.delay()),
        )

    def _report_proxy_end(self) -> None:
        self._parts.metrics.proxy_ends.inc()
        node = self._parts.settings.node_name
        subject = EventSubject("Node", "", node, node)
        self._parts.send_event(Notice(subject, "GPUProxyEnded", _PROXY_ENDED))

"""The door: the way on which the kubelet hands out cards, of which an agent has one.

A door is the device plugin (:mod:`agent.app.plugin_door`) or a driver of claims
(:mod:`agent.app.claim_door`). It is made once the cards are known. What it knows of holdings is in
its core; the agent does everything else alike for both.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from agent.allocator.slots import DeviceTable
from agent.app.container_setup import Injector
from agent.cards.discovery import CardWatch
from agent.holdings.core import NodeCore
from agent.holdings.holding import ContainerRef
from agent.holdings.interfaces import AnnotationWriter, Enforcer
from agent.kubernetes_api.client import Api, Json
from agent.kubernetes_api.pods import PodCache
from agent.observability.metrics import Metrics
from agent.settings import Settings
from common.apiserver.events import EventSubject, Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorParts:
    """What both doors are made of; *stop* is set when the agent stops."""

    settings: Settings
    table: DeviceTable
    api: Api
    pods: PodCache
    watch: CardWatch
    metrics: Metrics
    send_event: Callable[[Notice], None]
    injector: Injector
    enforcer: Enforcer
    writer: AnnotationWriter
    stop: threading.Event

    def report_refusal(self, call: str, ref: ContainerRef, reason: str) -> None:
        """Send an Event on the pod of a container that was refused, or whose start was vetoed."""
        pod = ref.pod
        event_reason = "GPUStartVetoed" if call == "prestart" else "GPURefused"
        message = f"container {ref.container}: {reason}"
        subject = EventSubject("Pod", pod.namespace, pod.name, pod.uid)
        self.send_event(Notice(subject, event_reason, message))


class Door(Protocol):
    """One way to the cards.

    Attributes:
        core: knows what containers hold.
        threads: what runs until :meth:`stop`, each by a name.
    """

    core: NodeCore
    threads: Mapping[str, Callable[[], None]]

    @property
    def registered(self) -> bool:
        """Whether a kubelet has registered this agent."""

    @property
    def stands_in(self) -> bool:
        """Whether it is registered with the kubelet itself because the proxy has ended."""

    @property
    def knows_all(self) -> bool:
        """Whether it knows everything that earlier agents gave to containers."""

    @property
    def counts_problem(self) -> str:
        """Why the node's status does not have the counts of the cards; empty if it has."""

    def update_node(self, node: Json) -> None:
        """Handle a reading of the node."""

    def wake(self) -> None:
        """Publish the health of the cards, which has changed."""

    def tick(self) -> None:
        """Report what is due, every few seconds."""

    def stop(self) -> None:
        """Make the threads return; calls in flight finish."""

    def close(self) -> None:
        """Close connections, after all threads have ended."""

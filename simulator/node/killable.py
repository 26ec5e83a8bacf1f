"""Wrappers that cut an in-process agent off from the outside, to simulate SIGKILL.

A thread cannot be killed, so the threads of a killed agent run on for a moment. But they have no
effect: calls to the agent fail as on a broken connection, and its writes are dropped.
"""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc

from agent.allocator.allocator import Allocator
from agent.allocator.interfaces import DecisionLog
from agent.allocator.slots import DeviceTable
from agent.app.container_setup import EnforcerRunner
from agent.kubelet.podresources import PodResources
from agent.kubelet.registration import Registrar
from agent.kubelet.server import DevicePluginService
from common.kubelet_api import deviceplugin_pb2 as pb
from contract.allocation import Allocation
from contract.resource import Resource
from placement.pods import PodInfo
from simulator.node.api import InMemoryApi

CUT = "error reading from server: EOF"
"""The kubelet's error if a plugin is killed during a call."""

_JOIN_S = 120.0

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class AgentKilled(Exception):
    """Raised by a hook: the agent is killed at once, its response is lost."""


@dataclass(frozen=True, slots=True)
class CallStage:
    """A stage of an agent's call: it was handled, but its response was not sent yet.

    Attributes:
        call: ``GetPreferredAllocation``, ``Allocate`` or ``PreStartContainer``.
        ids: the devices named in it; none in a preferred call.
    """

    call: str
    resource: Resource
    ids: frozenset[str] = frozenset()


AgentHook = Callable[[CallStage], None]
"""Called at every such stage; if it raises :class:`AgentKilled`, the agent is killed."""


def no_hook(stage: CallStage) -> None:
    """Do nothing."""


class KillSwitch:
    """Marks one run of the agent as killed."""

    def __init__(self, hook: AgentHook) -> None:
        self._hook = hook
        self.dead = threading.Event()

    def kill(self) -> None:
        """Kill the agent: calls in flight have no effect from now on."""
        self.dead.set()

    def abort_if_killed(self, context: grpc.ServicerContext) -> None:
        """Abort a call if the agent was killed."""
        if self.dead.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, CUT)

    def reach(self, stage: CallStage) -> None:
        """Call the hook, which may kill the agent at this stage."""
        try:
            self._hook(stage)
        except AgentKilled:
            self.kill()


class _Muted:
    """Passes calls to *log* until the agent is killed."""

    def __init__(self, log: DecisionLog, kill_switch: KillSwitch) -> None:
        self._log = log
        self._kill_switch = kill_switch

    def __getattr__(self, name: str) -> Callable[..., None]:
        def report(*args: Any) -> None:
            if not self._kill_switch.dead.is_set():
                getattr(self._log, name)(*args)

        return report


def killable_log(log: DecisionLog, kill_switch: KillSwitch) -> DecisionLog:
    """Return a decision log that ignores a killed agent."""
    return cast(DecisionLog, _Muted(log, kill_switch))


class KillableQueue:
    """A :class:`agent.holdings.interfaces.AnnotationWriter` that ignores a killed agent.

    Args:
        api: the API server.
        kill_switch: of the agent.
        waits: whether writes stay queued until :meth:`write`.
    """

    def __init__(self, api: InMemoryApi[Any], kill_switch: KillSwitch, *, waits: bool) -> None:
        self._api = api
        self._kill_switch = kill_switch
        self._waits = waits

    def put(self, info: PodInfo, allocations: dict[str, Allocation]) -> None:
        """Write a pod's allocations, now or later."""
        if not self._kill_switch.dead.is_set():
            self._api.put(info, allocations)
            if not self._waits:
                self._api.write()

    def write(self) -> None:
        """Write all queued allocations."""
        if not self._kill_switch.dead.is_set():
            self._api.write()


class KillableService(DevicePluginService):
    """The device plugin of one resource, of an agent that may be killed in any call."""

    def __init__(
        self,
        *,
        resource: Resource,
        table: DeviceTable,
        calls: Allocator,
        kill_switch: KillSwitch,
        numa: bool = False,
    ) -> None:
        super().__init__(resource=resource, table=table, calls=calls, numa=numa)
        self._served = resource
        self._kill_switch = kill_switch

    def GetPreferredAllocation(  # noqa: N802 - the protocol's name
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        """Find the target and reserve device IDs."""
        stage = CallStage("GetPreferredAllocation", self._served)
        return self._killable(super().GetPreferredAllocation, request, context, stage)

    def Allocate(  # noqa: N802 - the protocol's name
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        """Return the container edits for the device IDs."""
        ids = (each for one in request.container_requests for each in one.devices_ids)
        stage = CallStage("Allocate", self._served, frozenset(ids))
        return self._killable(super().Allocate, request, context, stage)

    def PreStartContainer(  # noqa: N802 - the protocol's name
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        """Verify the container before it starts."""
        stage = CallStage("PreStartContainer", self._served, frozenset(request.devices_ids))
        return self._killable(super().PreStartContainer, request, context, stage)

    def _killable(
        self,
        call: Callable[[_Request, grpc.ServicerContext], _Response],
        request: _Request,
        context: grpc.ServicerContext,
        stage: CallStage,
    ) -> _Response:
        self._kill_switch.abort_if_killed(context)
        try:
            response = call(request, context)
            self._kill_switch.reach(stage)
        finally:  # also if the call was refused
            self._kill_switch.abort_if_killed(context)
        return response


@dataclass(slots=True)
class AgentRun:
    """One run of the agent, from its start to its end."""

    allocator: Allocator
    registrar: Registrar
    channel: PodResources
    writer: KillableQueue
    kill_switch: KillSwitch
    works: EnforcerRunner
    thread: threading.Thread | None = None

    def start(self) -> None:
        """Build the snapshot, then register with the kubelet."""
        self.allocator.refresh()
        self.works.tick()
        self.thread = threading.Thread(target=self.registrar.run, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Stop normally."""
        self.registrar.stop()
        if self.thread is not None:
            self.thread.join(_JOIN_S)
        self.works.close()
        self.channel.close()

    def kill(self) -> None:
        """Kill the agent: calls in flight are aborted, nothing more is written, sockets stay."""
        sockets = self.registrar.sockets
        self.kill_switch.kill()
        self.end()
        for path in sockets:
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as left:  # closed, but its file stays
                left.bind(str(path))

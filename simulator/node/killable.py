"""What stands between an agent and everything that hears it, so that it can be killed.

A thread cannot be killed, so the agent of a dead process goes on for a moment; but nothing
of it is heard any more: its calls fail as a connection fails whose other end has died, and
what it writes is dropped.
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
from agent.kubelet.server import DevicePluginCalls, DevicePluginService
from common.kubelet_api import deviceplugin_pb2 as pb
from contract.allocation import Allocation
from contract.resource import Resource
from placement.pods import PodInfo
from simulator.node.api import InMemoryApi

CUT = "error reading from server: EOF"
"""What a kubelet says of a plugin that dies during a call."""

_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


class AgentKilled(Exception):
    """Raised by a hook: the agent dies there and then, its answer is lost."""


@dataclass(frozen=True, slots=True)
class CallStage:
    """Where an agent is: a call is settled and assigned, its answer has not left yet.

    Attributes:
        call: ``GetPreferredAllocation``, ``Allocate`` or ``PreStartContainer``.
        ids: the devices named in it; none in a preferred call.
    """

    call: str
    resource: Resource
    ids: frozenset[str] = frozenset()


AgentHook = Callable[[CallStage], None]
"""Called at every such moment; it may raise :class:`AgentKilled`."""


def no_hook(moment: CallStage) -> None:
    """Let it go on."""


class KillSwitch:
    """Whether one run of the agent has been killed."""

    def __init__(self, hook: AgentHook) -> None:
        self._hook = hook
        self.dead = threading.Event()

    def come(self) -> None:
        """Die: what is under way from now on is not heard."""
        self.dead.set()

    def cut(self, context: grpc.ServicerContext) -> None:
        """Fail a call of a dead agent, whatever it was about to answer."""
        if self.dead.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, CUT)

    def reached(self, moment: CallStage) -> None:
        """Let the hook decide whether this is the agent's last moment."""
        try:
            self._hook(moment)
        except AgentKilled:
            self.come()


class _Muted:
    """Passes calls on to *log* until *death* has come."""

    def __init__(self, log: DecisionLog, death: KillSwitch) -> None:
        self._log = log
        self._death = death

    def __getattr__(self, name: str) -> Callable[..., None]:
        def report(*args: Any) -> None:
            if not self._death.dead.is_set():
                getattr(self._log, name)(*args)

        return report


def killable_log(log: DecisionLog, death: KillSwitch) -> DecisionLog:
    """Return a decision log into which a dead agent writes nothing."""
    return cast(DecisionLog, _Muted(log, death))


class KillableQueue:
    """A :class:`agent.allocator.interfaces.AnnotationWriter` of which a dead agent has no use.

    Args:
        waits: leave everything queued until :meth:`write`, as a queue does that has not come to it.
    """

    def __init__(self, api: InMemoryApi[Any], death: KillSwitch, *, waits: bool) -> None:
        self._api = api
        self._death = death
        self._waits = waits

    def put(self, info: PodInfo, allocations: dict[str, Allocation]) -> None:
        """Record what a pod's containers got, now or later."""
        if not self._death.dead.is_set():
            self._api.put(info, allocations)
            if not self._waits:
                self._api.write()

    def write(self) -> None:
        """Write what waits."""
        if not self._death.dead.is_set():
            self._api.write()


class KillableService(DevicePluginService):
    """One resource of the device plugin API, served by an agent that may die in any call."""

    def __init__(
        self,
        *,
        resource: Resource,
        table: DeviceTable,
        calls: DevicePluginCalls,
        death: KillSwitch,
        numa: bool = False,
    ) -> None:
        super().__init__(resource=resource, table=table, calls=calls, numa=numa)
        self._asked = resource
        self._death = death

    def GetPreferredAllocation(  # noqa: N802 - the protocol's name
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        """Settle who asks and choose its places."""
        moment = CallStage("GetPreferredAllocation", self._asked)
        return self._mortally(super().GetPreferredAllocation, request, context, moment)

    def Allocate(  # noqa: N802 - the protocol's name
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        """Translate IDs into what the container finds."""
        ids = (each for one in request.container_requests for each in one.devices_ids)
        moment = CallStage("Allocate", self._asked, frozenset(ids))
        return self._mortally(super().Allocate, request, context, moment)

    def PreStartContainer(  # noqa: N802 - the protocol's name
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        """Prove the container before it starts."""
        moment = CallStage("PreStartContainer", self._asked, frozenset(request.devices_ids))
        return self._mortally(super().PreStartContainer, request, context, moment)

    def _mortally(
        self,
        call: Callable[[_Request, grpc.ServicerContext], _Answer],
        request: _Request,
        context: grpc.ServicerContext,
        moment: CallStage,
    ) -> _Answer:
        self._death.cut(context)
        try:
            answer = call(request, context)
            self._death.reached(moment)
        finally:  # whatever it was about to answer, be it a refusal
            self._death.cut(context)
        return answer


@dataclass(slots=True)
class AgentRun:
    """One run of the agent, from its start to its end."""

    allocator: Allocator
    registrar: Registrar
    channel: PodResources
    writer: KillableQueue
    death: KillSwitch
    works: EnforcerRunner
    thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the record off the kubelet's record, then let the kubelet in."""
        self.allocator.refresh()
        self.works.tick()
        self.thread = threading.Thread(target=self.registrar.run, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Stop."""
        self.registrar.stop()
        if self.thread is not None:
            self.thread.join(5)
        self.works.close()
        self.channel.close()

    def kill(self) -> None:
        """Die: calls under way are cut, nothing more is said or written, sockets stay."""
        sockets = self.registrar.sockets
        self.death.come()
        self.end()
        for path in sockets:
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as left:  # closed, but its file stays
                left.bind(str(path))

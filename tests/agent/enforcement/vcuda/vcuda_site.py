"""A node's side of vcuda for tests: real sockets, processes and gRPC, a ``/proc`` of our own.

A process of the test is put into a container by what the fake ``/proc`` says of its cgroup.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Self, cast

import grpc

from agent.allocator.slot_holdings import key_of
from agent.enforcement.vcuda.api import vcuda_pb2 as api
from agent.enforcement.vcuda.backend import Vcuda
from agent.enforcement.vcuda.config import Hardware, VcudaConfig, decode, decode_pids
from agent.enforcement.vcuda.socket_server import ConnectionBudget
from agent.errors import Unavailable
from agent.holdings.holding import ContainerRef, Holding
from agent.runtime.cgroups import Cgroups
from agent.runtime.cri import ContainerInfo, Cri
from common.grpc_services import make_stub
from placement.pods import PodId
from tests.agent.builders import BLOCK, holding, ids
from tests.agent.fakes import DEADLINE_S

UID_A = "aaaaaaaa-0000-4000-8000-000000000001"
UID_B = "bbbbbbbb-0000-4000-8000-000000000002"
POD_A, POD_B = PodId("default", "a", UID_A), PodId("default", "b", UID_B)
ID_A, ID_B, ID_A2 = "a" * 64, "b" * 64, "c" * 64
IDS_A, IDS_B = ids("GPU-0", range(25)), ids("GPU-0", range(25, 75))
BUS = "00000000:3b:00.0"


def held(
    pod: PodId = POD_A,
    name: str = "main",
    core_ids: frozenset[str] = IDS_A,
    *,
    blocks: int | None = 4,
    core_limit: int | None = None,
) -> Holding:
    memory = None if blocks is None else {"GPU-0": blocks}
    return holding(ContainerRef(pod, name), core_ids, memory, core_limit=core_limit)


@dataclass
class FakeRuntime:
    containers: dict[str, ContainerInfo] = field(default_factory=dict)
    down: bool = False
    ended: dict[str, set[str]] = field(default_factory=dict)

    def container(self, container_id: str, *, within: float) -> ContainerInfo | None:
        self._check(within)
        return self.containers.get(container_id)

    def succeeded(self, pod_uid: str, *, within: float) -> set[str]:
        self._check(within)
        return self.ended.get(pod_uid, set())

    def _check(self, within: float) -> None:
        assert within > 0
        if self.down:
            raise Unavailable("CRI: UNAVAILABLE: /run/secret.sock does not respond")


CONFIG = VcudaConfig(UID_A, "main", "0000:3B:00.0", 4 * BLOCK, 25, driver=(535, 104))
"""The limits of :func:`entitlement`."""


def limits(folder: Path) -> VcudaConfig:
    return decode((folder / "vcuda.config").read_bytes())


def pids(folder: Path) -> tuple[int, ...]:
    return decode_pids((folder / "pids.config").read_bytes())


def listed(folder: Path, *expected: int) -> Callable[[], bool]:
    return lambda: pids(folder) == expected


@contextlib.contextmanager
def open_channel(ticket_dir: Path) -> Iterator[grpc.Channel]:
    """Connect to the socket of a container, and name it as the authority."""
    options = (
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.default_authority", "/etc/vcuda/vcuda.sock"),
    )
    folder = os.open(ticket_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with grpc.insecure_channel(
            f"unix:/proc/self/fd/{folder}/vcuda.sock", options=options
        ) as channel:
            yield channel
    finally:
        os.close(folder)


def vcuda_stub(channel: grpc.Channel) -> SimpleNamespace:
    return make_stub(channel, api.DESCRIPTOR, "VCUDAService")


@contextlib.contextmanager
def stub(ticket_dir: Path) -> Iterator[SimpleNamespace]:
    """Connect as vcuda-controller's client does."""
    with open_channel(ticket_dir) as channel:
        yield vcuda_stub(channel)


class Site:
    def __init__(self, folder: Path, state: Path | None = None) -> None:
        self.proc = folder / "proc"
        self.mount = folder / "cgroup"
        self.state = state or folder / "state"
        for each in (self.proc, self.mount):
            each.mkdir()
        (self.mount / "cgroup.controllers").touch()
        self.runtime = FakeRuntime()
        self.entitled: dict[tuple[str, str], Holding] = {}
        self.results: list[str] = []
        self.budget: ConnectionBudget | None = ConnectionBudget(
            seconds=2 * DEADLINE_S, last_seconds=0.2
        )
        self.vcuda = self.make()

    def make(self) -> Vcuda:
        return Vcuda(
            state_dir=self.state,
            processes=Cgroups(self.proc, self.mount),
            runtime=cast(Cri, self.runtime),
            entitled=lambda uid, name: self.entitled.get((uid, name)),
            hardware=Hardware(lambda _card: BUS, lambda: "535.104.05", BLOCK),
            on_result=self.results.append,
            budget=self.budget,
            refresh_seconds=0.05,
            patience=0.4,
        )

    def __enter__(self) -> Self:
        self.vcuda.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.vcuda.close()

    def restart(self, between: Callable[[], object] = lambda: None) -> None:
        self.vcuda.close()
        between()
        self.vcuda = self.make()
        self.vcuda.open()

    def run(
        self,
        container_id: str = ID_A,
        pod: PodId = POD_A,
        name: str = "main",
        *,
        pids: Sequence[int] = (),
        ended: bool = False,
    ) -> None:
        """The runtime runs a container, with these processes in it."""
        self.runtime.containers[container_id] = ContainerInfo(name, pod.uid, ended)
        self.put(container_id, pod, *pids)

    def put(self, container_id: str, pod: PodId, *pids: int) -> None:
        path = self._cgroup(container_id, pod)
        path.mkdir(parents=True, exist_ok=True)
        for pid in pids:
            (self.proc / str(pid)).mkdir(exist_ok=True)
            cgroup = path.relative_to(self.mount)
            (self.proc / str(pid) / "cgroup").write_text(f"0::/{cgroup}\n")
        (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def _cgroup(self, container_id: str, pod: PodId) -> Path:
        slices = f"kubepods.slice/kubepods-pod{pod.uid.replace('-', '_')}.slice"
        return self.mount / slices / f"cri-containerd-{container_id}.scope"

    def admit(self, given: Holding) -> Path:
        """The kubelet admits and starts a container; gives its directory on the host."""
        edits = self.vcuda.prepare_allocation(given)
        self.entitled[given.ref.pod.uid, given.ref.container] = given
        self.vcuda.prepare_start(given)
        return Path(edits.mounts[0].host)

    def directory(self, core_ids: frozenset[str]) -> Path:
        return self.state / "tickets" / key_of(core_ids) / "files"

    def register(self, ticket_dir: Path, **claims: str) -> None:
        with stub(ticket_dir) as client:
            client.RegisterVDevice(api.VDeviceRequest(**claims), timeout=DEADLINE_S)

"""Who registers, whether it may, and the files it then finds: the virtual manager.

A request is worth nothing as evidence. Who registers is told by the connection (the process,
by :mod:`agent.vcuda.relay`), the process's cgroup (the container), the container runtime (name
and pod) and the agent's ledger (what that container holds); and what it holds must be the very
ticket at whose door it came in. What the request says of itself must not contradict any of it.

vcuda-controller asks in two forms. Where it finds ``/etc/vcuda/vcuda.config`` it reads that,
registers with its pod and container name, and reads ``/etc/vcuda/pids.config``. Else it reads its
container ID out of its memory cgroup (so only with cgroups v1, and without a cgroup namespace),
registers with that, and reads both files in ``/etc/vcuda/<container ID>``.
"""

import logging
import os
import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Protocol

from agent.cgroups import CgroupError, ContainerCgroup
from agent.cri import ContainerInfo, ContainerState
from agent.entitlement import Entitlement
from agent.errors import EnforcementError, Unavailable
from agent.ticketdirs import TicketDirs, digest_of
from agent.vcuda.config import (
    CONFIG_NAME,
    MOST_PIDS,
    PIDS_NAME,
    InvalidConfig,
    VcudaConfig,
    config_of,
    decode,
    decode_pids,
    encode_pids,
    legacy_bus_id,
)
from agent.vcuda.doors import Door
from agent.vcuda.relay import Visitor

log = logging.getLogger(__name__)

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z", re.ASCII)
_LARGEST_FILE = 64 * 1024
_LOOK_AGAIN = 0.1


class Peers(Protocol):
    """Tells containers and processes of this node apart."""

    def container_of(self, pid: int, /) -> ContainerCgroup | None:
        """Give the container of a process; ``None`` when it is in none, or is gone.

        Raises:
            CgroupError: what the kernel tells of it names no one container.
            Unavailable: the kernel tells nothing.
        """
        ...

    def pids_of(self, ref: ContainerCgroup, /) -> Collection[int]:
        """Give the processes of a container, as the node numbers them; empty once it is gone.

        Raises:
            CgroupError: they are not of a PID namespace that the agent sees.
            Unavailable: the kernel tells nothing.
        """
        ...


class Runtime(Protocol):
    """The container runtime."""

    def container(self, container_id: str, *, within: float) -> ContainerInfo | None:
        """Give a container; ``None`` when there is none.

        Raises:
            Unavailable: no answer in time.
        """
        ...

    def succeeded(self, pod_uid: str, *, within: float) -> Collection[str]:
        """Name the containers of a pod that have ended well since it was last set up.

        Raises:
            Unavailable: no answer in time.
        """
        ...


class Visitors(Protocol):
    """Tells who is calling."""

    def visitor(self, peer: str) -> Visitor | None:
        """Give who is behind a connection; ``None`` when nobody is known there."""
        ...


class Forbidden(Exception):
    """This is not the container that the ticket belongs to, or it claims to be another."""


class NotYet(Exception):
    """The agent does not know yet what this container may use."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a request says of its sender; each part may be empty."""

    bus_id: str = ""
    pod_uid: str = ""
    container_name: str = ""
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the limits file says of the node.

    Attributes:
        bus_ids: PCI bus ID of each card, by UUID.
        driver: the driver's version, empty where it is not known.
        block: bytes of a memory block.
    """

    bus_ids: Callable[[str], str]
    driver: Callable[[], str]
    block: int


@dataclass(eq=False, slots=True)
class _Registered:
    """A container whose processes are kept listed.

    Attributes:
        ref: which; ``None`` for one that an earlier agent registered and that is not found yet.
        door: the ticket's.
        folders: where the list is; the empty one is the ticket's own.
        listed: what it says.
    """

    ref: ContainerCgroup | None
    door: Door
    folders: frozenset[str]
    listed: bytes = b""
    lock: threading.Lock = field(default_factory=threading.Lock)


class VirtualManager:
    """Registers containers and keeps their processes listed. Safe to share between threads."""

    def __init__(  # noqa: PLR0913 -- everything that takes part in one decision, by keyword
        self,
        *,
        dirs: TicketDirs,
        visitors: Visitors,
        peers: Peers,
        runtime: Runtime,
        entitled: Callable[[str, str], Entitlement | None],
        hardware: Hardware,
        on_result: Callable[[str], None] = lambda _result: None,
        runtime_within: float = 4.0,
        patience: float = 2.0,
    ) -> None:
        """Start with nobody registered.

        Args:
            dirs: the tickets' directories.
            visitors: tells who is calling.
            peers: tells containers and processes of this node apart.
            runtime: the container runtime.
            entitled: what a container may use, by its pod's UID and its name.
            hardware: what the limits file says of the node.
            on_result: told of every request: ``registered``, ``refused``, ``not-yet``,
                ``unavailable`` or ``failed``.
            runtime_within: seconds the runtime has to answer.
            patience: seconds to wait for the ledger of an agent that has just started: the
                real client asks once, and ends its program when it is turned away.
        """
        self._dirs = dirs
        self._visitors = visitors
        self._peers = peers
        self._runtime = runtime
        self._entitled = entitled
        self._hardware = hardware
        self._on_result = on_result
        self._within = runtime_within
        self._patience = patience
        self._lock = threading.Lock()
        self._registered: dict[str, _Registered] = {}
        self._never = threading.Event()

    # --- a container asks ------------------------------------------------------------------

    def register(self, peer: str, claims: Claims) -> None:
        """Write what the container behind a connection may use, and its processes.

        Args:
            peer: the connection, as gRPC names it.
            claims: what the request says.

        Raises:
            Forbidden: it is not the container whose ticket this is.
            NotYet: nobody knows yet what it may use.
            Unavailable: the container runtime or the kernel does not answer.
            EnforcementError: the files cannot be written.
        """
        visitor = self._visitors.visitor(peer)
        result = "failed"
        try:
            try:
                self._register(visitor, claims)
            except CgroupError as error:
                raise Forbidden(str(error)) from error
            result = "registered"
        except Forbidden as error:
            result = "refused"
            log.warning("registration refused", extra=_told(visitor, claims, error))
            raise
        except NotYet as error:
            result = "not-yet"
            log.warning("registration came too early", extra=_told(visitor, claims, error))
            raise
        except Unavailable as error:
            result = "unavailable"
            log.warning("registration not possible", extra=_told(visitor, claims, error))
            raise
        except EnforcementError as error:
            log.error("registration failed", extra=_told(visitor, claims, error))
            raise
        finally:
            self._on_result(result)

    def _register(self, visitor: Visitor | None, claims: Claims) -> None:
        if visitor is None:
            raise Forbidden("nobody is known behind this connection")
        ref = visitor.container
        if ref is None:
            raise Forbidden("its process is in no container")
        if not _CONTAINER_ID.match(ref.container_id):
            raise Forbidden(
                f"its container's ID is not 64 hexadecimal digits: {ref.container_id!r}"
            )
        _check_container_id(claims, ref.container_id)
        info = self._runtime.container(ref.container_id, within=self._within)
        if info is None:
            raise Forbidden("the container runtime does not know its container")
        if ref.pod_uid not in {None, info.pod_uid}:
            raise Forbidden(f"its cgroup is of pod {ref.pod_uid}, the runtime says {info.pod_uid}")
        if not _LABEL.match(info.name):
            raise Forbidden(f"its container's name is not a DNS label: {info.name!r}")
        entitlement = self._wait_for(info)
        self._check_ticket(visitor.door, entitlement, info)
        _check_claims(claims, info)
        self._check_bus_id(claims, entitlement)
        config = replace(self._config(entitlement), pod_uid=info.pod_uid)
        folders = {ref.container_id, claims.container_id} - {""}
        if claims.container_name:
            folders |= {"", info.name}
        self._admit(visitor, ref, config.encode(), folders)
        owner = entitlement.claim.pod
        if not owner.uid:
            owner = owner._replace(uid=info.pod_uid)
        self._dirs.adopt(visitor.door.digest, owner)
        log.info(
            "registered",
            extra={
                "pod": str(owner),
                "uid": info.pod_uid,
                "container": info.name,
                "container_id": ref.container_id,
                "ticket": visitor.door.digest,
            },
        )

    def _wait_for(self, info: ContainerInfo) -> Entitlement:
        left = self._patience
        while (entitlement := self._entitled(info.pod_uid, info.name)) is None:
            if left <= 0:
                raise NotYet("the ledger does not know what it holds")
            self._never.wait(_LOOK_AGAIN)
            left -= _LOOK_AGAIN
        return entitlement

    def _check_ticket(self, door: Door, entitlement: Entitlement, info: ContainerInfo) -> None:
        pod, name = entitlement.claim.pod, entitlement.claim.container
        if entitlement.uid not in {"", info.pod_uid} or name != info.name:
            raise Forbidden(f"the ledger has {pod} {name} in its place")
        if entitlement.core_ids:
            holds = digest_of(entitlement.core_ids) == door.digest
        else:  # which places it was handed nobody knows any more, only that they were its pod's
            holds = bool(pod.uid) and self._dirs.owner(door.digest) == pod
        if not holds:
            raise Forbidden("it does not hold this ticket")

    def _check_bus_id(self, claims: Claims, entitlement: Entitlement) -> None:
        if not claims.bus_id:
            return
        cards = entitlement.cores.cards
        known = {legacy_bus_id(self._hardware.bus_ids(card)) for card in cards}
        try:
            claimed = legacy_bus_id(claims.bus_id)
        except EnforcementError as error:
            raise Forbidden(str(error)) from error
        if claimed not in known and "" not in known:
            raise Forbidden(f"it holds no card {claimed}, but {', '.join(sorted(known))}")

    def _admit(
        self, visitor: Visitor, ref: ContainerCgroup, config: bytes, folders: set[str]
    ) -> None:
        """Write a proven container's files where it came in, and keep them fresh."""
        with self._lock:
            held = self._registered.get(ref.container_id)
            if held is None or held.door is not visitor.door:
                held = self._registered[ref.container_id] = _Registered(
                    ref, visitor.door, frozenset()
                )
            shared = folders - {ref.container_id}
            # An earlier container of the ticket (an init container, or one that was started
            # again as this) has ended: what they share is this one's from now on.
            for other in self._registered.values():
                if other is not held and other.door is visitor.door:
                    other.folders = other.folders - shared
        with held.lock:
            held.ref = ref
            held.folders = held.folders | folders
            held.listed = self._list(ref)
            if not held.listed:
                raise Forbidden("its container has ended")
            self._write(held, folders, {PIDS_NAME: held.listed, CONFIG_NAME: config})

    # --- a container is about to start ---------------------------------------------------

    def prepare(self, folder: int, entitlement: Entitlement | None) -> None:
        """Write the limits that the next container to start with a ticket finds at once.

        Args:
            folder: a descriptor of the ticket's directory.
            entitlement: what it may use. Where nobody knows, or its pod's UID is not known,
                nothing may be found: the client would believe what an earlier one was given.

        Raises:
            EnforcementError: the disk does not let us.
        """
        if entitlement is None or not entitlement.uid:
            self._dirs.discard(folder, (CONFIG_NAME, PIDS_NAME))
            return
        # The client ends its program where there is no list of processes, however short.
        config = self._config(entitlement).encode()
        self._dirs.write(folder, "", {PIDS_NAME: b"", CONFIG_NAME: config})

    # --- keeping up ------------------------------------------------------------------------

    def recover(self, door: Door) -> None:
        """Take over the containers that an earlier agent registered at a door.

        Raises:
            EnforcementError: the disk does not let us.
        """
        try:
            with door.folder() as folder:
                names = _names(folder)
                ids = [name for name in names if _CONTAINER_ID.match(name)]
                found = {each: self._recover(folder, each, door, names) for each in ids}
        except OSError as error:
            raise EnforcementError("state-dir: cannot read the limits of a container") from error
        with self._lock:
            for container_id, registered in found.items():
                self._registered.setdefault(container_id, registered)

    def _recover(
        self, folder: int, container_id: str, door: Door, names: Collection[str]
    ) -> _Registered:
        registered = _Registered(
            None, door, frozenset({container_id, f"crio-{container_id}"} & set(names))
        )
        try:
            pids = decode_pids(_read(folder, container_id, PIDS_NAME))
            config = decode(_read(folder, container_id, CONFIG_NAME))
        except (InvalidConfig, OSError):  # half of it was written: it will ask again
            return registered
        for pid in pids:
            try:
                ref = self._peers.container_of(pid)
            except (CgroupError, Unavailable):  # another process's by now, perhaps
                continue
            if ref is not None and ref.container_id == container_id:
                registered.ref = ref
                if config.container_name in names:  # it asked by its name, and lives
                    registered.folders = registered.folders | {"", config.container_name}
                break
        return registered

    def refresh(self) -> None:
        """List the processes of the registered containers anew; forget what has ended."""
        with self._lock:
            for container_id in [key for key, each in self._registered.items() if each.door.closed]:
                del self._registered[container_id]
            registered = tuple(self._registered.items())
        for container_id, each in registered:
            try:
                if not self._refresh(each) and self._ended(container_id):
                    self._forget(container_id, each)
            except (CgroupError, EnforcementError, Unavailable) as error:  # the next time, then
                log.warning(
                    "processes not listed",
                    extra={"container_id": container_id, "reason": str(error)},
                )

    def _refresh(self, registered: _Registered) -> bool:
        """List a container's processes; tell whether it has any."""
        with registered.lock:
            if registered.ref is None:
                return False
            listed = self._list(registered.ref)
            if listed and listed != registered.listed:
                self._write(registered, registered.folders, {PIDS_NAME: listed})
                registered.listed = listed
            return bool(listed)

    def _ended(self, container_id: str) -> bool:
        info = self._runtime.container(container_id, within=self._within)
        return info is None or info.state is ContainerState.EXITED

    def _forget(self, container_id: str, registered: _Registered) -> None:
        # All of it under the lock: what a container started again as this one shares with it
        # must not be removed once that one has it.
        with self._lock:
            if self._registered.get(container_id) is registered:
                del self._registered[container_id]
            own = {each or PIDS_NAME for each in registered.folders}
            try:
                with registered.door.folder() as folder:
                    self._dirs.discard(folder, own)
            except FileNotFoundError:
                pass  # the ticket has ended too

    def _list(self, ref: ContainerCgroup) -> bytes:
        pids = sorted(self._peers.pids_of(ref))
        if len(pids) > MOST_PIDS:
            log.warning(
                "a container has more processes than vcuda-controller reads",
                extra={"container_id": ref.container_id, "count": len(pids)},
            )
        return encode_pids(pids[:MOST_PIDS])

    def _write(
        self, registered: _Registered, folders: Collection[str], files: dict[str, bytes]
    ) -> None:
        try:
            with registered.door.folder() as folder:
                for each in sorted(folders):
                    self._dirs.write(folder, each, files)
        except FileNotFoundError as error:
            raise EnforcementError("this container's ticket has ended") from error

    def _config(self, entitlement: Entitlement) -> VcudaConfig:
        return config_of(
            entitlement,
            bus_id=self._hardware.bus_ids(entitlement.cores.cards[0]),
            driver_version=self._hardware.driver(),
            block=self._hardware.block,
        )


def _check_container_id(claims: Claims, container_id: str) -> None:
    """Compare the claimed ID.

    Under CRI-O with the cgroupfs driver the real client takes the prefix for a part of it, and
    then reads the directory that is named so.
    """
    if claims.container_id not in {"", container_id, f"crio-{container_id}"}:
        raise Forbidden(f"it claims to be container {claims.container_id[:80]!r}")


def _check_claims(claims: Claims, info: ContainerInfo) -> None:
    if claims.pod_uid not in {"", info.pod_uid}:
        raise Forbidden(f"it claims to be of pod {claims.pod_uid[:80]!r}")
    if claims.container_name not in {"", info.name}:
        raise Forbidden(f"it claims to be container {claims.container_name[:80]!r}")


def _told(visitor: Visitor | None, claims: Claims, error: Exception) -> dict[str, object]:
    """Say for the log who asked, what it claims (cut: it is a stranger's), and what was wrong."""
    container = visitor.container if visitor is not None else None
    return {
        "ticket": visitor.door.digest if visitor is not None else "",
        "pid": visitor.pid if visitor is not None else 0,
        "container_id": container.container_id if container is not None else "",
        "claims": {
            "pod_uid": claims.pod_uid[:80],
            "container": claims.container_name[:80],
            "container_id": claims.container_id[:80],
            "bus_id": claims.bus_id[:80],
        },
        "reason": str(error),
    }


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries)


def _read(folder: int, inside: str, name: str) -> bytes:
    inner = os.open(inside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inner)
        try:
            return os.read(file, _LARGEST_FILE)
        finally:
            os.close(file)
    finally:
        os.close(inner)

"""Registrations: identifies the container, decides whether it may register, writes its files.

Who registers is told by the connection (``socket_server``), the container runtime and the
agent's record, and what it holds must be the very devices at whose socket it came in. What of that
must agree with what is decided in :mod:`agent.enforcement.vcuda.claims`.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from agent.allocator.grants import Entitlement
from agent.enforcement.container_dirs import ContainerDirs, digest_of
from agent.enforcement.vcuda import claims as proof
from agent.enforcement.vcuda.claims import ClaimedIdentity, Forbidden, NotYet
from agent.enforcement.vcuda.config import CONFIG_NAME, PIDS_NAME, VcudaConfig, config_of
from agent.enforcement.vcuda.container_socket import ContainerSocket
from agent.enforcement.vcuda.ports import ContainerRuntime, Hardware, Processes
from agent.enforcement.vcuda.registrations import Registrations
from agent.enforcement.vcuda.socket_server import ContainerPeer
from agent.errors import EnforcementError, Unavailable
from agent.runtime.cgroups import CgroupError
from agent.runtime.cri import ContainerInfo

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.1
_RUNTIME_WITHIN = 4.0

# The result for the metric, and the log message.
_FAILURES: dict[type[Exception], tuple[str, str]] = {
    Forbidden: ("refused", "registration refused"),
    NotYet: ("not-yet", "registration came too early"),
    Unavailable: ("unavailable", "registration not possible"),
}


class VirtualManager:
    """Registers containers and keeps their processes listed. Safe to share between threads."""

    def __init__(  # noqa: PLR0913 -- everything that takes part in one decision, by keyword
        self,
        *,
        dirs: ContainerDirs,
        peer: Callable[[str], ContainerPeer | None],
        processes: Processes,
        runtime: ContainerRuntime,
        entitled: Callable[[str, str], Entitlement | None],
        hardware: Hardware,
        on_result: Callable[[str], None],
        patience: float,
    ) -> None:
        """Start with nobody registered.

        *peer* tells who is behind a connection, and *entitled* what a container may use, by its
        pod's UID and its name. *on_result* is told of every request: ``registered``, ``refused``,
        ``not-yet``, ``unavailable`` or ``failed``. The record of an agent that has just started is
        waited for, for *patience* seconds: the real client asks once, and ends its program when
        it is turned away.
        """
        self._dirs = dirs
        self._peer = peer
        self._runtime = runtime
        self._entitled = entitled
        self._hardware = hardware
        self._on_result = on_result
        self._patience = patience
        self.registrations = Registrations(dirs, processes)
        self._never = threading.Event()

    # --- a container asks ------------------------------------------------------------------

    def register(self, address: str, claims: ClaimedIdentity) -> None:
        """Write what the container behind a connection may use, and its processes.

        Raises:
            Forbidden: it is not the container that holds these devices.
            NotYet: nobody knows yet what it may use.
            Unavailable: the container runtime or the kernel does not answer.
            EnforcementError: the files cannot be written.
        """
        peer = self._peer(address)
        result = "failed"
        try:
            try:
                self._register(peer, claims)
            except CgroupError as error:
                raise Forbidden(str(error)) from error
            result = "registered"
        except (Forbidden, NotYet, Unavailable) as error:
            result, message = next(
                told for kind, told in _FAILURES.items() if isinstance(error, kind)
            )
            log.warning(message, extra=_told(peer, claims, error))
            raise
        except EnforcementError as error:
            log.error("registration failed", extra=_told(peer, claims, error))
            raise
        finally:
            self._on_result(result)

    def _register(self, peer: ContainerPeer | None, claims: ClaimedIdentity) -> None:
        if peer is None:
            raise Forbidden("nobody is known behind this connection")
        socket = peer.socket
        ref = proof.check_container(peer.container, claims)
        info = proof.check_runtime(
            ref, self._runtime.container(ref.container_id, within=_RUNTIME_WITHIN)
        )
        entitlement = self._wait_for(info)
        proof.check_record(entitlement, info)
        if digest_of(entitlement.core_ids) != socket.digest:
            raise Forbidden("it does not hold this ticket")
        bus_ids = [self._hardware.bus_ids(card) for card in entitlement.cores.cards]
        proof.check_claims(claims, info, bus_ids)
        config = replace(self._config(entitlement), pod_uid=info.pod_uid)
        folders = proof.folders_of(claims, ref, info)
        self.registrations.add(ref, socket, folders, config.encode())
        self._correct_owner(socket, entitlement, info)
        log.info(
            "registered",
            extra={
                "pod": str(entitlement.ref.pod),
                "uid": info.pod_uid,
                "container": info.name,
                "container_id": ref.container_id,
                "ticket": socket.digest,
            },
        )

    def _wait_for(self, info: ContainerInfo) -> Entitlement:
        left = self._patience
        while (entitlement := self._entitled(info.pod_uid, info.name)) is None:
            if left <= 0:
                raise NotYet("the record does not know what it holds")
            self._never.wait(_LOOK_AGAIN)
            left -= _LOOK_AGAIN
        return entitlement

    def _correct_owner(
        self, socket: ContainerSocket, entitlement: Entitlement, info: ContainerInfo
    ) -> None:
        """Make the proven pod the owner of the directory."""
        owner = entitlement.ref.pod
        if not owner.uid:
            owner = owner._replace(uid=info.pod_uid)
        with socket.folder() as folder:
            self._dirs.correct_owner(socket.digest, folder, owner)

    # --- a container is about to start ---------------------------------------------------

    def prepare(self, folder: int, entitlement: Entitlement | None) -> None:
        """Write the limits that the next container to start with these devices finds at once.

        Where nobody knows what it may use, or its pod's UID, nothing may be found in *folder*: the
        client would believe what an earlier one was given.

        Raises:
            EnforcementError: the disk does not let us.
        """
        if entitlement is None or not entitlement.uid:
            self._dirs.discard(folder, (CONFIG_NAME, PIDS_NAME))
            return
        # The library ends its program where there is no list of processes, however short.
        config = self._config(entitlement).encode()
        self._dirs.write(folder, "", {PIDS_NAME: b"", CONFIG_NAME: config})

    # --- keeping up ------------------------------------------------------------------------

    def refresh(self) -> None:
        """List the processes of the registered containers anew; forget what has ended."""
        self.registrations.refresh(self._ended)

    def _ended(self, container_id: str) -> bool:
        info = self._runtime.container(container_id, within=_RUNTIME_WITHIN)
        return info is None or info.ended

    def _config(self, entitlement: Entitlement) -> VcudaConfig:
        return config_of(
            entitlement,
            bus_id=self._hardware.bus_ids(entitlement.cores.cards[0]),
            driver_version=self._hardware.driver(),
            block=self._hardware.block,
        )


def _told(
    peer: ContainerPeer | None, claims: ClaimedIdentity, error: Exception
) -> dict[str, object]:
    """Return log fields: the peer, its claims, and the error."""
    container = peer.container if peer is not None else None
    return {
        "ticket": peer.socket.digest if peer is not None else "",
        "peer_pid": peer.pid if peer is not None else 0,
        "container_id": container.container_id if container is not None else "",
        "claims": claims.shown(),
        "reason": str(error),
    }

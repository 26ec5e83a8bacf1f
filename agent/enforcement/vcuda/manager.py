"""Registers containers: identifies the container, checks its claims, and writes its files.

A container is identified by its connection (``socket_server``), the container runtime and the
agent's snapshot, and it must hold the devices of the socket to which it connected. The checks are
in :mod:`agent.enforcement.vcuda.claims`.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from agent.enforcement.container_dirs import ContainerDirs
from agent.enforcement.vcuda import claims as proof
from agent.enforcement.vcuda.claims import ClaimedIdentity, Forbidden, NotYet
from agent.enforcement.vcuda.config import CONFIG_NAME, PIDS_NAME, Hardware, VcudaConfig, config_of
from agent.enforcement.vcuda.container_socket import ContainerSocket
from agent.enforcement.vcuda.registrations import Registrations
from agent.enforcement.vcuda.socket_server import ContainerPeer
from agent.errors import EnforcementError, Unavailable
from agent.holdings.holding import Holding
from agent.runtime.cgroups import Cgroups
from agent.runtime.cri import ContainerInfo, Cri

log = logging.getLogger(__name__)

Entitled = Callable[[str, str], Holding | None]
"""Returns the holding of a container by pod UID and name; ``None`` while it is not known."""

_RETRY_SECONDS = 0.1
_RUNTIME_WITHIN = 4.0

# The result for the metric, and the log message.
_FAILURES: dict[type[Exception], tuple[str, str]] = {
    Forbidden: ("refused", "registration refused"),
    NotYet: ("not-yet", "registration came too early"),
    Unavailable: ("unavailable", "registration not possible"),
}


class VirtualManager:
    """Registers containers and keeps their processes listed. Safe to share between threads."""

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        dirs: ContainerDirs,
        peer: Callable[[str], ContainerPeer | None],
        processes: Cgroups,
        runtime: Cri,
        entitled: Entitled,
        hardware: Hardware,
        on_result: Callable[[str], None],
        patience: float,
    ) -> None:
        """Start without registrations.

        *peer* returns the peer of a connection. *on_result* is called with the result of every
        request: ``registered``, ``refused``, ``not-yet``, ``unavailable`` or ``failed``. A request
        waits *patience* seconds for the snapshot of an agent that has just started: the real client
        tries only once, and ends its program if it is refused.
        """
        self._dirs = dirs
        self._peer = peer
        self._runtime = runtime
        self._entitled = entitled
        self._hardware = hardware
        self._on_result = on_result
        self._patience = patience
        self.registrations = Registrations(dirs, processes)
        self._sleep_event = threading.Event()

    # --- registration ----------------------------------------------------------------------

    def register(self, address: str, claims: ClaimedIdentity) -> None:
        """Write the limits and the processes of the container behind a connection.

        Raises:
            Forbidden: it is not the container that holds these devices.
            NotYet: its entitlement is not known yet.
            Unavailable: the container runtime or the kernel does not respond.
            EnforcementError: the files cannot be written.
        """
        peer = self._peer(address)
        result = "failed"
        try:
            self._register(peer, claims)
            result = "registered"
        except (Forbidden, NotYet, Unavailable) as error:
            result, message = next(
                failure for kind, failure in _FAILURES.items() if isinstance(error, kind)
            )
            log.warning(message, extra=_log_fields(peer, claims, error))
            raise
        except EnforcementError as error:
            log.error("registration failed", extra=_log_fields(peer, claims, error))
            raise
        finally:
            self._on_result(result)

    def _register(self, peer: ContainerPeer | None, claims: ClaimedIdentity) -> None:
        if peer is None:
            raise Forbidden("the peer of this connection is not known")
        socket = peer.socket
        ref = proof.check_container(peer.container, claims)
        info = proof.check_runtime(
            ref, self._runtime.container(ref.container_id, within=_RUNTIME_WITHIN)
        )
        holding = self._wait_for(info)
        proof.check_holding(holding, info)
        if holding.key != socket.digest:
            raise Forbidden("it does not hold the cores of this directory")
        bus_ids = [self._hardware.bus_ids(card) for card in holding.cards]
        proof.check_claims(claims, info, bus_ids)
        config = replace(self._config(holding), pod_uid=info.pod_uid)
        folders = proof.folders_of(claims, ref, info)
        self.registrations.add(ref, socket, folders, config.encode())
        self._correct_owner(socket, holding, info)
        log.info(
            "registered",
            extra={
                "pod": str(holding.ref.pod),
                "uid": info.pod_uid,
                "container": info.name,
                "container_id": ref.container_id,
                "directory": socket.digest,
            },
        )

    def _wait_for(self, info: ContainerInfo) -> Holding:
        left = self._patience
        while (holding := self._entitled(info.pod_uid, info.name)) is None:
            if left <= 0:
                raise NotYet("its entitlement is not known yet")
            self._sleep_event.wait(_RETRY_SECONDS)
            left -= _RETRY_SECONDS
        return holding

    def _correct_owner(
        self, socket: ContainerSocket, holding: Holding, info: ContainerInfo
    ) -> None:
        """Make the proven pod the owner of the directory."""
        owner = holding.ref.pod
        if not owner.uid:
            owner = owner._replace(uid=info.pod_uid)
        with socket.folder() as folder:
            self._dirs.correct_owner(socket.digest, folder, owner)

    # --- start of a container ------------------------------------------------------------

    def prepare(self, folder: int, holding: Holding) -> None:
        """Write the limits for the next container that starts with these devices.

        If the container's pod or its UID is not known, remove the files in *folder*: the client
        would take the limits of an earlier container for its own.

        Raises:
            EnforcementError: the disk returns an error.
        """
        if not holding.uid:
            self._dirs.discard(folder, (CONFIG_NAME, PIDS_NAME))
            return
        # The library ends its program if the list of processes is missing; it may be empty.
        config = self._config(holding).encode()
        self._dirs.write(folder, "", {PIDS_NAME: b"", CONFIG_NAME: config})

    # --- updates ---------------------------------------------------------------------------

    def refresh(self) -> None:
        """Update the process lists of registered containers; remove ended containers."""
        self.registrations.refresh(self._ended)

    def _ended(self, container_id: str) -> bool:
        info = self._runtime.container(container_id, within=_RUNTIME_WITHIN)
        return info is None or info.ended

    def _config(self, holding: Holding) -> VcudaConfig:
        return config_of(
            holding,
            bus_id=self._hardware.bus_ids(next(iter(holding.cards))),
            driver_version=self._hardware.driver(),
            block=self._hardware.block,
        )


def _log_fields(
    peer: ContainerPeer | None, claims: ClaimedIdentity, error: Exception
) -> dict[str, object]:
    """Return log fields: the peer, its claims, and the error."""
    container = peer.container if peer is not None else None
    return {
        "directory": peer.socket.digest if peer is not None else "",
        "peer_pid": peer.pid if peer is not None else 0,
        "container_id": container.container_id if container is not None else "",
        "claims": claims.log_fields(),
        "reason": str(error),
    }

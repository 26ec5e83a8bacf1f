"""Enforcement by Tencent's vcuda-controller: a directory for each container at ``/etc/vcuda``.

The directory is named when a container's cores are allocated, filled when the container
that starts is proven, and completed when that container registers at the socket in it.

It is named with all core places, of whole cards too: a container that finds vcuda-controller's
libraries in its driver directory cannot do without the file that says there is no limit.
"""

import contextlib
import logging
import os
import resource
import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from agent.allocator.grants import (
    ContainerEdits,
    Entitlement,
    Grant,
    Mount,
)
from agent.allocator.interfaces import ContainerRef
from agent.enforcement.container_dirs import ContainerDirs, digest_of
from agent.enforcement.vcuda.config import MOUNT_PATH
from agent.enforcement.vcuda.manager import VirtualManager
from agent.enforcement.vcuda.ports import ContainerRuntime, Hardware, Processes
from agent.enforcement.vcuda.server import VcudaServer
from agent.enforcement.vcuda.socket_server import ConnectionBudget, ContainerSocketServer
from agent.errors import EnforcementError, Unavailable
from agent.host.stale_sockets import remove_dead
from contract.resource import Resource
from placement.pods import PodId

log = logging.getLogger(__name__)

_JOIN_SECONDS = 3.0
_RUNTIME_WITHIN = 2.0


Entitled = Callable[[str, str], Entitlement | None]
"""What a container may use, by its pod's UID and its name; ``None`` while nobody knows."""


class Vcuda:
    """Implements :class:`agent.allocator.outcomes.Enforcer`."""

    def __init__(  # noqa: PLR0913 -- what the virtual manager needs of the node, by keyword
        self,
        *,
        state_dir: Path,
        processes: Processes,
        runtime: ContainerRuntime,
        entitled: Entitled,
        hardware: Hardware,
        on_result: Callable[[str], None] = lambda _result: None,
        budget: ConnectionBudget | None = None,
        refresh_seconds: float = 10.0,
        patience: float = 2.0,
    ) -> None:
        """Put the parts together; nothing is made and nothing runs yet.

        The host must have *state_dir* at the same path. The processes of registered containers
        are listed anew every *refresh_seconds*. The rest is as in :class:`VirtualManager`.
        """
        self._runtime = runtime
        self._dirs = ContainerDirs(state_dir / "tickets")
        # Every agent has its own: gRPC unlinks a path when its server stops, whoever listens there.
        self._upstream = state_dir / "vcuda" / f"server-{secrets.token_hex(4)}.sock"
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._budget = budget or ConnectionBudget.affordable(files)
        self._sockets = ContainerSocketServer(
            upstream=self._upstream, identify=processes.container_of, budget=self._budget
        )
        self._manager = VirtualManager(
            dirs=self._dirs,
            peer=self._sockets.peer,
            processes=processes,
            runtime=runtime,
            entitled=entitled,
            hardware=hardware,
            on_result=on_result,
            patience=patience,
        )
        self._refresh_seconds = refresh_seconds
        self._server: VcudaServer | None = None
        self._stop = threading.Event()
        self._lists = threading.Thread(target=self._keep_listed, name="vcuda-pids", daemon=True)
        # A directory and its socket change together.
        self._lock = threading.Lock()

    # --- running -------------------------------------------------------------------------

    def open(self) -> None:
        """Clean up after an agent that was killed, listen at every container's socket, and serve.

        Raises:
            EnforcementError: the state directory cannot be used.
        """
        with self._lock:
            self._dirs.clean()
            remove_dead(self._upstream.parent, ["server*.sock"])
            found = self._dirs.all()
            try:  # last of what may fail: it is opened again then, and there may be one server
                self._server = VcudaServer(
                    self._manager.register, self._upstream, threads=self._budget.overall
                )
            except OSError as error:
                raise EnforcementError(f"state-dir: cannot listen there: {error}") from error
            self._sockets.start()
            for each in found:
                try:
                    self._listen(each.digest)
                except EnforcementError as error:  # it is tried again when its container starts
                    log.error("not listening", extra={"ticket": each.digest, "reason": str(error)})
        for at in self._sockets.sockets():
            try:
                self._manager.registrations.recover(at)
            except EnforcementError as error:  # its containers register again when they restart
                log.error("not recovered", extra={"ticket": at.digest, "reason": str(error)})
        self._lists.start()

    @property
    def alive(self) -> bool:
        """Whether what ``open`` started still runs."""
        return self._sockets.alive and self._lists.is_alive()

    def close(self) -> None:
        """Stop serving; the directories stay, for containers outlive the agent."""
        self._stop.set()
        self._sockets.stop()
        if self._server is not None:
            self._server.stop()
        if self._lists.is_alive():
            self._lists.join(_JOIN_SECONDS)

    def _keep_listed(self) -> None:
        while not self._stop.wait(self._refresh_seconds):
            self._manager.refresh()

    # --- the Enforcer ----------------------------------------------------------------------

    def prepare_allocation(
        self, ref: ContainerRef, ids: frozenset[str], grant: Grant
    ) -> ContainerEdits:
        """ContainerEdits with the directory of core places; memory places carry nothing."""
        if grant.resource is not Resource.CORE:
            return ContainerEdits()
        with self._lock:
            made = self._dirs.make(ids, ref.pod)
        return ContainerEdits(mounts=(Mount(MOUNT_PATH, str(made.files)),))

    def prepare_start(self, ids: frozenset[str], entitlement: Entitlement | None) -> None:
        """Fill the directory of core places for the container that starts."""
        with self._lock:
            if entitlement is not None:
                self._dirs.ensure(ids, entitlement.ref.pod)
            elif self._dirs.find(ids) is None:
                raise EnforcementError(
                    "state-dir: the directory of this container's limits is gone, and it is not "
                    "known yet whose it is: it is tried again"
                )
            self._listen(digest_of(ids), lambda folder: self._manager.prepare(folder, entitlement))

    def identify_starting(self, candidates: Sequence[Entitlement]) -> Entitlement:
        """Take the first that has not yet ended well, by the container runtime's word.

        Where that cannot be had, the last: it is the one that stays.
        """
        uid = candidates[0].uid
        try:
            ended = self._runtime.succeeded(uid, within=_RUNTIME_WITHIN) if uid else frozenset()
        except Unavailable as error:
            log.warning("who starts is guessed", extra={"uid": uid, "reason": str(error)})
            return candidates[-1]
        left = [each for each in candidates if each.ref.container not in ended]
        return left[0] if left else candidates[-1]

    def prune(self, pods: Collection[PodId]) -> None:
        """Remove the directories of other pods than these; what cannot be is left for later."""
        with self._lock:
            try:
                kept = {each.digest for each in self._dirs.prune(pods)}
            except EnforcementError as error:
                log.warning("directories stay", extra={"reason": str(error)})
                return
            for each in self._sockets.sockets():
                if each.digest not in kept:
                    self._sockets.close(each.digest)

    def _listen(self, digest: str, first: Callable[[int], None] = lambda _folder: None) -> None:
        """Listen at a container's socket, after *first* in its directory; the lock is held."""
        with contextlib.ExitStack() as held:
            folder = self._dirs.open(digest)
            held.callback(os.close, folder)
            first(folder)
            held.pop_all()  # the descriptor is the server's from here on
        try:
            self._sockets.open(digest, folder)
        except OSError as error:
            raise EnforcementError(
                f"state-dir: cannot listen for this container: {error.strerror or 'no answer'}"
            ) from error

"""The enforcer for vcuda-controller: a directory for each container, mounted at ``/etc/vcuda``.

The directory is made when a container's cores are allocated, filled before its start (by a claim:
once, when the claim is prepared), and completed when the container registers at the socket in it.

Containers with whole cards get one, too: their driver directory has vcuda-controller's libraries,
which need the file that sets no limit.
"""

import contextlib
import logging
import os
import resource
import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from agent.enforcement.container_dirs import ContainerDirs
from agent.enforcement.vcuda.config import MOUNT_PATH, Hardware
from agent.enforcement.vcuda.manager import Entitled, VirtualManager
from agent.enforcement.vcuda.server import VcudaServer
from agent.enforcement.vcuda.socket_server import ConnectionBudget, ContainerSocketServer
from agent.errors import EnforcementError, Unavailable
from agent.holdings.edits import ContainerEdits, Mount
from agent.holdings.holding import UNKNOWN, Holding
from agent.host.stale_sockets import remove_dead
from agent.runtime.cgroups import Cgroups
from agent.runtime.cri import Cri
from placement.pods import PodId

log = logging.getLogger(__name__)

_JOIN_SECONDS = 3.0
_RUNTIME_WITHIN = 2.0


class Vcuda:
    """Implements :class:`agent.holdings.interfaces.Enforcer`."""

    limits = True

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        state_dir: Path,
        processes: Cgroups,
        runtime: Cri,
        entitled: Entitled,
        hardware: Hardware,
        on_result: Callable[[str], None] = lambda _result: None,
        budget: ConnectionBudget | None = None,
        refresh_seconds: float = 10.0,
        patience: float = 2.0,
    ) -> None:
        """Create the parts; no file is made and nothing runs yet.

        The host must have *state_dir* at the same path. The lists of registered containers'
        processes are updated every *refresh_seconds*. The rest is as in :class:`VirtualManager`.
        """
        self._runtime = runtime
        self._dirs = ContainerDirs(state_dir / "tickets")
        # A new name for each agent: a stopping gRPC server unlinks its path, even if another
        # server listens there.
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
        # Held while a directory and its socket change.
        self._lock = threading.Lock()

    # --- running -------------------------------------------------------------------------

    def open(self) -> None:
        """Clean up after a killed agent, listen at every container's socket, and serve.

        Raises:
            EnforcementError: the state directory cannot be used.
        """
        with self._lock:
            self._dirs.clean()
            remove_dead(self._upstream.parent, ["server*.sock"])
            found = self._dirs.all()
            try:  # after the other steps that may fail: ``open`` is retried, with a single server
                self._server = VcudaServer(
                    self._manager.register, self._upstream, threads=self._budget.overall
                )
            except OSError as error:
                raise EnforcementError(f"state-dir: cannot listen there: {error}") from error
            self._sockets.start()
            for each in found:
                try:
                    self._listen(each.digest)
                except EnforcementError as error:  # retried when its container starts
                    log.error(
                        "cannot listen for a container",
                        extra={"directory": each.digest, "reason": str(error)},
                    )
        for at in self._sockets.sockets():
            try:
                self._manager.registrations.recover(at)
            except EnforcementError as error:  # the containers register again if they restart
                log.error(
                    "registrations not recovered",
                    extra={"directory": at.digest, "reason": str(error)},
                )
        self._lists.start()

    @property
    def alive(self) -> bool:
        """Whether the threads that ``open`` started still run."""
        return self._sockets.alive and self._lists.is_alive()

    def close(self) -> None:
        """Stop serving; the directories stay, since containers outlive the agent."""
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

    def prepare_allocation(self, holding: Holding) -> ContainerEdits:
        """Return the mount of the directory for a container with cores; no edits for memory."""
        if not holding.cores_per_card:
            return ContainerEdits()
        with self._lock:
            made = self._dirs.make(holding.key, holding.ref.pod)
        return ContainerEdits(mounts=(Mount(MOUNT_PATH, str(made.files)),))

    def prepare_start(self, holding: Holding) -> None:
        """Fill the directory of a holding for the container that starts."""
        with self._lock:
            if holding.ref != UNKNOWN:
                self._dirs.ensure(holding.key, holding.ref.pod)
            elif self._dirs.find(holding.key) is None:
                raise EnforcementError(
                    "state-dir: the directory of this container's limits is missing, and its owner "
                    "is not known yet: the start will be retried"
                )
            self._listen(holding.key, lambda folder: self._manager.prepare(folder, holding))

    def identify_starting(self, candidates: Sequence[Holding]) -> Holding:
        """Return the first candidate that has not ended successfully in the container runtime.

        If the runtime is unavailable, return the last candidate: it runs longest.
        """
        uid = candidates[0].uid
        try:
            ended = self._runtime.succeeded(uid, within=_RUNTIME_WITHIN) if uid else frozenset()
        except Unavailable as error:
            log.warning("starting container guessed", extra={"uid": uid, "reason": str(error)})
            return candidates[-1]
        left = [each for each in candidates if each.ref.container not in ended]
        return left[0] if left else candidates[-1]

    def prune(self, pods: Collection[PodId]) -> None:
        """Remove all directories except those of *pods*; failures are retried at the next call."""
        with self._lock:
            try:
                kept = {each.digest for each in self._dirs.prune(pods)}
            except EnforcementError as error:
                log.warning("container directories not removed", extra={"reason": str(error)})
                return
            for each in self._sockets.sockets():
                if each.digest not in kept:
                    self._sockets.close(each.digest)

    def _listen(self, digest: str, first: Callable[[int], None] = lambda _folder: None) -> None:
        """Call *first* with a container's directory, then listen there; the lock is held."""
        with contextlib.ExitStack() as held:
            folder = self._dirs.open(digest)
            held.callback(os.close, folder)
            first(folder)
            held.pop_all()  # from here on the server closes the descriptor
        try:
            self._sockets.open(digest, folder)
        except OSError as error:
            raise EnforcementError(
                f"state-dir: cannot listen for this container: {error.strerror or error}"
            ) from error

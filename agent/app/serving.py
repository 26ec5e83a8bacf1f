"""What only the agent that serves does: answers, registers and writes; and how it changes hands.

An agent that stands by has made all of this and started none of it.
"""

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.allocator.allocator import Allocator
from agent.allocator.model.ledger_copy import Knowledge
from agent.app.container_setup import Upkeep
from agent.errors import HandoverError
from agent.handover.connections import HeldConnections, accepted_on, stop_reading
from agent.host import memory, process
from agent.kubelet.call_gate import CallGate
from agent.kubelet.registration import Registrar
from agent.kubernetes_api.annotation_writer import PatchQueue

log = logging.getLogger(__name__)

# How long a running pod waits at most for the annotation that an agent killed in between owes it.
_REFRESH_SECONDS = 5.0
# How long the node shows what an ended pod held as taken, at most.
_RELEASE_SECONDS = 0.5
# What enforcement made for pods that are gone is removed each so many times.
_SWEEP_EVERY = 12
# How long the kubelet's calls are kept waiting for the API server: what List shows is enough
# to answer them, the pods' specs only make it better. PreStartContainer may take 30 s (fact
# K10), the others as long as they like.
_SYNC_SECONDS = 10.0
_SETTLE_SECONDS = 10.0
_WRITE_SECONDS = 3.0
_SERVED_SECONDS = 2.0
_REGISTERED_LOOK_SECONDS = 0.25


class Serving:
    """Serves one node. Implements both sides of a handover: ``Giving`` and ``Taking``."""

    def __init__(  # noqa: PLR0913 -- all that changes hands, by keyword
        self,
        *,
        allocator: Allocator,
        gate: CallGate,
        registrar: Registrar,
        writer: PatchQueue,
        upkeep: Upkeep,
        synced: threading.Event,
        stop: threading.Event,
        spawn: Callable[[str, Callable[[], None]], None],
        on_loaded: Callable[[], None] = lambda: None,
        on_released: Callable[[], None] = lambda: None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            allocator: decides.
            gate: before the allocator; closed, it is opened when the ledger is loaded.
            registrar: serves and registers with the kubelet.
            writer: writes allocations to pods.
            upkeep: of what enforcement needs.
            synced: whether the node's pods are known.
            stop: set when the agent ends.
            spawn: starts a thread of the agent.
            on_loaded: told once calls are answered.
            on_released: told when what an ended pod held has become free.
            on_tick: called every few seconds while this agent serves.
        """
        self._allocator = allocator
        self._gate = gate
        self._registrar = registrar
        self._writer = writer
        self._upkeep = upkeep
        self._synced = synced
        self._stop = stop
        self._spawn = spawn
        self._held = HeldConnections(on_broken=registrar.renew)
        self._on_loaded = on_loaded
        self._on_released = on_released
        self._on_tick = on_tick
        self._loaded = threading.Event()
        self._made_at = time.monotonic()
        self._begun = False
        self._paused = False
        self._unread: list[int] = []
        self._changing = threading.Lock()  # what is kept up is not kept up while paused

    @property
    def begun(self) -> bool:
        """Whether this agent serves, and writes."""
        return self._begun

    @property
    def loaded(self) -> bool:
        """Whether the ledger is what the kubelet's record says, so that calls are answered."""
        return self._loaded.is_set()

    @property
    def warm(self) -> bool:
        """Whether this agent could answer calls at once: its node's pods are known."""
        return self._synced.is_set() or time.monotonic() > self._made_at + _SYNC_SECONDS

    @property
    def paused(self) -> bool:
        """Whether it is handing over: from then on its successor writes."""
        return self._paused

    def warm_up(self) -> None:
        """Do once what takes longer the first time."""
        self._registrar.warm_up()

    def begin(self, *, since: float | None) -> None:
        """Serve, register and write from now on; does nothing the second time.

        Args:
            since: when the kubelet lost the agent before, by the monotonic clock; ``None``
                where there was none in this agent's time.
        """
        if not self._begun:
            self._registrar.missing(time.monotonic() - process.age() if since is None else since)
            self._begin(Knowledge())

    def _begin(self, known: Knowledge) -> None:
        if self._begun:
            return
        self._begun = True
        self._spawn("outbox", self._writer.run)
        self._spawn("refresher", lambda: self._keep_up(known))
        self._spawn("registrar", lambda: self._registrar.run(self._stop))

    def _keep_up(self, known: Knowledge) -> None:
        """Load the ledger, let calls be answered, then keep it true."""
        self._wait_synced()
        try:
            self._allocator.rebuild(inheriting=True)
            self.note(known)
            self._upkeep.tick()
        finally:  # whatever became of it: the kubelet's calls have no deadline of their own
            self._loaded.set()
            self._gate.open()
        self._on_loaded()
        memory.freeze()
        self._refresh()

    def _wait_synced(self) -> None:
        self._synced.wait(max(self._made_at + _SYNC_SECONDS - time.monotonic(), 0))

    def _refresh(self) -> None:
        """Look after pods that wait for their annotation or have ended, though no call comes."""
        pause = min(_RELEASE_SECONDS, _REFRESH_SECONDS)
        often = max(round(_REFRESH_SECONDS / pause), 1)
        for tick in itertools.count(1):
            if self._stop.wait(pause):
                return
            with self._changing:
                if self._paused:
                    continue
                if self._allocator.refresh(unpublished=tick % often == 0):
                    self._on_released()
                if tick % often == 0:
                    self._upkeep.tick()
                    self._on_tick()
                if tick % (often * _SWEEP_EVERY) == 0 and self._synced.is_set():
                    self._allocator.sweep()

    # --- taking over ---------------------------------------------------------------------

    def take(self, known: Knowledge) -> None:
        """Serve from now on, knowing what the predecessor knew.

        Return once registered, and able to answer.
        """
        self._registrar.missing(None)
        self._registrar.follow(known.kubelet)
        self._begin(known)
        while not self._registrar.wait_registered(_REGISTERED_LOOK_SECONDS):
            if self._stop.is_set():
                return
        self._loaded.wait(_SYNC_SECONDS)

    def note(self, known: Knowledge) -> None:
        """Learn what the predecessor knows, and has answered meanwhile."""
        if self._registrar.kubelet not in (None, known.kubelet):
            known = known.for_another_kubelet()
        self._allocator.inherit(known)

    def hold(self, connections: Sequence[int]) -> None:
        """Keep the kubelet's connections open."""
        self._held.hold(connections)

    # --- handing over --------------------------------------------------------------------

    def pause(self) -> None:
        """Begin no call, write nothing to node or disk, and leave registering to another.

        Raises:
            HandoverError: a call does not end.
        """
        self._registrar.suspend()
        with self._changing:
            self._paused = True
        if not self._gate.close(_SETTLE_SECONDS):
            self.resume()
            raise HandoverError(f"a call did not end within {_SETTLE_SECONDS:g} s")
        self._upkeep.pause()

    def knowledge(self) -> Knowledge:
        """Return what the kubelet's record does not tell."""
        return replace(self._allocator.knowledge(), kubelet=self._registrar.kubelet)

    def go_on(self, after: Callable[[], None]) -> None:
        """Answer calls again, *after* being called before each answer."""
        self._gate.open(after)

    def resume(self) -> None:
        """Take everything back: the successor has died."""
        with self._changing:
            self._paused = False
        self._upkeep.resume()
        self._gate.open()
        # gRPC reads these no more: a call that the kubelet still makes on one must not wait.
        self._held.hold(map(os.dup, self._unread))
        self._unread = []
        self._registrar.resume()

    def idle(self) -> float:
        """Return the seconds since the last call."""
        return self._gate.idle()

    def finish(self) -> None:
        """Write what is unwritten, and serve the containers that have connected.

        What cannot be written now is made again by the successor.
        """
        if not self._writer.wait_empty(_WRITE_SECONDS):
            log.warning("allocations left to the successor")
        self._upkeep.settle(_SERVED_SECONDS)

    def connections(self) -> Sequence[int]:
        """Return the kubelet's connections, read no more from here on."""
        self._unread = accepted_on(self._registrar.sockets)
        stop_reading(self._unread)
        self._gate.settle(_SETTLE_SECONDS)
        return [*self._unread, *self._held.descriptors]

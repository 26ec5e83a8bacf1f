"""The enforcer for MPS: variables and mounts of containers, and what daemons must allow them.

CUDA itself reads these variables (NVIDIA's documentation of MPS, "Environment Variables"):

``CUDA_MPS_PIPE_DIRECTORY``
    the folder of the control daemon's sockets. It is mounted where CUDA looks for it by default, so
    that a program without the variable is a client, too.
``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``
    percent of the SMs of each card that one process may use: its cores, or ``vcuda-core-limit``,
    of which 100 limits memory only.
``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``
    ``<ordinal>=<MiB>M`` for each card: what one process may allocate (from CUDA 11.5 on).
``CUDA_DEVICE_ORDER=PCI_BUS_ID``
    with several cards: programs number them as the limits do.

They limit each process. With ``gpu-processes: "2"`` both limits are halved. A client can lower its
limits, but not exceed those of the daemon, which are the largest share's.

A device plugin returns them in two responses: memory's has only its own variable, which has no
effect without a daemon. They cannot be corrected later: if the container was guessed, the start is
vetoed if it got more than its own pod may have. Before each start the agent waits until the daemon
allows the share; a program that finds no daemon would run without limits. Whole cards get nothing,
and start once no daemon is left on them.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from agent.cards.pci import sort_by_address
from agent.enforcement.container_dirs import may_be
from agent.enforcement.mps.files import DaemonStatus, MpsFolder, Share, Status
from agent.errors import EnforcementError
from agent.holdings.edits import ContainerEdits, Mount
from agent.holdings.holding import UNKNOWN, ContainerRef, Holding
from contract.demand import CORES_PER_CARD
from contract.inventory import Card, is_instance_uuid
from placement.pods import PodId

log = logging.getLogger(__name__)

PIPES = "/tmp/nvidia-mps"  # noqa: S108 -- CUDA's default
SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- the daemon's, which its clients need

_MIB = 1 << 20
_POLL_SECONDS = 0.05
_NOT_RUNNING = (
    "mps-dir: the program that runs the MPS daemons does not run on this node: its admin must look "
    "at the DaemonSet gpu-turnstile-mps"
)


class Limited(NamedTuple):
    """A container whose limits MPS keeps, for metrics.

    Attributes:
        share: what each of its processes may use.
        clients: its connected processes; ``None`` if they are not known.
    """

    share: Share
    clients: int | None


class Mps:
    """Implements :class:`agent.holdings.interfaces.Enforcer`. Safe to share between threads."""

    limits = True

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        root: Path,
        *,
        block: int,
        cards: Collection[Card],
        on_lost: Callable[[ContainerRef, str], None] = lambda _ref, _why: None,
        container_name: Callable[[str, str], str] = lambda _uid, _id: "",
        patience: float = 10.0,
    ) -> None:
        """Prepare; nothing is made yet.

        *root* has the same path on the host. *block* is in bytes, whole MiB. *on_lost* is called
        for each container whose daemon has ended, with the reason. *container_name* returns the
        name of a container by its pod's UID and its own ID, empty if it is not known. A start waits
        *patience* seconds for its daemon.
        """
        self._folder = MpsFolder(root)
        self._block = block // _MIB
        self._bus_ids = {card.uuid: card.bus_id for card in cards}
        self._blocks = {card.uuid: card.memory // block for card in cards}
        self._on_lost = on_lost
        self._container_name = container_name
        self._patience = patience
        self._lock = threading.Lock()  # held while the files of shares change

    def open(self) -> None:
        """Check that the daemons are run, as :meth:`tick`."""
        self.tick()

    def prepare_allocation(self, holding: Holding) -> ContainerEdits:
        """Return the variables of a share: of cores with the daemon's folders, of memory, or both.

        Raises:
            EnforcementError: MPS cannot limit one of its cards, or the folders cannot be made.
        """
        share = self._share_of(holding)
        envs, mounts = dict[str, str](), tuple[Mount, ...]()
        if holding.cores_per_card:
            self._forget_others(holding)
        if holding.is_whole or self._may_be_whole(holding):
            return ContainerEdits()
        for card in share.cards:
            if is_instance_uuid(card):
                raise EnforcementError(f"enforcement: MPS does not limit MIG instances: {card}")
        if holding.cores_per_card:
            with self._lock:
                self._folder.make_set(share.set)
                self._folder.write_share(holding.key, share)
            envs["CUDA_MPS_PIPE_DIRECTORY"] = PIPES
            envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(share.percent)
            pipes, shm = self._folder.part(share.set, "pipe"), self._folder.shm
            mounts = (
                Mount(PIPES, str(pipes), read_only=False),
                Mount(SHARED_MEMORY, str(shm), read_only=False),
            )
        if share.memory:
            limits = (f"{ordinal}={mib}M" for ordinal, mib in enumerate(share.memory))
            envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
        if len(share.cards) > 1:
            envs["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return ContainerEdits(envs, mounts=mounts)

    def prepare_start(self, holding: Holding) -> None:
        """Wait until the daemon allows the share, or for whole cards until they have no daemon.

        Raises:
            EnforcementError: it does not in time, or the container's variables are another pod's.
        """
        self._forget_others(holding)
        if holding.is_whole:
            self._wait(lambda status: _left_on(holding.cards, status))
            return
        share = self._share_of(holding)
        with self._lock:
            given = self._folder.read_shares().get(holding.key)
            if holding.ref == UNKNOWN:
                if given is None:
                    raise EnforcementError(
                        "mps-dir: the limits of this container are missing, and its owner is not "
                        "known yet: the start will be retried"
                    )
                share = given
            elif given is not None:
                _check_variables(given, share)
            self._folder.make_set(share.set)
            self._folder.write_share(holding.key, share)
        found = self._wait(lambda status: _missing_for(holding.key, share, status)).get(share.set)
        if found is not None:
            self._update(holding.key, share, daemon=found.instance)

    def identify_starting(self, candidates: Sequence[Holding]) -> Holding:
        """Return the one with most memory: the daemon must allow each of them."""
        return max(candidates, key=lambda each: sum(each.memory_limits.values()))

    def prune(self, pods: Collection[PodId]) -> None:
        """Remove the shares of all pods except *pods*; failures are retried at the next call."""
        try:
            with self._lock:
                for key, share in self._folder.read_shares().items():
                    if not any(may_be(share.ref.pod, pod) for pod in pods):
                        self._folder.write_share(key, None)
        except EnforcementError as error:
            log.warning("limits of ended containers not removed", extra={"reason": str(error)})

    # --- from time to time ---------------------------------------------------------------

    def tick(self) -> None:
        """Report the containers whose daemon has ended since they started.

        Raises:
            EnforcementError: the program that runs the daemons does not run.
        """
        status = self._folder.read_status()
        if status is None:
            raise EnforcementError(_NOT_RUNNING)
        for key, share in self._folder.read_shares().items():
            now = status.get(share.set) or DaemonStatus(share.cards)
            if share.daemon and now.instance != share.daemon:
                what = f"the MPS daemon of {', '.join(share.cards)} has ended"
                why = f"{what} ({now.ended or 'its program was restarted'})"
                log.warning("MPS daemon has ended", extra={"pod": str(share.ref), "reason": why})
                self._on_lost(share.ref, why)
            if now.instance != share.daemon:
                self._update(key, share, daemon=now.instance)

    def limited(self) -> list[Limited]:
        """Return what MPS limits now."""
        status = self._folder.read_status()
        shares = list(self._folder.read_shares().values())
        containers = [(each.set, each.ref.pod) for each in shares]
        found = []
        for each in shares:
            daemon, uid, clients = (status or {}).get(each.set), each.ref.pod.uid, None
            if daemon is not None and uid:
                of_pod = [one.container_id for one in daemon.clients if one.pod_uid == uid]
                # The kernel shows the pod of a process, and its container by ID.
                names = [self._container_name(uid, one) for one in of_pod]
                if containers.count((each.set, each.ref.pod)) == 1:
                    clients = len(of_pod)
                elif "" not in names:
                    clients = names.count(each.ref.container)
            found.append(Limited(each, clients))
        return found

    def problems(self) -> Mapping[str, str]:
        """Return why each card with shares is not served, empty if it is."""
        status, found = self._folder.read_status(), dict[str, str]()
        for key, share in self._folder.read_shares().items():
            for card in share.cards:
                problem = _NOT_RUNNING if status is None else _missing_for(key, share, status)
                found[card] = found.get(card) or problem
        return found

    # --- steps ---------------------------------------------------------------------------

    def _share_of(self, holding: Holding) -> Share:
        cards = sort_by_address(holding.cards, self._bus_ids)
        percent = holding.core_limit or holding.cores_per_card
        blocks = holding.memory_limits
        # Fewer blocks than cards: no better value is known for a card without any.
        least = min(blocks.values(), default=0)
        memory = [blocks.get(card, least) * self._block for card in cards] if blocks else []
        return Share(
            holding.ref,
            cards,
            max(1, min(percent, CORES_PER_CARD) // holding.processes),
            tuple(max(1, mib // holding.processes) for mib in memory),
            holding.processes,
        )

    def _may_be_whole(self, holding: Holding) -> bool:
        """Return whether this is all memory of cards whose cores another call is about.

        Such a limit would limit nothing, and whole cards get no variable of MPS.
        """
        limits = holding.memory_limits
        full = bool(limits) and all(
            blocks >= self._blocks.get(card, blocks + 1) for card, blocks in limits.items()
        )
        return full and not holding.cores_per_card and holding.processes == 1

    def _forget_others(self, holding: Holding) -> None:
        """Remove shares that have ended: of other containers, if a whole card is given out."""
        with self._lock:
            for key, share in self._folder.read_shares().items() if holding.is_whole else ():
                if not holding.cards.keys().isdisjoint(share.cards):
                    self._folder.write_share(key, None)

    def _update(self, key: str, share: Share, *, daemon: str) -> None:
        """Note the instance that serves a container, unless the file was replaced meanwhile."""
        with self._lock:
            if self._folder.read_shares().get(key) == share:
                self._folder.write_share(key, replace(share, daemon=daemon))

    def _wait(self, missing: Callable[[Status], str]) -> Status:
        """Wait until nothing is *missing*; return the status then.

        Raises:
            EnforcementError: something is still missing.
        """
        until = time.monotonic() + self._patience
        while True:
            status = self._folder.read_status()
            problem = _NOT_RUNNING if status is None else missing(status)
            if status is not None and not problem:
                return status
            if time.monotonic() >= until:
                raise EnforcementError(f"{problem}: the start will be retried")
            time.sleep(_POLL_SECONDS)


def _check_variables(given: Share, own: Share) -> None:
    """Compare what a container got, perhaps for another pod, with what its own pod may have."""
    if given.percent > own.percent or given.processes < own.processes:
        raise EnforcementError(
            f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is {given.percent}, but this pod's annotations "
            f"allow {own.percent}: it was not known when its container got the variable; delete "
            "the pod, and its successor gets its own"
        )
    if given.percent < own.percent:
        log.warning(
            "container may use less than its annotations allow",
            extra={"pod": str(own.ref), "percent": given.percent, "allowed": own.percent},
        )


def _missing_for(key: str, share: Share, status: Status) -> str:
    """Return why the daemon of a share does not serve it; empty if it does."""
    daemon = status.get(share.set)
    if daemon is None:
        problem = "it is not started yet"
    elif daemon.admits(key, share):
        return ""
    else:
        problem = daemon.problem or "it has not got these limits yet"
    return f"the MPS daemon of {', '.join(share.cards)} does not serve: {problem}"


def _left_on(cards: Iterable[str], status: Status) -> str:
    """Return which of these cards still has a daemon; empty if none does."""
    left = sorted({*cards} & {card for each in status.values() for card in each.cards})
    return f"an MPS daemon is still on {', '.join(left)}" if left else ""

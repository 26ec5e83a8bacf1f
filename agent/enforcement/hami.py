"""Enforcement by HAMi-core: a library that the loader puts into every program of a container.

``libvgpu.so`` stands between a program and the CUDA driver. It is loaded through
``/etc/ld.so.preload`` and reads the container's environment, once, when the first program of
a container uses a card; the result it keeps in a file that the container's programs share.
Each name here is one that its sources read:

``CUDA_DEVICE_MEMORY_LIMIT_<i>``
    the most memory of the container's i-th card; ``m`` is MiB.
``CUDA_DEVICE_MEMORY_LIMIT``
    the same for cards without one of their own, which would have no limit.
``CUDA_DEVICE_SM_LIMIT``
    percent of the compute units, for shares.
``GPU_CORE_UTILIZATION_POLICY=FORCE``
    the percentage holds always. Otherwise a bit of the shared file says whether it does.
``CUDA_DEVICE_MEMORY_SHARED_CACHE``
    where the shared file is.
``CUDA_DEVICE_ORDER=PCI_BUS_ID``
    read by CUDA itself: the i-th card of a program is then the i-th of its container by PCI
    address, and so are the limits numbered. CUDA's own order, the fastest first, would give
    mixed cards each other's limits. NVML's index mostly is that order, but need not be.

What the answers carry follows from the IDs. Compute limit and memory limit come in two
answers of which the kubelet takes a variable or mount that both have from either: where both
say something they say the same. The shared file comes with the cores, whose places name the
container's directory. Whole cards have no limit; the memory of one whose container was guessed is
limited all the same, since it may be a share.

The shared file. A container's programs, whoever runs them, write it: it is the one file of a
directory that a container may write, and a single file, because a directory would let a
container leave behind what the agent must walk through to remove it. Every start of a
container gets a new one: the limits in it are those of the container that first wrote it, and
an init container may have had more of the same places (fact K7). What a container writes into
it counts against no quota of its own: the file system of the state directory should be one
whose filling up harms nobody else, or have a project quota. The file goes with the pod.

Not taken over from HAMi:

- ``/tmp/vgpulock``, a directory that all containers of a node can write to. HAMi-core since
  2026-02-03 takes its lock in the shared file; an older one waits in ``cuInit`` for a minute,
  then goes on (:mod:`agent.enforcement.hami_library`).
- ``CUDA_DISABLE_CONTROL``: a pod's author could do without the limits.
- ``CUDA_TASK_PRIORITY``, ``CUDA_OVERSUBSCRIBE``, ``/overrideEnv``: nothing here asks for
  the first two, and the file is read only after the limits are fixed.

A soft limit (``vcuda-core-limit``) has no counterpart in HAMi-core: a share is held to its
own. A pod's author who sets these variables in the pod overrides them, as with HAMi; a
program that is linked statically, or to musl, does without the library. Limits go by the
numbers that CUDA gives: one that hides cards by ``CUDA_VISIBLE_DEVICES`` renumbers the rest,
which then have the limits of the first ones.
"""

import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from agent.allocator.grants import (
    CardGrant,
    ContainerEdits,
    Entitlement,
    Grant,
    Mount,
)
from agent.allocator.interfaces import ContainerRef
from agent.cards.pci import parse_address
from agent.enforcement.container_dirs import ContainerDir, ContainerDirs
from agent.enforcement.container_disk import translated
from agent.enforcement.hami_library import LIBRARY, HamiLibrary
from agent.errors import EnforcementError
from agent.host import directories
from contract.demand import CORES_PER_CARD
from contract.inventory import Card
from contract.resource import Resource
from placement.pods import PodId

log = logging.getLogger(__name__)

IN_CONTAINER = "/usr/local/vgpu"
"""Where the library looks for itself."""

SHARED = f"{IN_CONTAINER}/shared.cache"
"""Not in ``/tmp``: there, kernels refuse to open another user's file as if to create it."""

PRELOAD = "ld.so.preload"
_SHARED_FILE = "shared.cache"
_CARDS = 16  # CUDA_DEVICE_MAX_COUNT
_MIB = 1 << 20


class HamiCore:
    """Limits by HAMi-core. Safe to share between threads."""

    def __init__(
        self, *, state_dir: Path, library: HamiLibrary, block: int, cards: Collection[Card]
    ) -> None:
        """Prepare; nothing is made yet.

        Both directories are seen at the host's paths. *block* is in bytes, whole MiB.
        """
        self._dirs = ContainerDirs(state_dir / "tickets")
        self._library = library
        self._addresses = {card.uuid: parse_address(card.bus_id) for card in cards}
        self._preload_dir = state_dir / "hami-core"
        self._block = block // _MIB

    def open(self) -> None:
        """Clean up after an agent that was killed, and look at the library."""
        self._dirs.clean()
        self._library.present()

    def prepare_allocation(
        self, ref: ContainerRef, ids: frozenset[str], grant: Grant
    ) -> ContainerEdits:
        """Return the compute limit of a share, or the memory limit."""
        if grant.resource is Resource.MEMORY:
            return self._loaded().merged_with(ContainerEdits(self._memory(grant)))
        made = self._dirs.make(ids, ref.pod)
        shared = ContainerEdits(mounts=(Mount(SHARED, str(self._shared(made)), read_only=False),))
        if grant.slots >= CORES_PER_CARD:
            return shared  # whole cards
        limits = {
            "CUDA_DEVICE_SM_LIMIT": str(grant.slots),
            "GPU_CORE_UTILIZATION_POLICY": "FORCE",
        }
        return shared.merged_with(self._loaded()).merged_with(ContainerEdits(limits))

    def prepare_start(self, ids: frozenset[str], entitlement: Entitlement | None) -> None:
        """Make a shared file of its own for the container that starts."""
        if entitlement is not None:
            self._renew(self._dirs.ensure(ids, entitlement.ref.pod))
        elif (found := self._dirs.find(ids)) is not None:
            self._renew(found)
        else:
            raise EnforcementError(
                "what this container finds mounted is gone from the node's disk, and it is not "
                "known yet whose it is: the start is tried again"
            )
        if len(ids) < CORES_PER_CARD:
            self._loaded()
        else:
            self._write_preload()  # no limit, or one that is not known: nothing to insist on

    def identify_starting(self, candidates: Sequence[Entitlement]) -> Entitlement:
        """Take the last: limits are in each container's own variables."""
        return candidates[-1]

    def prune(self, pods: Collection[PodId]) -> None:
        """Remove the directories of other pods."""
        self._dirs.prune(pods)

    # --- steps -------------------------------------------------------------------------

    def _memory(self, grant: Grant) -> dict[str, str]:
        """Return the limits of the cards that the memory is on.

        They are all the container's cards, and so numbered as CUDA does, unless it has fewer
        blocks than (whole) cards. The cards without any then get what the least one has: without
        a limit they must not be, and a smaller one is not known here.
        """
        if len(grant.by_card) > _CARDS:
            raise EnforcementError(
                f"memory on {len(grant.by_card)} cards, but HAMi-core limits at most {_CARDS}: "
                "ask for whole cards without memory"
            )
        limits = [f"{share.slots * self._block}m" for share in self._by_bus(grant.by_card)]
        smallest = min(share.slots for share in grant.by_card) * self._block
        envs = {f"CUDA_DEVICE_MEMORY_LIMIT_{at}": limit for at, limit in enumerate(limits)}
        envs["CUDA_DEVICE_MEMORY_LIMIT"] = f"{smallest}m"
        if len(limits) > 1:
            envs["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return envs

    def _by_bus(self, shares: Sequence[CardGrant]) -> Sequence[CardGrant]:
        """Sort shares by their cards' PCI addresses; leave them where one has none.

        A cards file need not have any.
        """
        placed = [(self._addresses.get(share.card), share) for share in shares]
        known = [(address, share) for address, share in placed if address is not None]
        if len(known) < len(placed):
            return shares
        return [share for _, share in sorted(known, key=lambda each: each[0])]

    def _loaded(self) -> ContainerEdits:
        """Return the mounts and variables that load the library: the same in every answer."""
        # The runtime would make a directory of what is missing, and the loader go on without.
        if not self._library.present():
            log.error("HAMi-core is missing", extra={"path": str(self._library.path)})
            raise EnforcementError(
                f"hami-library-dir: the node has no {LIBRARY}, which holds containers to their "
                "limits: the node's admin must install HAMi-core"
            )
        return ContainerEdits(
            {"CUDA_DEVICE_MEMORY_SHARED_CACHE": SHARED},
            mounts=(
                Mount(f"{IN_CONTAINER}/{LIBRARY}", str(self._library.path)),
                Mount("/etc/ld.so.preload", str(self._write_preload())),
            ),
        )

    def _write_preload(self) -> Path:
        """Make the file that names the library to the loader; containers only read it."""
        path, text = self._preload_dir / PRELOAD, f"{IN_CONTAINER}/{LIBRARY}\n".encode()
        with translated("make what limits this container"):
            if path.is_file() and path.read_bytes() == text:
                return path
            with directories.opened_path(self._preload_dir) as folder:
                self._dirs.write(folder, "", {PRELOAD: text})
        return path

    def _shared(self, made: ContainerDir) -> Path:
        """Make the shared file unless it is there."""
        path = made.files / _SHARED_FILE
        if not path.is_file():
            self._renew(made)
        return path

    def _renew(self, made: ContainerDir) -> None:
        """Replace the shared file by a new, empty one; a lingering container keeps its own."""
        folder = self._dirs.open(made.digest)
        try:
            self._dirs.write(folder, "", {_SHARED_FILE: b""}, mode=0o666)
        finally:
            os.close(folder)

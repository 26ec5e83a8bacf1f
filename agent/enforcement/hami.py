"""Enforcement by HAMi-core: a library that the loader puts into every program of a container.

``libvgpu.so`` intercepts the calls of a program to the CUDA driver. It is loaded through
``/etc/ld.so.preload`` and reads the container's environment, once, when the first program of a
container uses a card. It keeps the result in a file that the container's programs share. The
library's sources read these names:

``CUDA_DEVICE_MEMORY_LIMIT_<i>``
    memory limit of the container's i-th card; ``m`` is MiB.
``CUDA_DEVICE_MEMORY_LIMIT``
    the same for cards without a limit of their own, which would otherwise have none.
``CUDA_DEVICE_SM_LIMIT``
    percent of the compute units of each card, for shares. A library from before 2026-04-22 (commit
    15ea423 in its branch ``main``) measures and limits the first card's use only.
``GPU_CORE_UTILIZATION_POLICY=FORCE``
    always apply the percentage. Otherwise a bit of the shared file decides.
``CUDA_DEVICE_MEMORY_SHARED_CACHE``
    path of the shared file.
``CUDA_DEVICE_ORDER=PCI_BUS_ID``
    read by CUDA itself: a program's i-th card is then the i-th of its container by PCI address, and
    the limits are numbered in the same way. With CUDA's default order, the fastest first, cards of
    several models could get each other's limits. NVML's index mostly has PCI order, but not always.

The container edits depend only on key and amounts. A device plugin returns compute limit and memory
limit in two responses. If both have a variable or mount, the kubelet takes either, so both have the
same value. The shared file comes with the cores, whose key names the container's directory. Whole
cards have no limit.
If the container of a memory call was guessed, the memory is limited even for a whole card, since
the container may have a share.

The shared file is written by the container's programs, under any user. It is the only file in a
directory that a container may write. It is a file and not a folder, because the agent would have to
traverse a folder to remove it. Every start of a container gets a new one (by a claim: the first
start of its pod's sandbox): the limits in it are those of the container that first wrote it, and an
init container may have held more of the same slots (fact K7). Its size counts against no quota of
the container: put the state directory on a file system that may fill up without harm, or one with a
project quota. The file is removed with the pod.

Not adopted from HAMi:

- ``/tmp/vgpulock``, a directory that all containers of a node can write to. HAMi-core since
  2026-02-03 has its lock in the shared file; an older one waits in ``cuInit`` for a minute, then
  continues (:mod:`agent.enforcement.hami_library`).
- ``CUDA_DISABLE_CONTROL``: with it a pod's author could switch the limits off.
- ``CUDA_TASK_PRIORITY``, ``CUDA_OVERSUBSCRIBE``, ``/overrideEnv``: nothing here needs the first
  two, and the file is read only after the limits are fixed.

On MIG instances the library limits memory only. It throttles by the use of processes, which NVML
does not return there (``get_used_gpu_utilization`` in its
``src/multiprocess/multiprocess_utilization_watcher.c``): the percentage would have no effect, so it
is not set. HAMi itself does not load the library on instances.

A soft limit (``vcuda-core-limit``) has no counterpart in HAMi-core: a share is limited to its own
cores. As with HAMi, variables in the pod override these. A program that is linked statically, or to
musl, runs without the library. Limits apply to the numbers that CUDA assigns: a program that hides
cards by ``CUDA_VISIBLE_DEVICES`` renumbers the others, which then get the limits of the first ones.
"""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from agent.cards.pci import sort_by_address
from agent.enforcement.container_dirs import ContainerDir, ContainerDirs
from agent.enforcement.container_disk import translated
from agent.enforcement.hami_library import LIBRARY, HamiLibrary
from agent.errors import EnforcementError
from agent.holdings.edits import ContainerEdits, Mount
from agent.holdings.holding import UNKNOWN, Holding
from agent.host import directories
from contract.inventory import Card, is_instance_uuid
from placement.pods import PodId

log = logging.getLogger(__name__)

IN_CONTAINER = "/usr/local/vgpu"
"""The folder in which the library looks for itself."""

SHARED = f"{IN_CONTAINER}/shared.cache"
"""Not in ``/tmp``: there, kernels refuse ``O_CREAT`` for an existing file of another user."""

PRELOAD = "ld.so.preload"
_SHARED_FILE = "shared.cache"
_CARDS = 16  # CUDA_DEVICE_MAX_COUNT
_MIB = 1 << 20


class HamiCore:
    """Limits by HAMi-core. Safe to share between threads."""

    limits = True

    def __init__(
        self, *, state_dir: Path, library: HamiLibrary, block: int, cards: Collection[Card]
    ) -> None:
        """Prepare; nothing is made yet.

        Both directories have the same paths on the host. *block* is in bytes, whole MiB.
        """
        self._dirs = ContainerDirs(state_dir / "tickets")
        self._library = library
        self._bus_ids = {card.uuid: card.bus_id for card in cards}
        self._preload_dir = state_dir / "hami-core"
        self._block = block // _MIB

    def open(self) -> None:
        """Clean up after a killed agent, and check the library."""
        self._dirs.clean()
        self._library.find_problem()

    def prepare_allocation(self, holding: Holding) -> ContainerEdits:
        """Return the edits with the compute limit of a share, with the memory limit, or both."""
        edits = ContainerEdits()
        if holding.cores_per_card:
            made = self._dirs.make(holding.key, holding.ref.pod)
            shared = Mount(SHARED, str(self._shared(made)), read_only=False)
            edits = edits.merged_with(ContainerEdits(mounts=(shared,)))
        if holding.is_whole:
            return edits
        edits = edits.merged_with(self._loaded())
        if holding.cores_per_card and not any(map(is_instance_uuid, holding.cards)):
            limits = {
                "CUDA_DEVICE_SM_LIMIT": str(holding.cores_per_card),
                "GPU_CORE_UTILIZATION_POLICY": "FORCE",
            }
            edits = edits.merged_with(ContainerEdits(limits))
        if holding.memory_limits:
            edits = edits.merged_with(ContainerEdits(self._memory(holding.memory_limits)))
        return edits

    def prepare_start(self, holding: Holding) -> None:
        """Make a new shared file for the container that starts."""
        if holding.ref != UNKNOWN:
            self._replace_shared_file(self._dirs.ensure(holding.key, holding.ref.pod))
        elif (found := self._dirs.find(holding.key)) is not None:
            self._replace_shared_file(found)
        else:
            raise EnforcementError(
                "the files that this container mounts are missing on the node's disk, and their "
                "owner is not known yet: the start will be retried"
            )
        if not holding.is_whole:
            self._loaded()
        else:
            self._write_preload()  # no limit, or one that is not known: the library is optional

    def identify_starting(self, candidates: Sequence[Holding]) -> Holding:
        """Return the last one: the result makes no difference, since limits are in variables."""
        return candidates[-1]

    def prune(self, pods: Collection[PodId]) -> None:
        """Remove all directories except those of *pods*; failures are retried at the next call."""
        self._library.find_problem()  # reported without a start, too
        try:
            self._dirs.prune(pods)
        except EnforcementError as error:
            log.warning("container directories not removed", extra={"reason": str(error)})

    # --- steps -------------------------------------------------------------------------

    def _memory(self, blocks: Mapping[str, int]) -> dict[str, str]:
        """Return the limits of the cards with these memory blocks.

        These are all cards of the container, so they are numbered as CUDA does, unless it has fewer
        blocks than (whole) cards. The cards without blocks then get the smallest limit, since they
        must have one and no better value is known here.
        """
        if len(blocks) > _CARDS:
            raise EnforcementError(
                f"memory on {len(blocks)} cards, but HAMi-core limits at most {_CARDS}: "
                "request whole cards without memory"
            )
        in_order = sort_by_address(blocks, self._bus_ids)
        limits = [f"{blocks[card] * self._block}m" for card in in_order]
        envs = {f"CUDA_DEVICE_MEMORY_LIMIT_{at}": limit for at, limit in enumerate(limits)}
        envs["CUDA_DEVICE_MEMORY_LIMIT"] = f"{min(blocks.values()) * self._block}m"
        if len(limits) > 1:
            envs["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return envs

    def _loaded(self) -> ContainerEdits:
        """Return the mounts and variables that load the library: the same in every response."""
        # For a missing file the runtime would make a directory, and programs would run unlimited.
        if problem := self._library.find_problem():
            raise EnforcementError(problem)
        return ContainerEdits(
            {"CUDA_DEVICE_MEMORY_SHARED_CACHE": SHARED},
            mounts=(
                Mount(f"{IN_CONTAINER}/{LIBRARY}", str(self._library.path)),
                Mount("/etc/ld.so.preload", str(self._write_preload())),
            ),
        )

    def _write_preload(self) -> Path:
        """Make the loader's file with the library's path; containers only read it."""
        path, text = self._preload_dir / PRELOAD, f"{IN_CONTAINER}/{LIBRARY}\n".encode()
        with translated("make the limits of this container"):
            if path.is_file() and path.read_bytes() == text:
                return path
            with directories.opened_path(self._preload_dir) as folder:
                self._dirs.write(folder, "", {PRELOAD: text})
        return path

    def _shared(self, made: ContainerDir) -> Path:
        """Make the shared file unless it exists."""
        path = made.files / _SHARED_FILE
        if not path.is_file():
            self._replace_shared_file(made)
        return path

    def _replace_shared_file(self, made: ContainerDir) -> None:
        """Replace the shared file by an empty one; a container that still runs keeps its own."""
        folder = self._dirs.open(made.digest)
        try:
            self._dirs.write(folder, "", {_SHARED_FILE: b""}, mode=0o666)
        finally:
            os.close(folder)

"""The directories of containers: each is mounted into the containers whose holding has its key.

The key is the same after every restart, so an agent whose disk was wiped makes the same path again,
which the kubelet still uses (fact K12). The directory of another pod is renamed before a new one
takes its path: bind mounts follow the inode, so a container that still runs never sees the files of
its successor.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.enforcement import container_disk as disk
from agent.errors import EnforcementError
from agent.holdings.holding import HoldingKey
from agent.host import directories as folders
from placement.pods import PodId

log = logging.getLogger(__name__)


def may_be(owner: PodId, pod: PodId) -> bool:
    """Return whether the owner may be *pod*; an empty UID matches any."""
    return owner.key == pod.key and (owner.uid == pod.uid or not owner.uid or not pod.uid)


@dataclass(frozen=True, slots=True, order=True)
class ContainerDir:
    """The directory of one container."""

    digest: str
    owner: PodId
    """The pod for which it was made; the UID is empty if it was not known."""
    files: Path
    """The path that is mounted."""


class ContainerDirs:
    """All containers' directories below one root. Safe to share between threads.

    Every method except the constructor raises ``EnforcementError`` if the disk returns an error.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()

    # --- making ------------------------------------------------------------------------

    def make(self, key: HoldingKey, owner: PodId) -> ContainerDir:
        """Make the directory of a holding for a pod that is being admitted.

        An existing one is kept if it was made for the same pod (an init container's slots are
        reusable, fact K7). If a UID is not known, the owner may be another pod with the same name:
        then a new one is made, since no container of a pod runs while it is admitted.
        """
        return self._reuse_or_create(key, owner, lambda held: bool(owner.uid) and held == owner)

    def ensure(self, key: HoldingKey, owner: PodId) -> ContainerDir:
        """Make the directory of a holding unless it belongs to *owner*, which is about to start."""
        return self._reuse_or_create(key, owner, lambda held: may_be(held, owner))

    def find(self, key: HoldingKey) -> ContainerDir | None:
        """Return the existing directory of a holding; ``None`` if there is none."""
        with self._lock, self._opened("read") as root:
            owner = disk.owner_of(root, key)
            return self._at(key, owner) if owner is not None else None

    def correct_owner(self, digest: str, folder: int, owner: PodId) -> None:
        """Replace the guessed owner of a directory by the proven one.

        *folder* is the descriptor that ``open`` returned. If another directory has the path
        meanwhile, it has its own owner, and nothing is written.
        """
        with self._lock, self._opened("write") as root:
            held = disk.owner_of(root, digest)
            if held is None or held == owner:
                return
            with (
                folders.opened(digest, root) as made,
                folders.opened(disk.FILES, made) as files,
            ):
                if os.path.samestat(os.fstat(files), os.fstat(folder)):
                    disk.write_owner(made, owner)

    # --- keeping -----------------------------------------------------------------------

    def all(self) -> tuple[ContainerDir, ...]:
        """Return every directory, by name."""
        with self._lock, self._opened("read") as root:
            return self._list(root)

    def prune(self, pods: Collection[PodId]) -> tuple[ContainerDir, ...]:
        """Remove all directories except those of *pods*, and return these.

        An owner without UID is compared by namespace and name. A directory that cannot be removed
        is tried again at the next call.
        """
        kept, others = [], []
        with self._lock, self._opened("clean") as root:
            for each in self._list(root):
                if any(may_be(each.owner, pod) for pod in pods):
                    kept.append(each)
                else:
                    others.append(each.digest)
            _remove(root, others)
        return tuple(kept)

    def clean(self) -> None:
        """Remove temporary files of a killed agent, and directories without a valid owner.

        Files with names that the agent does not use are left in place.
        """
        ownerless = []
        with self._lock, self._opened("clean") as root:
            for name in folders.names(root):
                if disk.is_name(name) and disk.owner_of(root, name) is None:
                    log.warning(
                        "removing a container directory without a valid owner", extra={"file": name}
                    )
                    ownerless.append(name)
                elif not disk.is_name(name) and not disk.is_leftover(name):
                    log.warning("unknown file left in place", extra={"file": name})
            _remove(root, ownerless)

    # --- files in a directory ----------------------------------------------------------

    def open(self, digest: str) -> int:
        """Open the mounted part of one directory.

        The descriptor keeps referring to this directory if another one takes its path.
        """
        with self._lock, self._opened("read") as root:
            if not disk.is_name(digest) or disk.owner_of(root, digest) is None:
                raise EnforcementError(
                    "state-dir: the directory of this container's limits is missing: "
                    "see the agent's log"
                )
            with folders.opened(digest, root) as made:
                return folders.open_folder(disk.FILES, made)

    def write(
        self, folder: int, inside: str, files: Mapping[str, bytes], *, mode: int = 0o644
    ) -> None:
        """Replace *files*, content by name, each atomically; *folder* is from ``open``.

        *inside* is a folder in that directory, which is made if it is missing; empty for the
        directory itself.
        """
        with self._lock, disk.translated("write the limits of this container"):
            if not inside:
                folders.replace(folder, files, mode)
                return
            folders.make(inside, folder)
            with folders.opened(inside, folder) as inner:
                folders.replace(inner, files)

    def discard(self, folder: int, names: Collection[str]) -> None:
        """Remove files, or folders with their content; *folder* is from ``open``."""
        with self._lock, disk.translated("remove the limits of a container"):
            for name in sorted(names):
                folders.remove(folder, name)

    # --- steps; the lock is held ---------------------------------------------------------

    def _reuse_or_create(
        self, key: HoldingKey, owner: PodId, keeps: Callable[[PodId], bool]
    ) -> ContainerDir:
        with self._lock, self._opened("make") as root:
            held = disk.owner_of(root, key)
            if held is not None and keeps(held):
                if owner.uid and not held.uid:
                    with folders.opened(key, root) as made:
                        disk.write_owner(made, owner)
                    held = owner
                return self._at(key, held)
            disk.create(root, key, owner)
            disk.sweep(root)
        return self._at(key, owner)

    def _list(self, root: int) -> tuple[ContainerDir, ...]:
        found = []
        for name in folders.names(root):
            owner = disk.owner_of(root, name) if disk.is_name(name) else None
            if owner is not None:
                found.append(self._at(name, owner))
        return tuple(found)

    def _at(self, digest: str, owner: PodId) -> ContainerDir:
        return ContainerDir(digest, owner, self._root / digest / disk.FILES)

    @contextlib.contextmanager
    def _opened(self, doing: str) -> Iterator[int]:
        with (
            disk.translated(f"{doing} the directory of a container's limits"),
            folders.opened_path(self._root) as root,
        ):
            yield root


def _remove(root: int, digests: Collection[str]) -> None:
    """Remove directories and leftovers; one that cannot be moved stops none of the others."""
    errors = []
    for each in digests:
        try:
            disk.move_away(root, each)
        except OSError as error:
            errors.append(error)
    if errors:
        log.warning(
            "container directories not removed",
            extra={"directories": len(errors), "reason": str(errors[0])},
        )
    disk.sweep(root)

"""Which container a process belongs to, and which processes belong to a container.

Read from ``/proc/<pid>/cgroup``. A container's place in it is chosen by the
kubelet (a directory per pod) and the runtime (one per container inside that), and nothing a
container makes can stand above its own: so the outermost directory that is named like a
container's is the container, whatever directories are made inside.

====================  =========================================================================
cgroupfs              ``/kubepods/burstable/pod<uid>/<id>``; CRI-O: ``.../crio-<id>``
systemd               ``/kubepods.slice/kubepods-pod<uid>.slice/cri-containerd-<id>.scope``, also
                      ``crio-<id>.scope`` (with ``/container`` below) and ``docker-<id>.scope``;
                      ``_`` for ``-`` in the UID
both at once          the kubelet speaks systemd, containerd does not:
                      ``/system.slice/containerd.service/kubepods-pod<uid>.slice:cri-containerd:<id>``
not a container       ``crio-conmon-<id>``: the process that watches over one
====================  =========================================================================

A container that is root on the host (privileged) can move itself anywhere; no reading of
cgroups helps against that.
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Unavailable
from contract.errors import quote

PROC = Path("/proc")
MOUNT = Path("/sys/fs/cgroup")

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"  # static pods: a hash
_POD = re.compile(rf"pod({_UID})|(?:[^:]*-)?pod({_UID})\.slice", re.ASCII)
_CONTAINER = re.compile(r"(?:([a-z][a-z0-9-]*)-)?([0-9a-f]{64})(?:\.scope)?", re.ASCII)
_JOINED = re.compile(rf"(?:[^:]*-)?pod({_UID})\.slice:[^:]+:([0-9a-f]{{64}})", re.ASCII)
_CONMON = "conmon"

# Where the node's own init is put: beside, not above, what else there is.
_INIT = ("init.scope", "init")

# A container may make directories at will; beyond this many /proc is quicker.
_MOST_DIRECTORIES = 1024


class CgroupError(Exception):
    """The cgroups of a process are unreadable, or name several containers."""


@dataclass(frozen=True, slots=True, order=True)
class Membership:
    """A directory of one hierarchy of cgroups."""

    controllers: str
    """The hierarchy: ``cpu,cpuacct``, ``name=systemd``; empty is that of v2."""
    path: str
    """The directory; seen from another cgroup namespace it begins with ``/..``."""


@dataclass(frozen=True, slots=True)
class ContainerCgroup:
    """The cgroups of one container."""

    container_id: str
    """64 hexadecimal digits, lower case."""
    pod_uid: str | None
    """``None`` where no pod's directory is above. A static pod has another UID in the API."""
    directories: tuple[Membership, ...]
    """Its own, one per hierarchy that has it."""


def parse_memberships(text: str) -> tuple[Membership, ...]:
    """Read ``/proc/<pid>/cgroup``.

    Raises:
        CgroupError: a line is not as the kernel writes them.
    """
    found = []
    # Not splitlines: of what ends a line there, the kernel keeps only this out of names.
    for line in text.split("\n"):
        if not line:
            continue
        number, separator, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if not (separator and second and number.isdecimal() and path.startswith("/")):
            raise CgroupError(f"a line of /proc/<pid>/cgroup cannot be read: {quote(line)}")
        found.append(Membership(controllers, path))
    return tuple(found)


def find_container(
    memberships: Sequence[Membership], init: Sequence[Membership] = ()
) -> ContainerCgroup | None:
    """Find the container that a process belongs to; ``None`` when it belongs to none.

    What the node's first process, *init*, is in is not looked at: on a node that is itself a
    container (kind, k3d) everything stands below that.

    Raises:
        CgroupError: the hierarchies name different containers.
    """
    roots = {each.controllers: _root(each.path) for each in init}
    found = [(each, *_locate(each, roots)) for each in memberships]
    ids = {container for _, container, _, _ in found if container}
    pods = {pod for _, _, pod, _ in found if pod}
    if not ids:
        return None
    if len(ids) > 1 or len(pods) > 1:
        named = ", ".join(sorted({each.path for each, container, _, _ in found if container}))
        raise CgroupError(f"a process is in the cgroups of several containers: {quote(named)}")
    return ContainerCgroup(
        container_id=ids.pop(),
        pod_uid=pods.pop() if pods else None,
        directories=tuple(
            Membership(each.controllers, path) for each, container, _, path in found if container
        ),
    )


def _root(path: str) -> list[str]:
    parts = _parts(path)
    return parts[:-1] if parts and parts[-1] in _INIT else parts


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _locate(
    membership: Membership, roots: Mapping[str, Sequence[str]]
) -> tuple[str, str | None, str]:
    """Return the container, its pod and its directory; no container is empty."""
    parts = _parts(membership.path)
    root = roots.get(membership.controllers, ())
    start = len(root) if parts[: len(root)] == list(root) else 0
    for index, part in enumerate(parts[start:], start):
        directory = "/" + "/".join(parts[: index + 1])
        if joined := _JOINED.fullmatch(part):
            return joined[2], _uid(joined[1]), directory
        if container := _CONTAINER.fullmatch(part):
            if (container[1] or "").endswith(_CONMON):
                break
            pod = _POD.fullmatch(parts[index - 1]) if index > start else None
            return container[2], _uid(pod[1] or pod[2]) if pod else None, directory
    return "", None, ""


def _uid(written: str) -> str:
    return written.replace("_", "-")


class Cgroups:
    """The cgroups of this node. Safe to share between threads."""

    def __init__(self, proc: Path = PROC, mount: Path = MOUNT) -> None:
        """Read from *proc*, which must show the host's processes, and from *mount*."""
        self._proc = proc
        self._mount = mount

    def container_of(self, pid: int) -> ContainerCgroup | None:
        """Find the container of a process; ``None`` when it has none, or has ended.

        Raises:
            CgroupError: what the kernel tells of it names no one container.
            Unavailable: the kernel tells nothing.
        """
        if pid <= 0:
            raise CgroupError(_foreign("the process"))
        text = self._read(pid)
        return None if text is None else find_container(parse_memberships(text), self._init())

    def containers_of(self, pids: Iterable[int]) -> dict[int, ContainerCgroup]:
        """Find the containers of many processes at once.

        Left out are those that have none, have ended, or of which no one container is told.

        Raises:
            Unavailable: the kernel tells nothing.
        """
        try:
            init = self._init()
        except CgroupError as error:
            raise Unavailable(f"cgroups: {error}") from error
        found: dict[int, ContainerCgroup] = {}
        by_text: dict[str, ContainerCgroup | None] = {}  # processes of a container have the same
        for pid in pids:
            text = self._read(pid)
            if text is None:
                continue
            if text not in by_text:
                try:
                    by_text[text] = find_container(parse_memberships(text), init)
                except CgroupError:
                    by_text[text] = None
            container = by_text[text]
            if container is not None:
                found[pid] = container
        return found

    def pids_of(self, container: ContainerCgroup) -> tuple[int, ...]:
        """Return the processes of a container, of the cgroups inside its own as well, ascending.

        Raises:
            CgroupError: they are not of a PID namespace that the agent sees.
            Unavailable: the kernel tells nothing.
        """
        for membership in sorted(container.directories):
            directory = self._directory(membership)
            pids = None if directory is None else _processes(directory)
            if pids is not None:
                return tuple(sorted(pids))
        return tuple(sorted(self._search(container.container_id)))

    def _init(self) -> tuple[Membership, ...]:
        text = self._read(1)
        return () if text is None else parse_memberships(text)

    def _read(self, pid: int) -> str | None:
        path = f"{self._proc}/{pid}/cgroup"
        try:
            # Hundreds are read every few seconds: a Path takes as long as all the rest.
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                return file.read().decode("utf-8", "surrogateescape")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            return None
        except OSError as error:
            raise Unavailable(f"cgroups: {path}: {error.strerror}") from error

    def _directory(self, membership: Membership) -> Path | None:
        """Find a directory of a hierarchy; ``None`` where this mount does not show it."""
        parts = _parts(membership.path)
        if ".." in parts:  # the agent's own cgroup, which that is told from, is not known
            return None
        for base in self._bases(membership.controllers):
            directory = base.joinpath(*parts)
            if directory.is_dir():
                return directory
        return None

    def _bases(self, controllers: str) -> Sequence[Path]:
        """Return where a hierarchy may be mounted."""
        if controllers:
            joined = controllers.removeprefix("name=")
            return [self._mount / name for name in (joined, *joined.split(","))]
        pure = (self._mount / "cgroup.controllers").exists()
        return [self._mount if pure else self._mount / "unified"]

    def _search(self, container_id: str) -> Iterator[int]:
        """Read the cgroups of every process of the node."""
        init = self._init()
        for entry in self._pids():
            text = self._read(entry)
            if text is None or container_id not in text:
                continue
            try:
                found = find_container(parse_memberships(text), init)
            except CgroupError:  # in two containers at once: of neither
                continue
            if found is not None and found.container_id == container_id:
                yield entry

    def _pids(self) -> Iterator[int]:
        try:
            names = [entry.name for entry in self._proc.iterdir()]
        except OSError as error:
            raise Unavailable(f"cgroups: {self._proc}: {error.strerror}") from error
        return (int(name) for name in names if name.isdecimal())


def _processes(top: Path) -> set[int] | None:
    """Read ``cgroup.procs`` of a directory and all below; ``None`` when it cannot be told."""
    found: set[int] = set()
    waiting, seen = [top], 0
    while waiting:
        directory = waiting.pop()
        seen += 1
        if seen > _MOST_DIRECTORIES:
            return None
        try:
            found.update(map(int, (directory / "cgroup.procs").read_text("ascii").split()))
            with os.scandir(directory) as entries:
                waiting += [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                # A threaded cgroup: its processes are told further up, where the threads'
                # common cgroup is. That may be above the container's own.
                if directory == top:
                    return None
            elif error.errno not in (errno.ENOENT, errno.ENODEV):  # removed by now
                raise Unavailable(f"cgroups: {directory}: {error.strerror}") from error
    if 0 in found:
        raise CgroupError(_foreign(f"a process in {top}"))
    return found


def _foreign(who: str) -> str:
    return f"{who} is of a PID namespace that the agent does not see: it needs hostPID"

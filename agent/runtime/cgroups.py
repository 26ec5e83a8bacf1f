"""Finds the container of a process, and the processes of a container, by cgroups.

The source is ``/proc/<pid>/cgroup``. The kubelet chooses the directory of a pod, and the runtime
the directory of a container inside it. A container can make directories only below its own. So the
outermost directory with a container's name is the container's, whatever is inside it.

====================  =========================================================================
cgroupfs              ``/kubepods/burstable/pod<uid>/<id>``; CRI-O: ``.../crio-<id>``
systemd               ``/kubepods.slice/kubepods-pod<uid>.slice/cri-containerd-<id>.scope``, also
                      ``crio-<id>.scope`` (with ``/container`` below) and ``docker-<id>.scope``;
                      ``_`` for ``-`` in the UID
mixed                 the kubelet uses the systemd driver, containerd does not:
                      ``/system.slice/containerd.service/kubepods-pod<uid>.slice:cri-containerd:<id>``
not a container       ``crio-conmon-<id>``: the process that monitors one
====================  =========================================================================

A container that is root on the host (privileged) can move itself anywhere; cgroups give no
protection against that.
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

# Names of the cgroup of the node's init process: it is beside the other cgroups, not above them.
_INIT = ("init.scope", "init")

# A container may make any number of directories; beyond this number /proc is faster.
_MOST_DIRECTORIES = 1024


class CgroupError(Exception):
    """The cgroups of a process are unreadable, or name several containers."""


@dataclass(frozen=True, slots=True, order=True)
class Membership:
    """A directory of one hierarchy of cgroups."""

    controllers: str
    """The hierarchy, for example ``cpu,cpuacct`` or ``name=systemd``; empty for v2."""
    path: str
    """The directory; it begins with ``/..`` if it is outside the reader's cgroup namespace."""


@dataclass(frozen=True, slots=True)
class ContainerCgroup:
    """The cgroups of one container."""

    container_id: str
    """64 hexadecimal digits, lower case."""
    pod_uid: str | None
    """``None`` without a pod's directory above. A static pod has another UID in the API."""
    directories: tuple[Membership, ...]
    """The container's own directories, one for each hierarchy that has it."""


def parse_memberships(text: str) -> tuple[Membership, ...]:
    """Parse ``/proc/<pid>/cgroup``.

    Raises:
        CgroupError: a line does not have the kernel's format.
    """
    found = []
    # Not splitlines: of its line separators the kernel forbids only this one in names.
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
    """Find the container to which a process belongs; ``None`` if it belongs to none.

    The directories of the node's first process, *init*, are skipped: on a node that is itself a
    container (kind, k3d) all others are below them.

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
    """Return the container's ID, its pod's UID and its directory; the ID is empty for none."""
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
        """Find the container of a process; ``None`` if it is in none, or has ended.

        Raises:
            CgroupError: its cgroups are invalid, or name several containers.
            Unavailable: they cannot be read.
        """
        if pid <= 0:
            raise CgroupError(_not_visible("the process"))
        text = self._read(pid)
        return None if text is None else find_container(parse_memberships(text), self._init())

    def containers_of(self, pids: Iterable[int]) -> dict[int, ContainerCgroup]:
        """Find the containers of many processes at once.

        Processes that are in no container, have ended, or are in several containers are left out.

        Raises:
            Unavailable: the cgroups cannot be read.
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
        """Return the processes of a container, those in nested cgroups included, ascending.

        Raises:
            CgroupError: they are in a PID namespace that the agent does not see.
            Unavailable: the cgroups cannot be read.
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
            # Hundreds are read every few seconds: a Path would double the time.
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                return file.read().decode("utf-8", "surrogateescape")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            return None
        except OSError as error:
            raise Unavailable(f"cgroups: {path}: {error.strerror}") from error

    def _directory(self, membership: Membership) -> Path | None:
        """Find a directory of a hierarchy; ``None`` if this mount does not have it."""
        parts = _parts(membership.path)
        if ".." in parts:  # relative to the agent's own cgroup, which is not known
            return None
        for base in self._bases(membership.controllers):
            directory = base.joinpath(*parts)
            if directory.is_dir():
                return directory
        return None

    def _bases(self, controllers: str) -> Sequence[Path]:
        """Return the folders on which a hierarchy may be mounted."""
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
            except CgroupError:  # in two containers at once: it counts for neither
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
    """Read ``cgroup.procs`` of a directory and all below it; ``None`` if that is incomplete."""
    found: set[int] = set()
    waiting, visited = [top], 0
    while waiting:
        directory = waiting.pop()
        visited += 1
        if visited > _MOST_DIRECTORIES:
            return None
        try:
            found.update(map(int, (directory / "cgroup.procs").read_text("ascii").split()))
            with os.scandir(directory) as entries:
                waiting += [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                # A threaded cgroup: its processes are listed in the threaded domain above it, which
                # may be above the container's own directory.
                if directory == top:
                    return None
            elif error.errno not in (errno.ENOENT, errno.ENODEV):  # removed by now
                raise Unavailable(f"cgroups: {directory}: {error.strerror}") from error
    if 0 in found:
        raise CgroupError(_not_visible(f"a process in {top}"))
    return found


def _not_visible(what: str) -> str:
    return f"{what} is in a PID namespace that the agent does not see: it needs hostPID"

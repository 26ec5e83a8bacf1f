"""The files by which the agent and the program that runs the control daemons meet.

::

    <mps-dir>/shares/<key>.json   what one container may use; by the agent
    <mps-dir>/status.json         every daemon, its servers and clients; by the program
    <mps-dir>/lock                locked by the program: the kernel unlocks it when that ends
    <mps-dir>/<set>/pipe          mounted into containers; <set> is a card's UUID, or a digest
    <mps-dir>/<set>/log           the daemon's log files
    <mps-dir>/shm                 mounted into containers and into the program's: /dev/shm of all

All belong to root. JSON files are replaced as a whole, by rename.
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.errors import EnforcementError
from agent.holdings.holding import UNKNOWN, ContainerRef, make_key
from agent.host import directories
from agent.host.disk_errors import explain
from agent.host.node_lock import NodeLock
from placement.pods import PodId

MPS_DIR = Path("/run/gpu-turnstile/mps")
STALE_SECONDS = 5.0
"""A status that is older comes from a program that hangs."""


@dataclass(frozen=True, slots=True)
class Share:
    """What each process of a container may use.

    Attributes:
        cards: the UUIDs, in the order in which the container numbers its cards.
        percent: of the SMs of each card.
        memory: MiB of each card, in the same order; empty while it is not known.
        processes: over how many processes the container's limits were divided.
        daemon: the instance of the daemon that served when the container last started.
    """

    ref: ContainerRef
    cards: tuple[str, ...]
    percent: int
    memory: tuple[int, ...] = ()
    processes: int = 1
    daemon: str = ""

    @property
    def set(self) -> str:
        """The name of its set of cards."""
        return self.cards[0] if len(self.cards) == 1 else make_key("\n".join(sorted(self.cards)))


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A process that is connected to a server; pod and container are empty if not known."""

    pid: int
    pod_uid: str = ""
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """One control daemon.

    Attributes:
        cards: as in :class:`Share`.
        instance: changes whenever the daemon is started; empty while it does not serve.
        problem: why it does not serve.
        percent: the highest share of SMs that it allows a client.
        memory: the most MiB that it allows a client, by card; empty without such a limit.
        servers: state of each server by its process ID: ``INITIALIZING``, ``ACTIVE`` or ``FAULT``.
        keys: of the shares for which it is kept running.
        ended: how it ended last; empty if it never did.
        ends: how often it has ended unasked.
    """

    cards: tuple[str, ...]
    instance: str = ""
    problem: str = "it is being started"
    percent: int = 100
    memory: tuple[int, ...] = ()
    servers: Mapping[str, str] = field(default_factory=dict)
    clients: tuple[MpsClient, ...] = ()
    keys: tuple[str, ...] = ()
    ended: str = ""
    ends: int = 0

    def admits(self, key: str, share: Share) -> bool:
        """Return whether it serves, is kept for a share, and allows a client as much as it has."""
        allowed = list(zip(self.memory, share.memory, strict=False))
        enough = len(allowed) == len(share.memory) and all(most >= mib for most, mib in allowed)
        return bool(self.instance) and key in self.keys and self.percent >= share.percent and enough


Status = Mapping[str, DaemonStatus]
"""The daemons by the name of their set of cards."""


def largest(shares: Iterable[Share]) -> Share:
    """Return what the daemon of a set allows its clients: the most that any of *shares* has."""
    found = list(shares)
    known = [each.memory for each in found if each.memory]
    return replace(
        found[0],
        ref=UNKNOWN,
        processes=1,
        daemon="",
        percent=max(each.percent for each in found),
        memory=tuple(map(max, zip(*known, strict=True))) if known else (),
    )


class MpsFolder:
    """The folder; methods raise ``EnforcementError`` if the disk returns an error."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shares = root / "shares"
        self.shm = root / "shm"
        self.lock = NodeLock(root, "lock")
        self._status = root / "status.json"

    def part(self, cards: str, name: str) -> Path:
        """Return the path of ``pipe`` or ``log`` of a set of cards."""
        return self.root / cards / name

    def make_set(self, cards: str) -> None:
        """Make the folders of a set unless they exist: containers of any user write to ``shm``."""
        pipe, log = self.part(cards, "pipe"), self.part(cards, "log")
        try:
            for path, mode in ((pipe, 0o755), (self.shm, 0o1777), (log, 0o700)):
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(mode)
        except OSError as error:
            raise _translated("make the folders of a daemon", error) from error

    def write_share(self, key: str, share: Share | None) -> None:
        """Replace what a container may use; ``None`` removes it."""
        name = f"{key}.json"
        try:
            with directories.opened_path(self.shares) as folder:
                if share is None:
                    directories.remove(folder, name)
                else:
                    ref = [*share.ref.pod, share.ref.container]
                    text = json.dumps(asdict(share) | {"ref": ref})
                    directories.replace(folder, {name: text.encode()}, mode=0o600)
        except OSError as error:
            raise _translated("write the limits of this container", error) from error

    def changed(self) -> int:
        """Return when a share was last written or removed, ns; 0 if none ever was."""
        return self.shares.stat().st_mtime_ns if self.shares.exists() else 0

    def read_shares(self) -> dict[str, Share]:
        """Return what containers may use, by their keys; unreadable files are left out."""
        found = {}
        try:
            for path in sorted(self.shares.glob("*.json")):
                read = _read(path)
                try:
                    *pod, container = read["ref"]
                    found[path.stem] = Share(
                        ContainerRef(PodId(*pod), container),
                        tuple(read["cards"]),
                        read["percent"],
                        tuple(read["memory"]),
                        read["processes"],
                        read["daemon"],
                    )
                except (KeyError, TypeError, ValueError):
                    continue
        except OSError as error:
            raise _translated("read the limits of containers", error) from error
        return found

    def write_status(self, status: Status) -> None:
        """Replace the status."""
        daemons = {name: asdict(each) for name, each in status.items()}
        text = json.dumps({"at": time.time(), "daemons": daemons})
        with directories.opened_path(self.root) as folder:
            directories.replace(folder, {self._status.name: text.encode()})

    def remove_status(self) -> None:
        """Remove the status: no daemon runs any more."""
        self._status.unlink(missing_ok=True)

    def read_status(self) -> Status | None:
        """Return the daemons; ``None`` if their program does not run."""
        read = _read(self._status)
        if not self.lock.is_taken() or time.time() - read.get("at", 0) > STALE_SECONDS:
            return None
        try:
            return {
                name: DaemonStatus(
                    **each
                    | {list_: tuple(each[list_]) for list_ in ("cards", "memory", "keys")}
                    | {"clients": tuple(MpsClient(**client) for client in each["clients"])}
                )
                for name, each in read["daemons"].items()
            }
        except (KeyError, TypeError):
            return None


def _read(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _translated(doing: str, error: OSError) -> EnforcementError:
    return EnforcementError(f"mps-dir: cannot {doing}: {explain(error)}")

"""Lists of processes that stay true, and go with their containers."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import grpc
import pytest

from agent.allocator.slot_holdings import key_of
from agent.enforcement.container_dirs import ContainerDirs
from agent.enforcement.vcuda.claims import Forbidden
from agent.enforcement.vcuda.container_socket import ContainerSocket
from agent.enforcement.vcuda.registrations import Registrations
from agent.errors import EnforcementError, Unavailable
from agent.runtime.cgroups import CgroupError, Cgroups, ContainerCgroup
from tests.agent.builders import raising
from tests.agent.enforcement.vcuda.vcuda_site import (
    CONFIG,
    ID_A,
    ID_A2,
    IDS_A,
    POD_A,
    POD_B,
    UID_A,
    Site,
    held,
    limits,
    listed,
    pids,
)
from tests.agent.fakes import eventually

ME = os.getpid()


def test_more_processes_than_are_read_are_cut(site: Site, ticket_dir: Path) -> None:
    procs = next(site.mount.rglob("cgroup.procs"))
    procs.write_text("".join(f"{pid}\n" for pid in range(2000, 4000)))
    site.register(ticket_dir)
    assert pids(ticket_dir / ID_A) == tuple(range(2000, 3024))


def test_the_files_of_a_removed_container_are_removed(site: Site, ticket_dir: Path) -> None:
    site.register(ticket_dir, container_name="main")
    site.put(ID_A, POD_A)
    site.runtime.down = True  # then its end is not known
    before = site.runtime.calls
    eventually(lambda: site.runtime.calls > before + 1, "the runtime was called")
    assert pids(ticket_dir / ID_A) == (5, 7, ME)
    site.runtime.down = False  # it has no processes, but it may yet
    before = site.runtime.calls
    eventually(lambda: site.runtime.calls > before + 1, "the runtime was called")
    assert (ticket_dir / ID_A).exists()
    site.runtime.containers.clear()
    eventually(lambda: not (ticket_dir / ID_A).exists(), "its files are removed")
    eventually(lambda: not (ticket_dir / "pids.config").exists(), "and its list is")
    assert limits(ticket_dir) == CONFIG


def test_an_ended_container_is_not_kept_in_the_list(
    site: Site, ticket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its container may linger; nothing is written for it any more, and nothing complained of."""
    site.register(ticket_dir)
    site.admit(held(POD_B))
    site.put(ID_A, POD_A, ME, 99)
    site.run(ID_A2, POD_B)
    site.put(ID_A2, POD_B, ME)
    site.register(ticket_dir)
    site.put(ID_A2, POD_B, ME, 12)
    eventually(listed(ticket_dir / ID_A2, 12, ME), "the others are listed anew")
    assert not (ticket_dir / ID_A).exists()
    assert not any(each.getMessage() == "process list not updated" for each in caplog.records)


def test_containers_registered_before_a_restart_are_kept_listed(
    site: Site, ticket_dir: Path
) -> None:
    site.run(ID_A2, POD_A, "init")
    site.put(ID_A2, POD_A, ME, 3)
    site.entitled[UID_A, "init"] = held(name="init")
    site.register(ticket_dir, container_id=f"crio-{ID_A2}")
    site.run()
    site.put(ID_A, POD_A, ME, 5)
    site.register(ticket_dir, container_name="main")

    leftover = site.state / "tickets" / f".new-{'0' * 20}"

    def meanwhile() -> None:
        assert not site.vcuda.alive
        leftover.mkdir()
        del site.runtime.containers[ID_A2]
        site.put(ID_A2, POD_A)
        site.put(ID_A, POD_A, ME, 5, 6)

    site.restart(meanwhile)
    assert not leftover.exists()
    assert site.vcuda.alive
    for folder in (ticket_dir, ticket_dir / "main", ticket_dir / ID_A):
        eventually(listed(folder, 5, 6, ME), "it is listed anew")
    eventually(
        lambda: not (ticket_dir / ID_A2).exists(), "the one that ended meanwhile is forgotten"
    )
    eventually(lambda: not (ticket_dir / f"crio-{ID_A2}").exists(), "under both names")


@pytest.mark.parametrize("damage", ["cut", "missing", "foreign process"])
def test_a_half_written_file_of_an_earlier_agent_does_no_harm(
    site: Site, ticket_dir: Path, damage: str
) -> None:
    site.register(ticket_dir)
    file = ticket_dir / ID_A / "pids.config"

    def meanwhile() -> None:
        if damage == "cut":
            file.write_bytes(b"123")
        elif damage == "missing":
            file.unlink()
        else:
            (site.proc / str(ME) / "cgroup").write_text("garbage")
            (site.proc / "5" / "cgroup").write_text("garbage")

    site.restart(meanwhile)
    site.put(ID_A, POD_A, ME, 8)
    site.register(ticket_dir)
    assert pids(ticket_dir / ID_A) == (8, ME)


@pytest.mark.parametrize(
    ("problem", "code"),
    [(CgroupError("foreign"), "PERMISSION_DENIED"), (Unavailable("no /proc"), "UNAVAILABLE")],
)
def test_processes_that_cannot_be_written_are_written_the_next_time(
    *,
    site: Site,
    ticket_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
    code: str,
) -> None:
    site.register(ticket_dir)
    with monkeypatch.context() as patch:
        patch.setattr(Cgroups, "pids_of", raising(problem))
        with pytest.raises(grpc.RpcError, match=code):
            site.register(ticket_dir)
    site.put(ID_A, POD_A, ME, 4)
    eventually(lambda: pids(ticket_dir / ID_A) == (4, ME), "it is listed anew")


# --- alone ----------------------------------------------------------------------------------


class Processes:
    """The processes of containers, as a test sets them."""

    def __init__(self) -> None:
        self.of: dict[str, tuple[int, ...]] = {}

    def container_of(self, pid: int, /) -> ContainerCgroup | None:
        return None

    def pids_of(self, ref: ContainerCgroup, /) -> tuple[int, ...]:
        return self.of[ref.container_id]


class Alone:
    """Registrations at one directory."""

    def __init__(self, root: Path) -> None:
        self.dirs = ContainerDirs(root)
        self.processes = Processes()
        self.registrations = Registrations(self.dirs, cast(Cgroups, self.processes))
        self.ticket = self.dirs.make(key_of(IDS_A), POD_A)
        self.ticket_dir = ContainerSocket(self.ticket.digest, self.dirs.open(self.ticket.digest))

    def add(self, container_id: str, *pids: int) -> None:
        self.processes.of[container_id] = pids
        ref = ContainerCgroup(container_id, None, ())
        folders = frozenset({container_id, "", "main"})
        self.registrations.add(ref, self.ticket_dir, folders, CONFIG.encode())


@pytest.fixture
def alone(folder: Path) -> Iterator[Alone]:
    made = Alone(folder / "tickets")
    yield made
    made.ticket_dir.close()


def test_a_container_that_is_late_takes_nothing_from_its_successor(alone: Alone) -> None:
    """Its request waited for the runtime while it was started again."""
    alone.add(ID_A2, 7)
    with pytest.raises(Forbidden, match="its container has ended"):
        alone.add(ID_A)
    alone.processes.of[ID_A2] = (7, 8)
    alone.registrations.refresh(lambda container: container == ID_A)
    files = alone.ticket.files
    assert pids(files) == pids(files / "main") == pids(files / ID_A2) == (7, 8)
    assert not (files / ID_A).exists()


def test_a_list_that_could_not_be_written_is_written_the_next_time(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone.add(ID_A, 7)
    with monkeypatch.context() as patch:
        patch.setattr(
            ContainerDirs,
            "write",
            raising(EnforcementError("disk full")),
        )
        with pytest.raises(EnforcementError):
            alone.add(ID_A, 7, 8)
        alone.registrations.refresh(lambda _container: False)  # nor then, which is no error
    alone.registrations.refresh(lambda _container: False)
    assert pids(alone.ticket.files) == (7, 8)


def test_a_runtime_that_does_not_respond_is_called_once_and_delays_no_list(alone: Alone) -> None:
    for number in range(5):
        alone.add(f"{number:064x}", 7)
        alone.processes.of[f"{number:064x}"] = ()
    alone.add(ID_A, 7)
    alone.processes.of[ID_A] = (7, 8)
    calls = []

    def ended(container: str) -> bool:
        calls.append(container)
        assert pids(alone.ticket.files) == (7, 8)  # running containers were listed before
        raise Unavailable("CRI: DEADLINE_EXCEEDED")

    alone.registrations.refresh(ended)
    assert len(calls) == 1


def test_files_that_cannot_be_removed_are_removed_the_next_time(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone.add(ID_A, 7)
    alone.processes.of[ID_A] = ()
    with monkeypatch.context() as patch:
        patch.setattr(
            ContainerDirs,
            "discard",
            raising(EnforcementError("read-only")),
        )
        alone.registrations.refresh(lambda _container: True)
    assert "files of an ended container not removed" in caplog.messages
    assert (alone.ticket.files / ID_A).exists()
    alone.registrations.refresh(lambda _container: True)
    assert sorted(each.name for each in alone.ticket.files.iterdir()) == [
        "vcuda.config",
        "vcuda.sock",
    ]


def test_a_socket_that_closes_takes_its_registrations_with_it(alone: Alone) -> None:
    alone.add(ID_A, 7)
    alone.processes.of[ID_A] = ()

    def ended(_container: str) -> bool:
        alone.ticket_dir.close()
        return True

    alone.registrations.refresh(ended)
    alone.registrations.refresh(lambda _container: pytest.fail("no container is left"))
    with pytest.raises(EnforcementError, match="directory is not in use any more"):
        alone.registrations.recover(alone.ticket_dir)

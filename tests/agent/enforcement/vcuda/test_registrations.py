"""Lists of processes that stay true, and go with their containers."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from agent.allocator.slot_holdings import key_of
from agent.enforcement.container_dirs import ContainerDirs
from agent.enforcement.vcuda.claims import Forbidden
from agent.enforcement.vcuda.config import encode_pids
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
    UID_A,
    Site,
    held,
    limits,
    listed,
    pids,
)
from tests.agent.fakes import eventually

ME = os.getpid()


def test_containers_registered_before_a_restart_are_kept_listed(
    site: Site, ticket_dir: Path
) -> None:
    site.run(ID_A2, POD_A, "init", pids=(ME, 3))
    site.entitled[UID_A, "init"] = held(name="init")
    site.register(ticket_dir, container_id=f"crio-{ID_A2}")
    site.run(pids=(ME, 5))
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


class Alone:
    """Registrations at one directory, and the processes of containers as a test sets them."""

    def __init__(self, root: Path) -> None:
        self.dirs = ContainerDirs(root)
        self.pids: dict[str, tuple[int, ...]] = {}
        self.processes = SimpleNamespace(
            container_of=lambda _pid: None, pids_of=lambda ref: self.pids[ref.container_id]
        )
        self.registrations = self.make()
        self.ticket = self.dirs.make(key_of(IDS_A), POD_A)
        self.files = self.ticket.files
        self.ticket_dir = ContainerSocket(self.ticket.digest, self.dirs.open(self.ticket.digest))

    def make(self) -> Registrations:
        return Registrations(self.dirs, cast(Cgroups, self.processes))

    def add(self, container_id: str, *pids: int) -> None:
        self.pids[container_id] = pids
        ref = ContainerCgroup(container_id, None, ())
        folders = frozenset({container_id, "", "main"})
        self.registrations.add(ref, self.ticket_dir, folders, CONFIG.encode())

    def refresh(self, *, ended: bool = False) -> None:
        self.registrations.refresh(lambda _container: ended)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    made = Alone(tmp_path / "tickets")
    yield made
    made.ticket_dir.close()


def test_more_processes_than_are_read_are_cut(alone: Alone) -> None:
    alone.add(ID_A, *range(2000, 4000))
    assert pids(alone.files / ID_A) == tuple(range(2000, 3024))


def test_the_files_of_an_ended_container_are_removed(alone: Alone) -> None:
    alone.add(ID_A, 5, 7)
    alone.pids[ID_A] = ()
    alone.registrations.refresh(raising(Unavailable("CRI: UNAVAILABLE")))
    assert pids(alone.files / ID_A) == (5, 7)
    alone.refresh()  # it has no processes, but it may yet
    assert (alone.files / ID_A).exists()
    alone.refresh(ended=True)
    assert not (alone.files / ID_A).exists()
    assert not (alone.files / "pids.config").exists()
    assert limits(alone.files) == CONFIG


@pytest.mark.parametrize("content", [b"123", None, encode_pids([5])])
def test_a_damaged_file_of_an_earlier_agent_does_no_harm(
    alone: Alone, content: bytes | None
) -> None:
    """Cut short, missing, or with a process of another container."""
    alone.add(ID_A, 5, 7)
    file = alone.files / ID_A / "pids.config"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    alone.registrations = alone.make()
    alone.registrations.recover(alone.ticket_dir)
    alone.add(ID_A, 5, 8)
    assert pids(alone.files / ID_A) == (5, 8)


@pytest.mark.parametrize(
    ("step", "problem", "raised"),
    [
        ("pids_of", CgroupError("foreign"), Forbidden),
        ("pids_of", Unavailable("no /proc"), Unavailable),
        ("write", EnforcementError("disk full"), EnforcementError),
    ],
)
def test_a_list_that_cannot_be_read_or_written_is_written_the_next_time(
    *,
    alone: Alone,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    problem: Exception,
    raised: type[Exception],
) -> None:
    alone.add(ID_A, 7)
    with monkeypatch.context() as patch:
        patch.setattr(alone.dirs if step == "write" else alone.processes, step, raising(problem))
        with pytest.raises(raised):
            alone.add(ID_A, 7, 8)
        alone.refresh()  # nor then, which is no error
    alone.refresh()
    assert pids(alone.files) == pids(alone.files / ID_A) == (7, 8)


def test_a_container_that_is_late_takes_nothing_from_its_successor(alone: Alone) -> None:
    """Its request waited for the runtime while it was started again."""
    alone.add(ID_A2, 7)
    with pytest.raises(Forbidden, match="its container has ended"):
        alone.add(ID_A)
    alone.pids[ID_A2] = (7, 8)
    alone.registrations.refresh(lambda container: container == ID_A)
    files = alone.files
    assert pids(files) == pids(files / "main") == pids(files / ID_A2) == (7, 8)
    assert not (files / ID_A).exists()


def test_a_runtime_that_does_not_respond_is_called_once_and_delays_no_list(alone: Alone) -> None:
    for number in range(5):
        alone.add(f"{number:064x}", 7)
        alone.pids[f"{number:064x}"] = ()
    alone.add(ID_A, 7)
    alone.pids[ID_A] = (7, 8)
    calls = []

    def ended(container: str) -> bool:
        calls.append(container)
        assert pids(alone.files) == (7, 8)  # running containers were listed before
        raise Unavailable("CRI: DEADLINE_EXCEEDED")

    alone.registrations.refresh(ended)
    assert len(calls) == 1


def test_files_that_cannot_be_removed_are_removed_the_next_time(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone.add(ID_A, 7)
    alone.pids[ID_A] = ()
    with monkeypatch.context() as patch:
        patch.setattr(ContainerDirs, "discard", raising(EnforcementError("read-only")))
        alone.refresh(ended=True)
    assert "files of an ended container not removed" in caplog.messages
    assert (alone.files / ID_A).exists()
    alone.refresh(ended=True)
    assert {each.name for each in alone.files.iterdir()} == {"vcuda.config", "vcuda.sock"}


def test_a_socket_that_closes_takes_its_registrations_with_it(alone: Alone) -> None:
    alone.add(ID_A, 7)
    alone.pids[ID_A] = ()

    def ended(_container: str) -> bool:
        alone.ticket_dir.close()
        return True

    alone.registrations.refresh(ended)
    alone.registrations.refresh(lambda _container: pytest.fail("no container is left"))
    with pytest.raises(EnforcementError, match="directory is not in use any more"):
        alone.registrations.recover(alone.ticket_dir)

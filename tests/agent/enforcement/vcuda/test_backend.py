"""What a container gets of vcuda-controller, on a real disk with real sockets."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.enforcement.container_dirs import ContainerDirs
from agent.enforcement.vcuda.config import decode
from agent.enforcement.vcuda.socket_server import ContainerSocketServer
from agent.errors import EnforcementError
from agent.holdings.edits import ContainerEdits, Mount
from agent.holdings.holding import UNKNOWN
from tests.agent.builders import holding, raising
from tests.agent.enforcement.vcuda.vcuda_site import (
    ID_A,
    IDS_A,
    IDS_B,
    POD_A,
    POD_B,
    Site,
    held,
)

ME = os.getpid()


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_cores_promise_a_directory_that_is_made_and_memory_carries_nothing(site: Site) -> None:
    given = held()
    edits = site.vcuda.prepare_allocation(given)
    directory = site.directory(IDS_A)
    assert edits == ContainerEdits(mounts=(Mount("/etc/vcuda", str(directory), read_only=True),))
    assert names(directory) == []
    memory = holding(given.ref, (), {"GPU-0": 4})
    assert site.vcuda.prepare_allocation(memory) == ContainerEdits()
    assert names(site.state / "tickets") == [directory.parent.name]
    site.vcuda.prepare_start(given)
    assert names(directory) == ["pids.config", "vcuda.config", "vcuda.sock"]


def test_an_unknown_start_leaves_no_limits_of_another_container(site: Site) -> None:
    ticket_dir = site.admit(held())
    site.vcuda.prepare_start(holding(UNKNOWN, IDS_A))
    assert names(ticket_dir) == ["vcuda.sock"]
    site.run()
    site.put(ID_A, POD_A, ME)
    site.register(ticket_dir, container_id=ID_A)
    with pytest.raises(EnforcementError) as error:
        site.vcuda.prepare_start(holding(UNKNOWN, IDS_B))
    assert str(error.value) == (
        "state-dir: the directory of this container's limits is missing, and its owner is not "
        "known yet: the start will be retried"
    )
    assert len(names(site.state / "tickets")) == 1


def test_directories_of_deleted_pods_are_removed_with_their_sockets(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted, kept = site.admit(held()), site.admit(held(POD_B, core_ids=IDS_B))
    with monkeypatch.context() as patch:
        patch.setattr(ContainerDirs, "prune", raising(EnforcementError("read-only")))
        site.vcuda.prune([POD_B])  # what cannot be removed now is left for later
    assert deleted.exists()
    site.vcuda.prune([POD_B])
    assert not deleted.exists()
    assert names(kept) == ["pids.config", "vcuda.config", "vcuda.sock"]
    site.vcuda.prune([])
    assert names(site.state / "tickets") == []


def test_one_socket_that_cannot_be_listened_at_does_not_stop_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = site.admit(held()), site.admit(held(POD_B, core_ids=IDS_B))
    real = ContainerSocketServer.open
    failed: list[str] = []

    def fails_once(server: ContainerSocketServer, digest: str, folder: int) -> None:
        if not failed:
            failed.append(digest)
            os.close(folder)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(server, digest, folder)

    with monkeypatch.context() as patch:
        patch.setattr(ContainerSocketServer, "open", fails_once)
        site.restart()
        failed.clear()
        with pytest.raises(EnforcementError) as error:  # at a start it is a veto
            site.vcuda.prepare_start(held())
    assert str(error.value) == (
        "state-dir: cannot listen for this container: No space left on device"
    )
    site.run()
    site.put(ID_A, POD_A, ME)
    for given in (held(), held(POD_B, core_ids=IDS_B)):
        site.vcuda.prepare_start(given)
    site.register(first)
    assert (second / "vcuda.sock").exists()


@pytest.mark.parametrize(
    ("name", "error"),
    [("file", r"cannot clean .*: Not a directory: "), ("x" * 100, "cannot listen there: ")],
)
def test_an_impossible_state_directory_is_reported(folder: Path, name: str, error: str) -> None:
    (folder / "file").touch()
    vcuda = Site(folder, folder / name).vcuda
    with pytest.raises(EnforcementError, match=rf"^state-dir: {error}"):
        vcuda.open()
    assert not vcuda.alive
    vcuda.close()


def test_opening_that_fails_leaves_no_server_behind_and_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried until it works: what it started before it failed would add up."""
    vcuda = Site(folder).vcuda
    with monkeypatch.context() as patch:
        patch.setattr(ContainerDirs, "all", raising(EnforcementError("broken disk")))
        with pytest.raises(EnforcementError, match="broken disk"):
            vcuda.open()
    assert not list((folder / "state" / "vcuda").glob("server-*.sock"))
    vcuda.open()
    assert vcuda.alive
    vcuda.close()


# --- the starting container, of several with the same slots -------------------------------


def test_the_first_container_without_exit_code_0_is_the_one_that_starts(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    several = [held(name=name) for name in ("init-a", "init-b", "main")]
    ended = site.runtime.ended[POD_A.uid] = set()
    for starts in ("init-a", "init-b", "main"):
        assert site.vcuda.identify_starting(several).ref.container == starts
        ended.add(starts)
    assert site.vcuda.identify_starting(several).ref.container == "main"  # which is started again
    ended.clear()
    site.runtime.down = True  # then it is the one that stays
    assert site.vcuda.identify_starting(several).ref.container == "main"
    assert "starting container guessed" in caplog.messages


def test_a_static_pod_is_known_by_the_uid_that_the_runtime_has(site: Site) -> None:
    """The API shows it under another."""
    site.run()
    mirror = POD_A._replace(uid="5d0e2b86-5a7c-4b0e-8d4e-2f8d3a0c7b11")
    given = replace(held(mirror), runtime_uid=POD_A.uid)
    ticket_dir = site.admit(given)
    assert decode((ticket_dir / "vcuda.config").read_bytes()).pod_uid == POD_A.uid
    site.put(ID_A, POD_A, ME)
    site.entitled[POD_A.uid, "main"] = given
    site.register(ticket_dir)
    site.vcuda.prune([mirror])
    assert (ticket_dir / ID_A / "vcuda.config").exists()

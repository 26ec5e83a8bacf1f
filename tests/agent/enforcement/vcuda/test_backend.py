"""What a container gets of vcuda-controller: a directory, and registration from end to end."""

import contextlib
import errno
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest

from agent.enforcement.container_dirs import ContainerDirs
from agent.enforcement.vcuda.api import vcuda_pb2 as api
from agent.enforcement.vcuda.config import decode
from agent.enforcement.vcuda.registrations import Registrations
from agent.enforcement.vcuda.socket_server import ContainerSocketServer
from agent.errors import EnforcementError
from agent.holdings.edits import ContainerEdits, Mount
from agent.holdings.holding import UNKNOWN
from placement.pods import PodId
from tests.agent.builders import BLOCK, holding, raising
from tests.agent.enforcement.vcuda.socket_site import dial, receive
from tests.agent.enforcement.vcuda.vcuda_site import (
    CONFIG,
    ID_A,
    ID_A2,
    IDS_A,
    IDS_B,
    POD_A,
    POD_B,
    UID_A,
    Site,
    held,
    limits,
    pids,
    stub,
    vcuda_stub,
)
from tests.agent.fakes import DEADLINE_S, eventually

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
    site.run(pids=(ME,))
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
    with dial(deleted) as lingering, contextlib.suppress(ConnectionResetError):
        lingering.settimeout(DEADLINE_S)
        site.vcuda.prune([POD_B])
        receive(lingering, 1 << 20)  # until it is closed
    assert not deleted.exists()
    assert names(kept) == ["pids.config", "vcuda.config", "vcuda.sock"]
    site.vcuda.prune([])
    assert names(site.state / "tickets") == []


def test_one_directory_that_cannot_be_used_does_not_stop_a_restart_nor_the_others(
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
        patch.setattr(Registrations, "recover", raising(EnforcementError("no disk")))
        site.restart()
        failed.clear()
        with pytest.raises(EnforcementError) as error:  # at a start it is a veto
            site.vcuda.prepare_start(held())
    assert str(error.value) == (
        "state-dir: cannot listen for this container: No space left on device"
    )
    site.run(pids=(ME,))
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
    site = Site(folder, folder / name)
    site.budget = None  # what the process can afford
    vcuda = site.make()
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


def test_a_container_finds_its_limits_at_once_and_its_processes_once_it_registers(
    site: Site, ticket_dir: Path
) -> None:
    """The form for cgroups v2, where vcuda-controller does not know its container's ID."""
    assert limits(ticket_dir) == CONFIG
    assert pids(ticket_dir) == ()
    site.register(ticket_dir, bus_id="0000:3B:00.0", pod_uid=UID_A, container_name="main")
    for folder in (ticket_dir, ticket_dir / "main", ticket_dir / ID_A):
        assert limits(folder) == CONFIG
        assert pids(folder) == (5, 7, ME)
    assert site.results == ["registered"]


def test_the_guessed_owner_of_a_directory_is_corrected(site: Site, ticket_dir: Path) -> None:
    dirs = ContainerDirs(site.state / "tickets")
    (held,) = dirs.all()
    folder = dirs.open(held.digest)
    dirs.correct_owner(held.digest, folder, POD_B)
    os.close(folder)
    site.register(ticket_dir)
    assert dirs.all()[0].owner == POD_A


def test_an_init_container_and_its_successor_share_the_directory_one_after_the_other(
    site: Site, ticket_dir: Path
) -> None:
    """Fact K7."""
    init = held(name="init", blocks=2)
    site.entitled[UID_A, "init"] = init
    site.run(ID_A2, POD_A, "init")
    site.vcuda.prepare_start(init)
    site.put(ID_A2, POD_A, ME)
    site.register(ticket_dir, container_name="init")
    assert limits(ticket_dir).memory == 2 * BLOCK
    assert limits(ticket_dir / "init").container_name == "init"
    site.run(ID_A2, POD_A, "init", ended=True)
    site.vcuda.prepare_start(held())
    assert limits(ticket_dir) == CONFIG
    assert pids(ticket_dir) == ()
    site.put(ID_A, POD_A, ME, 9)
    site.register(ticket_dir, container_name="main")
    assert pids(ticket_dir) == (9, ME)
    eventually(lambda: not (ticket_dir / ID_A2).exists(), "the init container's files are removed")
    eventually(lambda: not (ticket_dir / "init").exists(), "by its name, too")
    assert pids(ticket_dir) == (9, ME)


def _code(site: Site, ticket_dir: Path, **claims: str) -> tuple[str, str | None]:
    with pytest.raises(grpc.RpcError) as error:
        site.register(ticket_dir, **claims)
    return error.value.code().name, error.value.details()


DENIED = ("PERMISSION_DENIED", "this is not the container that these limits are for")


def test_an_unproven_process_is_refused_and_logged(
    site: Site, ticket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What contradicts what: ``test_claims``."""
    assert _code(site, ticket_dir, bus_id="0000:99:00.0") == DENIED
    site.entitled[UID_A, "main"] = held(name="other")
    assert _code(site, ticket_dir) == DENIED
    site.runtime.containers.clear()
    assert _code(site, ticket_dir) == DENIED
    refusals = [vars(each) for each in caplog.records if each.msg == "registration refused"]
    assert {each["peer_pid"] for each in refusals} == {ME}
    assert [each["reason"] for each in refusals] == [
        "it holds no card 0000:99:00.0, but 0000:3B:00.0",
        "these devices are held by default/a other",
        "the container runtime has no such container",
    ]
    assert not (ticket_dir / ID_A).exists()
    assert site.results == ["refused"] * 3


def test_limits_that_cannot_be_written_are_reported_without_a_path(
    site: Site, ticket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwritten = "UNAVAILABLE", "the limits of this container cannot be written"
    for problem, code in (
        (EnforcementError("state-dir: cannot write: No space left on device"), unwritten),
        (RuntimeError("/var/lib/secret"), ("INTERNAL", "internal error")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Registrations, "add", raising(problem))
            assert _code(site, ticket_dir) == code
    site.runtime.down = True
    down = "UNAVAILABLE", "the node's container runtime does not respond"
    assert _code(site, ticket_dir) == down
    assert site.results == ["failed", "failed", "unavailable"]
    site.runtime.down = False
    site.register(ticket_dir)


def test_a_registration_waits_for_an_agent_that_has_just_started(
    site: Site, ticket_dir: Path
) -> None:
    given = site.entitled.pop((UID_A, "main"))
    assert _code(site, ticket_dir) == (
        "FAILED_PRECONDITION",
        "the limits of this container are not known yet",
    )
    assert site.results == ["not-yet"]
    known_at_the_third_call = Mock(side_effect=[None, None, given])
    site.entitled = Mock(get=known_at_the_third_call)
    site.register(ticket_dir)
    assert known_at_the_third_call.call_count == 3


def test_a_connection_that_did_not_come_by_a_containers_socket_is_refused(
    site: Site, ticket_dir: Path
) -> None:
    (server,) = (site.state / "vcuda").glob("server-*.sock")
    assert server.parent.stat().st_mode & 0o777 == 0o700  # only root gets so far
    with (
        grpc.insecure_channel(f"unix:{server}") as channel,
        pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"),
    ):
        vcuda_stub(channel).RegisterVDevice(api.VDeviceRequest(), timeout=DEADLINE_S)
    assert site.results == ["refused"]


def test_a_pod_whose_uid_is_not_known_has_no_limits_before_it_registers(
    site: Site, ticket_dir: Path
) -> None:
    nameless = held(PodId("default", "a", ""))
    site.vcuda.prepare_start(nameless)
    assert names(ticket_dir) == ["vcuda.sock"]
    site.entitled[UID_A, "main"] = nameless
    site.register(ticket_dir, container_name="main")
    assert limits(ticket_dir) == CONFIG


def test_a_large_message_is_refused(site: Site, ticket_dir: Path) -> None:
    with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
        site.register(ticket_dir, pod_uid="x" * 20_000)
    with stub(ticket_dir) as client, pytest.raises(grpc.RpcError):
        client.RegisterVDevice(
            api.VDeviceRequest(), timeout=DEADLINE_S, metadata=[("x-a", "b" * 40_000)]
        )
    site.register(ticket_dir)

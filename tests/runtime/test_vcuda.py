"""vcuda's directory and its registration, seen from inside of containers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.enforcement.vcuda.api import vcuda_pb2 as pb
from agent.enforcement.vcuda.config import VcudaConfig, decode, decode_pids
from agent.injection.inject import DriverFiles
from agent.settings import EnforcementMode
from common.grpc_services import make_stub
from tests.agent.builders import BLOCK
from tests.runtime.conftest import MakeNode
from tests.runtime.gpunode import GpuNode, bus_id
from tests.runtime.pods import Inside

ETC = "/etc/vcuda"
SOCKET = f"{ETC}/vcuda.sock"
STOLEN = "/stolen"

DENIED = grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture
def enforcement(tmp_path: Path) -> dict[str, Any]:
    """The settings of vcuda; what the library would do, the tests do themselves."""
    return {"enforcement": EnforcementMode.VCUDA, "driver_dir": DriverFiles(str(tmp_path))}


@pytest.fixture
def node(make_node: MakeNode, enforcement: dict[str, Any]) -> GpuNode:
    return make_node(2, **enforcement)


def register(inside: Inside, socket: str = SOCKET, **refs: str) -> None:
    """Register as a process of the container does that connects to *socket*."""
    with inside.speaking_to(socket) as near:
        call(near, **refs)


def call(socket: Path, **refs: str) -> None:
    options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        request = pb.VDeviceRequest(**refs)
        make_stub(channel, pb.DESCRIPTOR, "VCUDAService").RegisterVDevice(request, timeout=20)


@contextmanager
def refused(*codes: grpc.StatusCode) -> Iterator[None]:
    """Expect one of *codes* for a registration, by default that it is denied."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() in (codes or (DENIED,)), caught.value


def limits(inside: Inside, folder: str = ETC) -> VcudaConfig:
    return decode(inside.read(f"{folder}/vcuda.config"))


def pids(inside: Inside, folder: str = ETC) -> set[int]:
    return set(decode_pids(inside.read(f"{folder}/pids.config")))


def of_share(uid: str, cores: int, memory: int, card: int = 0) -> VcudaConfig:
    return VcudaConfig(uid, "c0", bus_id(card), memory * BLOCK, cores)


def files_on_host(node: GpuNode, uid: str, container: str = "c0") -> Path:
    """The ticket's directory that is mounted into a pod's container."""
    mounts = node.received(uid, container)["mounts"]
    (mount,) = (each for each in mounts if each["container_path"] == ETC)
    return Path(mount["host_path"])


# --- what is found ------------------------------------------------------------------------


def test_a_container_finds_its_limits_before_it_registers(node: GpuNode) -> None:
    uid = node.admit("a", (30, 8))
    inside = node.start("a", uid)
    assert limits(inside) == of_share(uid, 30, 8)
    assert pids(inside) == set()
    assert inside.list(ETC) == ["pids.config", "vcuda.config", "vcuda.sock"]


def test_root_in_a_container_cannot_write_there(node: GpuNode) -> None:
    uid = node.admit("a", (30, 8))
    inside = node.start("a", uid)
    register(inside)
    for script in (
        f"touch {ETC}/more",
        f"mkdir {ETC}/more",
        f"echo x >{ETC}/vcuda.config",
        f"echo x >{ETC}/{inside.id}/pids.config",
        f"rm {SOCKET}",
        f"mv {SOCKET} {ETC}/away",
        f"ln -s /etc/passwd {ETC}/link",
        f"chmod 777 {ETC}",
        f"chmod 777 {SOCKET}",
    ):
        assert "Read-only file system" in inside.refused(script)
    for script in (f"mount -o remount,rw {ETC}", f"umount {ETC}"):
        assert "ermi" in inside.refused(script)  # permission denied, or not permitted
    assert "ro" in inside.mounts()[ETC]
    assert limits(inside) == of_share(uid, 30, 8)


# --- registration ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """One of the two registrations of vcuda-controller, and the folder that it reads then."""

    refs: dict[str, str]
    folder: str


def forms(uid: str, inside: Inside) -> list[Form]:
    by_name = {"bus_id": bus_id(0), "pod_uid": uid, "container_name": "c0"}
    by_id = {"pod_uid": uid, "container_id": inside.id}
    return [Form(by_name, ETC), Form(by_id, f"{ETC}/{inside.id}")]


def test_registering_from_inside_writes_limits_and_the_host_pids(node: GpuNode) -> None:
    uid = node.admit("a", (30, 8))
    inside = node.start("a", uid)
    inside.sh("sleep 1000 >/dev/null 2>&1 & sleep 1000 >/dev/null 2>&1 &")
    for form in forms(uid, inside):
        stay = inside.host_pids()
        assert len(stay) == 4
        assert inside.main_pid() in stay
        with inside.speaking_to(SOCKET) as near:
            all_pids = inside.host_pids()
            call(near, **form.refs)
            assert stay < pids(inside, form.folder) <= all_pids
        assert limits(inside, form.folder) == of_share(uid, 30, 8)


def test_another_container_is_refused_though_it_has_the_directory(node: GpuNode) -> None:
    """The worst of cases: its pod mounts the host's folder by hand."""
    uid = node.admit("a", (30, 8))
    inside = node.start("a", uid)
    register(inside)
    thief_uid = node.admit("b", (30, 8))
    thief = node.start("b", thief_uid, volumes={STOLEN: files_on_host(node, uid)})
    for refs in (
        {},
        {"pod_uid": thief_uid, "container_name": "c0"},
        {"pod_uid": uid, "container_name": "c0"},
        {"pod_uid": uid, "container_id": inside.id, "bus_id": bus_id(0)},
    ):
        with refused():
            register(thief, f"{STOLEN}/vcuda.sock", **refs)
    plain = node.run_without_cards("plain", volumes={STOLEN: files_on_host(node, uid)})
    with refused(grpc.StatusCode.FAILED_PRECONDITION):  # no source shows that it holds devices
        register(plain, f"{STOLEN}/vcuda.sock", pod_uid=uid, container_name="c0")
    with refused():
        call(files_on_host(node, uid) / "vcuda.sock", pod_uid=uid, container_name="c0")
    assert inside.list(ETC) == [inside.id, "pids.config", "vcuda.config", "vcuda.sock"]
    assert limits(inside) == limits(inside, f"{ETC}/{inside.id}") == of_share(uid, 30, 8)
    assert not pids(inside, f"{ETC}/{inside.id}") & (thief.host_pids() | plain.host_pids())
    register(thief)
    register(inside)


# --- over time ------------------------------------------------------------------------------


def test_a_container_that_is_started_again_has_the_ticket_and_files_of_its_own(
    node: GpuNode,
) -> None:
    uid = node.admit("a", (30, 8))
    first = node.start("a", uid)
    register(first)
    second = node.restart("a", uid, first)
    assert second.id != first.id
    assert limits(second) == of_share(uid, 30, 8)
    register(second)
    assert second.host_pids() <= pids(second, f"{ETC}/{second.id}")
    with refused():
        register(second, container_id=first.id)


def test_an_init_container_and_its_successor_have_one_ticket_and_each_its_limits(
    node: GpuNode,
) -> None:
    with node.holding_back("c0"):
        uid = node.create("a", (30, 8), init=(30, 16))
        node.wait_for_start(uid, "init")
        init = node.start("a", uid, "init")
        register(init, container_name="init")
        assert limits(init).container_name == "init"
        assert limits(init).memory == 16 * BLOCK
        assert init.main_pid() in pids(init)
        init.finish()
    node.wait_for_start(uid, "c0")
    inside = node.start("a", uid)
    assert files_on_host(node, uid) == files_on_host(node, uid, "init")
    assert limits(inside) == of_share(uid, 30, 8)
    assert pids(inside) == set()
    register(inside, container_name="c0")
    assert inside.main_pid() in pids(inside)
    with refused():
        register(inside, container_id=init.id)


def test_equal_pods_started_at_once_never_see_each_others_directory(node: GpuNode) -> None:
    names = ("a", "b", "c", "d")

    def begin(name: str) -> tuple[str, Inside]:
        uid = node.admit(name, (30, 8))
        inside = node.start(name, uid)
        register(inside)
        return uid, inside

    with ThreadPoolExecutor(len(names)) as pool:
        begun = list(pool.map(begin, names))
    seen = [inside for _, inside in begun]
    assert len({files_on_host(node, uid) for uid, _ in begun}) == len(names)
    for uid, inside in begun:
        for folder in (ETC, f"{ETC}/{inside.id}"):
            found = limits(inside, folder)
            assert found == of_share(uid, 30, 8, int(inside.env()["NVIDIA_VISIBLE_DEVICES"][-1]))
        assert inside.list(ETC) == [inside.id, "pids.config", "vcuda.config", "vcuda.sock"]
        others = {pid for other in seen if other is not inside for pid in other.host_pids()}
        assert not pids(inside, f"{ETC}/{inside.id}") & others


def test_a_lingering_container_never_sees_its_successors_files(
    make_node: MakeNode, enforcement: dict[str, Any]
) -> None:
    node = make_node(1, **enforcement)
    old_uid = node.admit("old", (99, 8))
    old = node.start("old", old_uid)
    register(old)
    seen = old.list(ETC)
    tickets, path = node.tickets(old_uid), files_on_host(node, old_uid)
    node.delete("old", old_uid)
    new_uid = node.admit("new", (99, 16))
    assert (node.tickets(new_uid), files_on_host(node, new_uid)) == (tickets, path)
    new = node.start("new", new_uid)
    register(new)
    assert limits(new) == of_share(new_uid, 99, 16)
    assert old.id not in new.list(ETC)
    assert set(old.list(ETC)) <= set(seen)
    if "vcuda.config" in old.list(ETC):
        assert limits(old) == of_share(old_uid, 99, 8)
    with pytest.raises((grpc.RpcError, ConnectionError)):
        register(old)
    assert old.id not in new.list(ETC)

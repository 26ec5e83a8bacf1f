"""Containers that try to get another's limits, or to deny others theirs.

Real processes on real sockets; in which container a process is, a ``/proc`` of the test's says.
"""

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent.enforcement.vcuda.socket_server import ConnectionBudget
from tests.agent.builders import BLOCK
from tests.agent.enforcement.vcuda.socket_site import dial
from tests.agent.enforcement.vcuda.vcuda_site import (
    ID_A,
    ID_B,
    IDS_B,
    POD_A,
    POD_B,
    UID_A,
    UID_B,
    Site,
    held,
    limits,
    open_channel,
    pids,
)
from tests.agent.fakes import DEADLINE_S, eventually

ME = os.getpid()
METHOD = "/vcuda.VCUDAService/RegisterVDevice"


@pytest.fixture
def dir_a(site: Site) -> Path:
    """The victim's: a container with this very process in it."""
    site.run(ID_A, POD_A, pids=(ME,))
    return site.admit(held(blocks=4))


@pytest.fixture
def dir_b(site: Site) -> Path:
    site.run(ID_B, POD_B)
    return site.admit(held(POD_B, core_ids=IDS_B, blocks=8))


def code_of(site: Site, ticket_dir: Path, **claims: str) -> str:
    """Register; gives ``OK``, or the code it was refused with."""
    try:
        site.register(ticket_dir, **claims)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a directory, links not followed."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def served(site: Site, ticket_dir: Path) -> None:
    """The victim is served, and finds what is its own."""
    site.register(ticket_dir, pod_uid=UID_A, container_name="main")
    assert limits(ticket_dir).memory == 4 * BLOCK
    assert limits(ticket_dir / ID_A).pod_uid == UID_A
    assert pids(ticket_dir) == (ME,)


def test_forged_names_pods_and_ids_get_nothing_and_change_nothing(
    site: Site, dir_a: Path, dir_b: Path
) -> None:
    served(site, dir_a)
    before = content(dir_a), content(dir_b)
    site.put(ID_B, POD_B, ME)
    forged = {"pod_uid": UID_A}, {"container_id": ID_A}, {"container_name": "../x"}
    for claims in forged:  # all others are in ``test_claims``
        assert code_of(site, dir_b, **claims) == "PERMISSION_DENIED", claims
    for claims in ({}, *forged, {"pod_uid": UID_B}):  # and at the other's socket
        assert code_of(site, dir_a, **claims) == "PERMISSION_DENIED", claims
    assert (content(dir_a), content(dir_b)) == before
    assert code_of(site, dir_b, pod_uid=UID_B, container_name="main") == "OK"
    assert content(dir_a) == before[0]


_HANDS_ON = """
import os, socket, sys, time
c = socket.socket(socket.AF_UNIX)
c.connect(sys.argv[1])
if os.fork():
    os._exit(0)          # the process that connected has ended
print(os.getpid(), flush=True)
c.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
c.settimeout(120)
try:
    while c.recv(100):
        pass
except OSError:
    pass
"""


def test_a_connection_inherited_from_an_ended_process_is_refused(site: Site, dir_a: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _HANDS_ON, str(dir_a / "vcuda.sock")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.wait(DEADLINE_S)
    served(site, dir_a)
    assert site.results == ["registered"]


def _connect(ticket_dir: Path) -> socket.socket:
    made = dial(ticket_dir)  # blocks where the socket's queue is full
    made.settimeout(DEADLINE_S)
    return made


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GARBAGE = {
    "nothing": b"",
    "http/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "a huge frame": PREFACE + b"\xff\xff\xff\x01\x04\x00\x00\x00\x01" + b"\xff" * 60_000,
    "pings": PREFACE
    + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    + (b"\0\0\x08\6\0\0\0\0\0" + bytes(8)) * 3000,
    "resets": PREFACE
    + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    + b"".join(
        b"\0\0\x01\1\4"
        + n.to_bytes(4, "big")
        + b"\x82"
        + b"\0\0\4\3\0"
        + n.to_bytes(4, "big")
        + bytes(4)
        for n in range(1, 4001, 2)
    ),
    "random": random.Random(5).randbytes(50_000),
}


def test_garbage_stops_no_other_container(site: Site, dir_a: Path, dir_b: Path) -> None:
    for data in GARBAGE.values():
        for ticket_dir in (dir_a, dir_b):
            with _connect(ticket_dir) as connection, contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
        served(site, dir_a)


def test_half_a_request_on_every_connection_keeps_no_thread_from_others(
    site: Site, dir_a: Path, dir_b: Path
) -> None:
    """gRPC gives a thread to a call whose message has not come yet."""
    most = ConnectionBudget().container
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(3 * DEADLINE_S)
        yield from ()

    with contextlib.ExitStack() as held:
        held.callback(never.set)
        calls = []  # one that is forgotten is cancelled
        for _ in range(most):
            channel = held.enter_context(open_channel(dir_b))
            call = channel.stream_unary(METHOD, bytes, bytes)
            calls.append(call.future(nothing(), timeout=3 * DEADLINE_S))
        eventually(
            lambda: [each.name[:6] for each in threading.enumerate()].count("vcuda_") >= most,
            "each call has a thread",
        )
        served(site, dir_a)
        with _connect(dir_b) as refused:
            assert refused.recv(1) == b""
        served(site, dir_a)
        assert not any(each.done() for each in calls)


def test_slots_that_change_their_holder_during_its_registration(site: Site, dir_a: Path) -> None:
    """Whether it is refused or served meanwhile: nothing of one pod is ever in the other's."""
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            with contextlib.suppress(grpc.RpcError, FileNotFoundError):
                site.register(dir_a, container_name="main")

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for pod in (POD_B, POD_A) * 3:
            site.entitled.clear()
            site.admit(held(pod, blocks=4))
            for _ in range(20):
                assert limits(dir_a).pod_uid == pod.uid
                assert pod == POD_A or not (dir_a / ID_A).exists()
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    served(site, dir_a)


_FROM_INSIDE = r"""
set -e
mount --bind "$1" "$2"
mount -o remount,bind,ro "$2"
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$3" -S - "$2" <<'END'
import os, socket, sys
folder = sys.argv[1]
for change in (
    lambda: os.unlink(f"{folder}/vcuda.sock"),
    lambda: os.rename(f"{folder}/vcuda.sock", f"{folder}/x"),
    lambda: os.mkdir(f"{folder}/x"),
    lambda: open(f"{folder}/vcuda.config", "w"),
    lambda: os.chmod(f"{folder}/vcuda.sock", 0),
    lambda: socket.socket(socket.AF_UNIX).bind(f"{folder}/x"),
):
    try:
        change()
    except OSError:
        continue
    sys.exit("it could be changed")
assert len(open(f"{folder}/vcuda.config", "rb").read()) == 8240
connection = socket.socket(socket.AF_UNIX)
connection.connect(f"{folder}/vcuda.sock")
print("connected")
END
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_over_its_read_only_mount_a_user_that_is_not_root_connects_and_changes_nothing(
    site: Site, dir_a: Path, folder: Path
) -> None:
    inside = folder / "etc"
    inside.mkdir()
    folder.chmod(0o755)
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", _FROM_INSIDE, "sh", dir_a, inside, "/usr/bin/python3"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if "unshare" in ran.stderr or "mount:" in ran.stderr or "not found" in ran.stderr:
        pytest.skip(f"no mount namespace of our own: {ran.stderr.strip()}")
    assert (ran.stdout, ran.returncode) == ("connected\n", 0), ran.stderr
    served(site, dir_a)

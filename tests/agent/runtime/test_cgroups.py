"""The container of a process, from cgroup paths of kernels, kubelets and runtimes."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Unavailable
from agent.runtime import cgroups
from agent.runtime.cgroups import (
    CgroupError,
    Cgroups,
    ContainerCgroup,
    Membership,
    find_container,
    parse_memberships,
)
from contract.errors import quote
from tests.agent.builders import cases, patient

UID = "27882189-b4d9-11e9-b287-ec0d9ae89a20"
OTHER_UID = "019c1fe8-0d92-4aa0-b61c-4df58bdde71c"
STATIC = "36b6d6be73b1065af369b3985edafa09"
SLICE_UID = UID.replace("-", "_")
ID, OTHER = "4aa6" * 16, "9e07" * 16

FS = f"/kubepods/burstable/pod{UID}"
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice"
MIXED = f"/system.slice/containerd.service/kubepods-burstable-pod{SLICE_UID}.slice"


def v2(path: str, init: str = "/init.scope") -> ContainerCgroup | None:
    return find_container([Membership("", path)], [Membership("", init)])


ROOTED = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet"
FOUND: dict[str, tuple[str | None, str, str]] = {  # the pod, its container's directory, more inside
    "cgroupfs, guaranteed": (UID, f"/kubepods/pod{UID}/{ID}", ""),
    "cgroupfs, static pod": (STATIC, f"/kubepods/pod{STATIC}/{ID}", ""),
    "cgroupfs below a cgroup root": (UID, f"/a/prefix{FS}/{ID}", ""),
    "systemd, crio with its own cgroup inside": (UID, f"{SLICE}/crio-{ID}.scope", "/container"),
    "systemd, static pod": (
        STATIC,
        f"/kubepods.slice/kubepods-pod{STATIC}.slice/docker-{ID}.scope",
        "",
    ),
    "systemd below a cgroup root": (
        UID,
        f"{ROOTED}-kubepods-besteffort-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        "",
    ),
    "kubelet systemd, containerd cgroupfs, at the top": (
        UID,
        f"/kubepods-burstable-pod{SLICE_UID}.slice:cri-containerd:{ID}",
        "/inner",
    ),
    "another namespace, systemd": (
        UID,
        f"/../../kubepods-burstable-pod{SLICE_UID}.slice/crio-{ID}.scope",
        "/container",
    ),
    "another namespace of the same pod": (None, f"/../cri-containerd-{ID}.scope", ""),
    "no pod": (None, f"/k8s.io/{ID}", ""),
    "a pod without a usual UID": (None, f"/kubepods/pod_123-456/crio-{ID}", ""),
    "a pod's path below another container": (
        None,
        f"/docker/{ID}",
        f"/kubepods/pod{OTHER_UID}/{OTHER}",
    ),
}


@pytest.mark.parametrize(("uid", "directory", "inside"), FOUND.values(), ids=FOUND)
def test_a_container_is_found(uid: str | None, directory: str, inside: str) -> None:
    assert v2(directory + inside) == ContainerCgroup(ID, uid, (Membership("", directory),))


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/system.slice/containerd.service", "/../../..", f"/user.slice/{ID[:32]}"),
        *(FS, SLICE, f"{SLICE}/crio-conmon-{ID}.scope", f"{FS}/crio-conmon-{ID}"),
        f"{FS}/crio-conmon-{ID}/pod{UID}/crio-{ID}",
        *(f"{FS}/{each}" for each in (ID[:-1], f"{ID}0", ID.upper(), f"{ID} (deleted)")),
        *(f"{SLICE}/cri-containerd-{ID}.scope\n", f"{MIXED}:cri-containerd:{ID[:-1]}"),
    ],
)
def test_another_cgroup_is_no_container(path: str) -> None:
    assert v2(path) is None


V1 = f"""\
12:pids:{FS}/{ID}
11:cpuacct,cpu:{FS}/{ID}/inner
4:memory:{FS}/{ID}
1:name=systemd:/system.slice/containerd.service
0::/
"""


def test_all_hierarchies_of_v1_that_show_a_container_are_found() -> None:
    assert parse_memberships("0::/a:b\u2028c\x0bd\r\n") == (Membership("", "/a:b\u2028c\x0bd\r"),)
    assert find_container(parse_memberships(V1)) == ContainerCgroup(
        ID,
        UID,
        (
            Membership("pids", f"{FS}/{ID}"),
            Membership("cpuacct,cpu", f"{FS}/{ID}"),
            Membership("memory", f"{FS}/{ID}"),
        ),
    )


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (f"{FS}/{OTHER}", quote(f"{FS}/{ID}, {FS}/{OTHER}")),
        (
            f"/kubepods/pod{OTHER_UID}/{ID}",
            quote(f"/kubepods/burstable/pod{UID}/{ID}, /kubepods/pod{OTHER_UID}/{ID}"),
        ),
    ],
)
def test_hierarchies_that_name_several_containers_are_refused(other: str, named: str) -> None:
    with pytest.raises(CgroupError) as error:
        find_container([Membership("pids", f"{FS}/{ID}"), Membership("memory", other)])
    assert str(error.value) == f"a process is in the cgroups of several containers: {named}"


@pytest.mark.parametrize(
    ("root", "init"),
    [
        (f"/docker/{OTHER}", f"/docker/{OTHER}"),
        (f"/docker/{OTHER}", f"/docker/{OTHER}/init"),
        (f"/system.slice/docker-{OTHER}.scope", f"/system.slice/docker-{OTHER}.scope/init.scope"),
    ],
)
def test_containers_of_a_node_that_is_a_container_itself_are_found(root: str, init: str) -> None:
    inside = f"{root}/kubelet{FS}/{ID}"
    found = v2(inside, init)
    assert found == ContainerCgroup(ID, UID, (Membership("", inside),))
    assert v2(f"{root}/system.slice", init) is None


def test_only_the_full_cgroup_path_of_init_is_used() -> None:
    """``/docker/a`` is not above ``/docker/ab``; init's container hides no others."""
    found = v2(f"/docker/{OTHER}", f"/docker/{OTHER[:-1]}")
    assert found is not None
    assert found.container_id == OTHER


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("nonsense", '"nonsense"'),
        ("0:/", '"0:/"'),
        ("0::relative", '"0::relative"'),
        ("0::/\n4:memory", '"4:memory"'),
        (f"0::/\n{'y' * 100}", f'"{"y" * 40}"..."{"y" * 40}"'),
    ],
)
def test_a_line_in_another_form_is_refused(text: str, line: str) -> None:
    with pytest.raises(CgroupError) as error:
        parse_memberships(text)
    assert str(error.value) == f"a line of /proc/<pid>/cgroup cannot be read: {line}"


names = st.text(st.characters(exclude_characters="\n/"), min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."}
)
hostile = st.sampled_from(
    [
        ID,
        OTHER,
        f"crio-{OTHER}.scope",
        f"crio-conmon-{ID}.scope",
        f"pod{OTHER_UID}",
        f"kubepods-pod{STATIC}.slice",
        f"kubepods-pod{STATIC}.slice:cri-containerd:{OTHER}",
        "kubepods.slice",
        "x (deleted)",
    ]
)
owns = st.sampled_from(
    [
        f"{FS}/{ID}",
        f"{FS}/crio-{ID}",
        f"{SLICE}/cri-containerd-{ID}.scope",
        f"{MIXED}:cri-containerd:{ID}",
        f"/../../pod{UID}/{ID}",
    ]
)


@patient
@given(owns, st.lists(names | hostile, max_size=6))
def test_no_directory_inside_changes_the_identity_of_a_container(
    own: str, inner: list[str]
) -> None:
    text = f"0::{'/'.join([own, *inner])}\n"
    assert find_container(parse_memberships(text)) == ContainerCgroup(
        ID, UID, (Membership("", own),)
    )


# --- on a file system -----------------------------------------------------------------


class Tree:
    def __init__(self, folder: Path) -> None:
        self.proc, self.mount = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        self.mount.mkdir()
        self.cgroups = Cgroups(self.proc, self.mount)
        self.process(1, "0::/init.scope\n")

    def process(self, pid: int, text: str) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_bytes(text.encode("utf-8", "surrogateescape"))

    def directory(self, path: str, *pids: int) -> Path:
        made = self.mount / path.strip("/")
        made.mkdir(parents=True)
        (made / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return made

    def found(self, pid: int) -> ContainerCgroup:
        found = self.cgroups.container_of(pid)
        assert found is not None
        return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_pids_are_those_of_all_cgroups_inside_a_container(tree: Tree) -> None:
    (tree.mount / "cgroup.controllers").touch()
    own = f"{SLICE}/cri-containerd-{ID}.scope"
    tree.directory(own)
    tree.directory(f"{own}/a", 300, 70)
    tree.directory(f"{own}/a/b", 8, 70)
    tree.directory(f"{SLICE}/cri-containerd-{OTHER}.scope", 9)
    (tree.mount / own[1:] / "way-out").symlink_to(tree.mount)
    tree.process(70, f"0::{own}/a\n")
    assert tree.cgroups.pids_of(tree.found(70)) == (8, 70, 300)


@pytest.mark.parametrize(
    ("directory", "line"),
    [
        ("cpuacct,cpu", "3:cpuacct,cpu:"),
        ("cpu", "3:cpuacct,cpu:"),
        ("systemd", "0::/\n1:name=systemd:"),
        ("unified", "4:memory:/\n0::"),
    ],
)
def test_a_hierarchy_is_found_however_it_is_mounted(tree: Tree, directory: str, line: str) -> None:
    tree.directory(f"{directory}{FS}/{ID}", 7, 5)
    tree.process(7, f"{line}{FS}/{ID}\n")
    assert tree.cgroups.pids_of(tree.found(7)) == (5, 7)


@cases(
    "where, code, most, pids",
    {
        "threaded: its parent lists the processes": ("/a", errno.EOPNOTSUPP, 9, (7, 8)),
        "itself threaded: all processes are read": ("", errno.EOPNOTSUPP, 9, (7, 8, 9)),
        "removed meanwhile": ("/a", errno.ENOENT, 9, (7, 8)),
        "too many cgroups: all processes are read": ("/none", 0, 1, (7, 8, 9)),
        "no error": ("/none", 0, 9, (7, 8, 1001)),
    },
)
def test_processes_are_counted_despite_cgroup_errors(
    *, tree: Tree, monkeypatch: pytest.MonkeyPatch, where: str, code: int, most: int, pids: Any
) -> None:
    own = f"memory{FS}/{ID}"
    tree.directory(own, 7, 8)
    tree.directory(f"{own}/a", 1001)
    for pid in (7, 8, 9):
        tree.process(pid, f"4:memory:{FS}/{ID}\n")
    monkeypatch.setattr(cgroups, "_MOST_DIRECTORIES", most)
    failing(monkeypatch, tree.mount / f"{own}{where}", code)
    assert tree.cgroups.pids_of(tree.found(7)) == pids


def failing(monkeypatch: pytest.MonkeyPatch, where: Path, code: int) -> None:
    """Make reads in a directory fail as the kernel's may."""
    real = Path.read_text

    def read_text(self: Path, *args: Any, **kwargs: Any) -> str:
        if self.parent == where:
            raise OSError(code, os.strerror(code))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)


def test_if_the_directory_is_not_visible_every_process_is_read(tree: Tree) -> None:
    """From another cgroup namespace a path does not lead to the directory."""
    (tree.mount / "cgroup.controllers").touch()
    (tree.proc / "1/cgroup").unlink()  # nor is the first process seen
    own = f"/../../pod{UID}/{ID}"
    tree.process(7, f"0::{own}\n")
    tree.process(30, f"0::{own}/inner\n")
    tree.process(31, f"0::/../../pod{OTHER_UID}/{OTHER}/{ID}\n")
    tree.process(32, f"5:cpu:{FS}/{OTHER}\n4:memory:{FS}/{ID}\n")
    tree.process(33, "0::/\n")
    (tree.proc / "34").mkdir()
    (tree.proc / "self").mkdir()
    assert tree.cgroups.pids_of(tree.found(7)) == (7, 30)


@pytest.mark.parametrize("pid", [0, -1])
def test_a_process_of_another_pid_namespace_is_refused(tree: Tree, pid: int) -> None:
    """The kernel shows such a PID for the other end of a socket that the agent cannot see."""
    with pytest.raises(CgroupError) as error:
        tree.cgroups.container_of(pid)
    reason = "is in a PID namespace that the agent does not see: it needs hostPID"
    assert str(error.value) == f"the process {reason}"
    made = tree.directory(f"memory{FS}/{ID}", 0, 7)
    tree.process(7, f"4:memory:{FS}/{ID}\n")
    with pytest.raises(CgroupError) as error:
        tree.cgroups.pids_of(tree.found(7))
    assert str(error.value) == f"a process in {made} {reason}"


def test_an_unreadable_cgroup_file_is_reported(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tree.directory(f"memory{FS}/{ID}", 7)
    tree.process(7, f"4:memory:{FS}/{ID}\n")
    (tree.proc / "8/cgroup").mkdir(parents=True)
    found = tree.found(7)
    failing(monkeypatch, made, errno.EIO)
    nowhere = Cgroups(tree.proc / "no", tree.mount)
    acts: list[tuple[Callable[[], object], str]] = [
        (lambda: tree.cgroups.pids_of(found), f"{made}: Input/output error"),
        (lambda: tree.cgroups.container_of(8), f"{tree.proc}/8/cgroup: Is a directory"),
        (
            lambda: nowhere.pids_of(ContainerCgroup(ID, UID, ())),
            f"{tree.proc}/no: No such file or directory",
        ),
    ]
    for act, reason in acts:
        with pytest.raises(Unavailable) as error:
            act()
        assert str(error.value) == f"cgroups: {reason}"


def test_of_many_processes_those_in_containers_are_found(tree: Tree) -> None:
    tree.process(7, f"0::{FS}/{ID}\n")
    tree.process(8, f"0::{FS}/{ID}\n")
    tree.process(9, f"1:cpu:{FS}/{ID}\n2:memory:{FS}/{OTHER}\n")  # in two: in none
    tree.process(10, "0::/system.slice\n")
    found = tree.cgroups.containers_of((7, 8, 9, 10, 4711))
    assert {pid: each.container_id for pid, each in found.items()} == {7: ID, 8: ID}
    tree.process(1, "nonsense\n")
    with pytest.raises(Unavailable):
        tree.cgroups.containers_of((7,))

"""The container runtime of these tests: why there may be none, and that nothing of it stays."""

import contextlib
import os
import uuid
from pathlib import Path

import pytest

from tests.agent.fakes import short_dir
from tests.runtime.containerd import Containerd, Unusable, cgroup_hierarchies, containerd
from tests.runtime.pods import Pod


def why_not() -> str:
    with pytest.raises(Unusable) as caught, containerd():
        pass
    return str(caught.value)


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not() == "only root can run containers"


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("containerd", "ctr", "busybox", "cc"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not() == "not installed: runc, unshare"


def test_a_containerd_that_does_not_start_is_told_in_its_own_words(
    runtime: Containerd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = '#!/bin/sh\n[ "$1" = config ] || { echo "cannot do that"; exit 1; }\n'
    (tmp_path / "containerd").write_text(script)
    (tmp_path / "containerd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert why_not() == "containerd does not start: cannot do that"


def test_nothing_of_it_stays_though_the_test_fails(runtime: Containerd) -> None:
    class TestFails(Exception):
        pass

    with short_dir() as hand, contextlib.suppress(TestFails), containerd() as another:
        pod = Pod(another, "a", str(uuid.uuid4()), hand)
        pid = pod.start("main", {}).main_pid()
        assert Path(f"/proc/{pid}").exists()
        raise TestFails
    assert not Path(f"/proc/{pid}").exists()
    assert not another.folder.exists()
    assert str(another.folder) not in Path("/proc/self/mounts").read_text()
    assert not any((each / another.cgroup.lstrip("/")).exists() for each in cgroup_hierarchies())

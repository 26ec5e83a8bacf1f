"""The container runtime of these tests: why there may be none, and that nothing of it stays."""

import contextlib
import uuid
from pathlib import Path

from tests.agent.fakes import short_dir
from tests.runtime.containerd import Containerd, cgroup_hierarchies, containerd
from tests.runtime.pods import Pod


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

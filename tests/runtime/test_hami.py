"""What HAMi-core's library would find, seen from inside of containers."""

from pathlib import Path

import pytest

from agent.settings import EnforcementMode
from tests.agent.builders import write_hami_core
from tests.runtime.conftest import MakeNode
from tests.runtime.gpunode import GpuNode
from tests.runtime.pods import Inside

LIBRARY = "/usr/local/vgpu/libvgpu.so"
SHARED = "/usr/local/vgpu/shared.cache"
PRELOAD = "/etc/ld.so.preload"


@pytest.fixture
def node(make_node: MakeNode, tmp_path: Path) -> GpuNode:
    write_hami_core(tmp_path / "libvgpu.so")
    return make_node(2, enforcement=EnforcementMode.HAMI_CORE, hami_library_dir=tmp_path)


def limits(inside: Inside) -> dict[str, str]:
    names = ("CUDA_", "GPU_CORE_")
    return {name: value for name, value in inside.env().items() if name.startswith(names)}


def test_a_share_finds_its_limits_and_the_library(node: GpuNode) -> None:
    inside = node.run("a", 30, 8)
    assert limits(inside) == {
        "CUDA_DEVICE_SM_LIMIT": "30",
        "GPU_CORE_UTILIZATION_POLICY": "FORCE",
        "CUDA_DEVICE_MEMORY_LIMIT": "2048m",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "2048m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": SHARED,
    }
    assert inside.sh(f"cat {PRELOAD}") == f"{LIBRARY}\n"
    assert inside.sh(f"test -s {LIBRARY} && echo there") == "there\n"


def test_the_shared_file_alone_is_written_to(node: GpuNode) -> None:
    inside = node.run("a", 30, 8)
    inside.sh(f"echo mine >{SHARED}")
    assert inside.sh(f"cat {SHARED}") == "mine\n"
    for path in (LIBRARY, PRELOAD):
        assert "ro" in inside.mounts()[path]
        for script in (f"echo x >{path}", f"chmod 777 {path}"):
            assert "Read-only file system" in inside.refused(script)
        assert "busy" in inside.refused(f"rm {path}")

"""The bench of others' libraries: what is not there is skipped, what disagrees is wrong."""

from pathlib import Path

import pytest

from bench import libraries
from tests.agent.nvml_node import Node, build


def rows(**environment: Path) -> list[tuple[str, str]]:
    (table,) = libraries.run({name: str(path) for name, path in environment.items()}).tables
    return [(str(each[2]), str(each[3])) for each in table.rows]


def test_what_is_not_named_is_skipped_in_words() -> None:
    assert rows() == [
        ("GPU_TURNSTILE_MOCK_NVML is not set", "skipped"),
        ("GPU_TURNSTILE_NVML is not set", "skipped"),
        ("GPU_TURNSTILE_HAMI_CORE is not set", "skipped"),
    ]


@pytest.mark.slow
def test_a_library_is_looked_at_through_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in of NVML takes the place of the mock, and then of a library without a driver."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "one.yaml").touch()
    (tmp_path / "libnvidia-ml.so.1").symlink_to(build() / "libnvidia-ml.so.1")
    (tmp_path / "libvgpu.so").write_text("of another time")
    node = Node(tmp_path / "script")
    monkeypatch.setenv("NVML_STUB", str(node.path))
    assert rows(GPU_TURNSTILE_MOCK_NVML=tmp_path, GPU_TURNSTILE_HAMI_CORE=tmp_path) == [
        ("2 x NVIDIA A100-SXM4-80GB, 0 left out, all linked", "right"),
        ("GPU_TURNSTILE_NVML is not set", "skipped"),
        ("too old", "wrong"),
    ]
    node.fail("nvmlInitWithFlags", 9)
    found = rows(GPU_TURNSTILE_NVML=tmp_path)[1]
    assert found[1] == "right"
    assert "Driver Not Loaded" in found[0]

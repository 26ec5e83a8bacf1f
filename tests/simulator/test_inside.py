from pathlib import Path
from typing import Any

import pytest

from agent.enforcement.vcuda.config import VcudaConfig
from simulator.inside import describe_limits, found_inside, limits_of

WHO = ("default", "p", "main")
LIMITS = VcudaConfig("uid-1", "main", "", memory=1 << 30, utilization=30)


def event(kind: str, pod: str = "p", **detail: Any) -> dict[str, Any]:
    given = {"envs": {}, "devices": [], "mounts": []} | detail
    names = {"namespace": "default", "pod": pod, "container": "main"}
    return {"event": kind, "detail": given} | names


def test_a_file_is_read_where_the_host_has_what_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "vcuda.config").write_bytes(LIMITS.encode())
    mounts = [{"container_path": "/etc/vcuda", "host_path": str(tmp_path), "read_only": True}]
    found = found_inside([event("start", mounts=mounts)], WHO)
    assert found is not None
    assert found.mounts == {"/etc/vcuda": (str(tmp_path), True)}
    assert limits_of(found, "/etc/vcuda") == LIMITS


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (LIMITS, "1024 MiB, 30% of the card's cores; for container main of pod uid-1"),
        (
            VcudaConfig("u", "c", "", 1 << 28, 50, hard_limit=False, limit=80),
            (
                "256 MiB, 50% of the card's cores, up to 80% while they are idle; "
                "for container c of pod u"
            ),
        ),
        (VcudaConfig("u", "c", "", 0, 100, enable=False), "no limit"),
    ],
)
def test_limits_are_written_on_one_line(limits: VcudaConfig, words: str) -> None:
    assert describe_limits(limits) == words

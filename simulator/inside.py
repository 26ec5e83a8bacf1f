"""What a container finds when it starts: environment, device nodes, mounts, its limit file.

The kubelet's trace has what the container was given; files are read where the host has them,
which is what a bind mount shows inside.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agent.enforcement.vcuda.config import CONFIG_NAME, MOUNT_PATH, VcudaConfig, decode
from simulator.kubelet.trace import TraceEvent

_MIB = 1 << 20
LIMITS = f"{MOUNT_PATH}/{CONFIG_NAME}"


def found_inside(trace: Iterable[TraceEvent], uid: str) -> Mapping[str, Any] | None:
    """Return what a pod's container was given at its last start; ``None`` if it never started."""
    starts = (each.detail for each in trace if each.event == "start" and each.pod_uid == uid)
    return max(starts, key=lambda each: each["starts"], default=None)


def read_limits(found: Mapping[str, Any]) -> VcudaConfig:
    """Decode the limit file that a container finds.

    Raises:
        OSError: it finds none.
        InvalidConfig: it is not one.
    """
    for mount in found["mounts"]:
        if mount["container_path"] == MOUNT_PATH:
            return decode(Path(mount["host_path"], CONFIG_NAME).read_bytes())
    raise FileNotFoundError(LIMITS)


def rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Write all of it: kind, name and value."""
    mounts = {each["container_path"]: each for each in found["mounts"]}
    return [
        *(("env", key, value) for key, value in sorted(found["envs"].items())),
        *(("device", each["container_path"], "") for each in found["devices"]),
        *(
            ("mount", path, each["host_path"] + (" (read-only)" if each["read_only"] else ""))
            for path, each in sorted(mounts.items())
        ),
        ("limits", LIMITS, _limits(read_limits(found))),
    ]


def _limits(limits: VcudaConfig) -> str:
    if not limits.enable:
        return "no limit"
    cores = f"{limits.utilization}% of the card's cores"
    if not limits.hard_limit:
        cores += f", up to {limits.limit}% while they are idle"
    return (
        f"{limits.memory // _MIB} MiB, {cores}; for container {limits.container_name} of pod "
        f"{limits.pod_uid}"
    )

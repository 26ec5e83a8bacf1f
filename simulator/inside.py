"""What a container finds when it starts: environment, device nodes, mounts, its limit file.

The kubelet's trace has what the container was given; files are read where the host has them,
which is what a bind mount shows inside.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.enforcement.vcuda.config import CONFIG_NAME, VcudaConfig, decode
from simulator.attribution import Who

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """What one container was given when it started last.

    Attributes:
        envs: environment variables.
        devices: device nodes by path in the container: the host's path.
        mounts: by path in the container: the host's path, and whether it is read-only.
    """

    envs: Mapping[str, str]
    devices: Mapping[str, str]
    mounts: Mapping[str, tuple[str, bool]]

    def read(self, path: str) -> bytes:
        """Read a file as the container would.

        Raises:
            FileNotFoundError: no mount shows it, or the host does not have it.
            OSError: it cannot be read.
        """
        for folder, (host, _) in self.mounts.items():
            if path == folder or path.startswith(f"{folder}/"):
                return Path(f"{host}{path.removeprefix(folder)}").read_bytes()
        raise FileNotFoundError(path)


def found_inside(trace: Iterable[Mapping[str, Any]], who: Who) -> Found | None:
    """Return what a container was given at its last start; ``None`` when it never started.

    Args:
        trace: the kubelet's trace, decoded.
        who: namespace, pod and container.
    """
    found = None
    for event in trace:
        if (event["namespace"], event["pod"], event["container"]) != who:
            continue
        if event["event"] == "start":
            got = event["detail"]
            found = Found(
                envs=got["envs"],
                devices={each["container_path"]: each["host_path"] for each in got["devices"]},
                mounts={
                    each["container_path"]: (each["host_path"], each["read_only"])
                    for each in got["mounts"]
                },
            )
    return found


def limits_of(found: Found, folder: str) -> VcudaConfig:
    """Decode the limit file that a container finds in *folder*.

    Raises:
        OSError: it finds none.
        InvalidConfig: it is not one.
    """
    return decode(found.read(f"{folder}/{CONFIG_NAME}"))


def describe_limits(limits: VcudaConfig) -> str:
    """Write limits on one line."""
    if not limits.enable:
        return "no limit"
    cores = f"{limits.utilization}% of the card's cores"
    if not limits.hard_limit:
        cores += f", up to {limits.limit}% while they are idle"
    return (
        f"{limits.memory // _MIB} MiB, {cores}; for container {limits.container_name} of pod "
        f"{limits.pod_uid}"
    )

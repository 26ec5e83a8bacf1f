"""Check that each running container finds its own limits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.enforcement.vcuda.config import (
    CONFIG_NAME,
    MOUNT_PATH,
    InvalidConfig,
    VcudaConfig,
    decode,
)
from contract.demand import ContainerDemand
from contract.resource import Resource


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """One running container.

    Attributes:
        received: its container edits, from the kubelet.
    """

    uid: str
    container: ContainerDemand
    received: Mapping[str, Any]


def wrong_limits(running: Iterable[RunningContainer], *, block: int) -> list[str]:
    """List every container that finds the limits of another, or none."""
    wrong, owners = [], dict[str, str]()
    for each in running:
        who = f"{each.uid} {each.container.name}"
        folders = [
            mount["host_path"]
            for mount in each.received.get("mounts", ())
            if mount["container_path"] == MOUNT_PATH
        ]
        if len(folders) != 1:
            wrong.append(f"{who}: {len(folders)} mounts at {MOUNT_PATH}")
            continue
        other = owners.setdefault(folders[0], who)
        if other != who:
            wrong.append(f"{who}: has the directory of {other}")
        try:
            found = decode((Path(folders[0]) / CONFIG_NAME).read_bytes())
        except (OSError, InvalidConfig) as error:
            wrong.append(f"{who}: {error}")
            continue
        if found != own_limits(each.uid, each.container, block=block):
            wrong.append(f"{who}: finds {found}")
    return wrong


def own_limits(uid: str, container: ContainerDemand, *, block: int) -> VcudaConfig:
    """Return the limits that a container must find: whole cards have no limit."""
    asked = container.demand
    return VcudaConfig(
        pod_uid=uid,
        container_name=container.name,
        bus_id="",
        memory=asked.most_per_card(Resource.MEMORY) * block if asked.is_share else 0,
        utilization=asked.cores_per_card,
        enable=asked.is_share,
    )

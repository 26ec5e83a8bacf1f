"""Container runtimes, by the version that the kubelet writes into its node's status."""

import re
from collections.abc import Mapping
from typing import Any

_BEFORE_CDI = re.compile(r"containerd://v?(1\.[0-6]\.[^/\s]{1,40})", re.ASCII)
"""1.7 reads CDI specs if ``enable_cdi`` is set, which its status does not show."""


def runtime_of(node: Mapping[str, Any]) -> str:
    """Return a node's container runtime, such as ``containerd://2.3.4``; empty if unknown."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion") or "")


def cdi_problem(runtime: str) -> str:
    """Return why a container runtime reads no CDI specs; empty if it may read them."""
    found = _BEFORE_CDI.fullmatch(runtime)
    return f"containerd {found[1]} reads no CDI specs, 1.7 and newer do" if found else ""


def may_read_cdi(runtime: str) -> bool:
    """Return whether a container runtime is one that reads CDI specs in some version."""
    return runtime.startswith(("containerd://", "cri-o://"))

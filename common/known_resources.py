"""Which resources the kubelet knows: the names in its checkpoint (K27, docs/kubelet-facts.md).

A kubelet silently skips a resource that it does not know, and gives a container the others alone
(K11). It reads the checkpoint when it starts, and writes it after each list of devices (K28). So a
plugin of several resources hides them, by devices that are Unhealthy, until the checkpoint names
all: the proxy does, and the agent where it registers with the kubelet directly.
"""

import json
from pathlib import Path

from common.kubelet_api import CHECKPOINT_FILE

HIDDEN_SECONDS = 5.0
"""Longest time for which a resource is hidden: the checkpoint may be unreadable."""

SHOWN_LATE = "devices shown although the kubelet may not know the plugin's other resources"
"""Log message after that time."""


def known_resources(folder: Path) -> frozenset[str]:
    """Return the names of the resources that the kubelet knows for certain.

    Args:
        folder: the kubelet's device plugin directory.

    Returns:
        The names; empty if there is no checkpoint, or it cannot be read.
    """
    return registered_resources(folder) or frozenset()


def registered_resources(folder: Path) -> frozenset[str] | None:
    """Return the names in the checkpoint, none without a file; ``None`` if it is unreadable."""
    try:
        content = (folder / CHECKPOINT_FILE).read_bytes()
    except FileNotFoundError:
        return frozenset()
    except OSError:
        return None
    try:
        return frozenset(json.loads(content)["Data"]["RegisteredDevices"] or ())
    except (ValueError, TypeError, KeyError, RecursionError):
        return None

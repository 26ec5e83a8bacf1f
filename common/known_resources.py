"""Which resources the kubelet knows: the names in its checkpoint (K27, docs/kubelet-facts.md).

A kubelet silently skips a resource that it does not know, and gives a container the others alone
(K11). It reads the checkpoint when it starts, and writes it after each list of devices (K28). So a
plugin of several resources hides them, by devices that are Unhealthy, until the checkpoint names
all: the proxy does, and the agent where it registers with the kubelet directly.
"""

import json
import logging
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from common.handover import WaitStep
from common.kubelet_api import CHECKPOINT_FILE

log = logging.getLogger(__name__)

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


def wait_known(
    names: AbstractSet[str],
    folder: Path,
    *,
    is_over: Callable[[], bool] = lambda: False,
    **fields: object,
) -> Iterator[WaitStep]:
    """Wait until the kubelet knows resources, as long as they may be hidden; log if it does not.

    Args:
        names: the resources.
        folder: the kubelet's device plugin directory.
        is_over: returns whether there is no use in waiting any more.
        fields: fields of the log line.
    """

    def known() -> bool:
        return names <= known_resources(folder)

    yield WaitStep(lambda: known() or is_over(), HIDDEN_SECONDS)
    if not known() and not is_over():
        log.warning(SHOWN_LATE, extra={**fields, "seconds": HIDDEN_SECONDS})


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

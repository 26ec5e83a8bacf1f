"""The agent's errors, grouped by their cause.

::

    Exception
    ├── SettingsError     common.errors, settings: a flag or the cards file cannot be used
    ├── Refusal           the request: it cannot be served; the pod's author sees the text
    │   ├── ResolutionError   no container matches the call
    │   ├── PlacementError    no card fits
    │   ├── GrantError        the IDs contradict themselves, the request or other containers
    │   ├── ClaimError        a ResourceClaim is not for this node, or contradicts limits or others
    │   └── EnforcementError  files of a container cannot be made, for example on a full disk
    └── Unavailable       common.errors, a dependency: it does not respond now
        ├── KubeletReplaced   the kubelet that made the call has been replaced by another
        ├── CheckpointError   the kubelet's checkpoint cannot be read, or has another format
        ├── DriverFilesError  the host's driver files cannot be found, or copied for containers
        └── DriverUnloaded    the kernel has no GPU driver now; loading it initializes all cards
"""

from common.errors import SettingsError, Unavailable

__all__ = [
    "CheckpointError",
    "ClaimError",
    "DriverFilesError",
    "DriverUnloaded",
    "EnforcementError",
    "GrantError",
    "KubeletReplaced",
    "PlacementError",
    "Refusal",
    "ResolutionError",
    "SettingsError",
    "Unavailable",
]


class Refusal(Exception):
    """The request cannot be served. The message becomes ``pod.status.message`` (fact K9)."""


class ResolutionError(Refusal):
    """No container that waits for devices matches the call."""


class PlacementError(Refusal):
    """No card fits; the message has the reason for each card."""


class GrantError(Refusal):
    """Device IDs that contradict themselves, their container's request or other containers."""


class ClaimError(Refusal):
    """A ResourceClaim that is not for this node, or contradicts its pod's limits or other claims.

    The message becomes an Event on the pod; the kubelet asks again.
    """


class EnforcementError(Refusal):
    """The files that enforce a container's limits cannot be made on this node now."""


class KubeletReplaced(Unavailable):
    """Another kubelet runs now than the one that made the call: nobody waits for the response."""


class CheckpointError(Unavailable):
    """The kubelet's checkpoint does not exist, cannot be read, or has an unknown format."""


class DriverFilesError(Unavailable):
    """The host's driver files cannot be found, or cannot be copied for containers."""


class DriverUnloaded(Unavailable):
    """The GPU driver is not loaded."""

"""The agent's errors, by whose fault it is.

::

    Exception
    ├── SettingsError     common.errors, the admin's: a flag or the cards file cannot be used
    ├── Refusal           the request's: it cannot be served; the text reaches the pod's author
    │   ├── ResolutionError   no container can be asking this
    │   ├── PlacementError    no card fits
    │   ├── GrantError        the IDs contradict themselves, the request or other containers
    │   └── EnforcementError  what a container must find cannot be made: a full disk
    └── Unavailable       common.errors: what we depend on does not answer now
        ├── CheckpointError   the kubelet's checkpoint cannot be read, or has another form
        ├── DriverFilesError  the host's driver files cannot be found, or laid out for containers
        └── DriverUnloaded    the kernel has no GPU driver now; once it has, cards were set up anew
"""

from common.errors import SettingsError, Unavailable

__all__ = [
    "CheckpointError",
    "DriverFilesError",
    "DriverUnloaded",
    "EnforcementError",
    "GrantError",
    "PlacementError",
    "Refusal",
    "ResolutionError",
    "SettingsError",
    "Unavailable",
]


class Refusal(Exception):
    """The request cannot be served. The message becomes ``pod.status.message`` (fact K9)."""


class ResolutionError(Refusal):
    """No container that is known to be waiting can be asking this."""


class PlacementError(Refusal):
    """No card fits; the message says for each card why not."""


class GrantError(Refusal):
    """Device IDs that contradict themselves, their container's request or other containers."""


class EnforcementError(Refusal):
    """What would hold a container to its limits cannot be made on this node now."""


class CheckpointError(Unavailable):
    """The kubelet's checkpoint is not there, cannot be read, or has another form than is known."""


class DriverFilesError(Unavailable):
    """The host's driver files cannot be found, or not be laid out for containers."""


class DriverUnloaded(Unavailable):
    """The GPU driver is not loaded."""

"""What can go wrong inside the simulated kubelet.

::

    KubeletError
    ├── AdmissionFailure    a pod cannot be admitted; the text reaches ``pod.status.message``
    │   └── PodRejected     ... by a handler other than the device manager, with its own reason
    ├── TurnedAway          a simulated misbehavior: the call to the kubelet fails
    ├── PluginCallFailed    a plugin returned an error, or no response
    ├── StartFailure        a container cannot be started now; tried again later
    ├── InvalidPod          an object of the API server is not a pod
    ├── CorruptCheckpoint   the checkpoint file cannot be read
    └── Stopping            the kubelet ends; work in progress is abandoned
        └── CrashHere       a test's hook makes the kubelet crash at this step
"""

import grpc


class KubeletError(Exception):
    """Base of every error of this package."""


class AdmissionFailure(KubeletError):
    """The device manager cannot allocate a container's devices."""


class PodRejected(AdmissionFailure):
    """An admission handler other than the device manager rejects the pod.

    Attributes:
        reason: the ``status.reason``, such as ``NodeAffinity``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TurnedAway(KubeletError):
    """Raised by a :class:`Misbehavior`: the caller of the kubelet's socket gets this error."""

    def __init__(self, message: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(message)
        self.code = code


class PluginCallFailed(KubeletError):
    """A call to a plugin failed; the text is grpc-go's: ``rpc error: code = C desc = D``."""


class StartFailure(KubeletError):
    """A container cannot be started now (``CreateContainerConfigError``)."""


class InvalidPod(KubeletError):
    """Not a pod: a field is missing or has the wrong type."""


class CorruptCheckpoint(KubeletError):
    """The checkpoint file is damaged."""


class Stopping(KubeletError):
    """The kubelet ends; it records, writes and reports nothing more."""


class CrashHere(Stopping):
    """Raised by a hook: the kubelet crashes at this step, as by SIGKILL."""

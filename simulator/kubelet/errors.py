"""What can go wrong inside the simulated kubelet.

::

    KubeletError
    ├── AdmissionFailure    a pod cannot be admitted; the text reaches ``pod.status.message``
    │   └── Rejected        ... by something that is not the device manager, with its own reason
    ├── TurnedAway          a test's misbehaviour turns away who calls the kubelet
    ├── CallFailed          a plugin answered with an error, or not at all
    ├── StartFailure        a container cannot be started now; tried again later
    ├── InvalidPod          an object of the API server that is no pod
    ├── CorruptCheckpoint   the checkpoint file cannot be read
    └── Stopping            the kubelet ends: whatever was under way is abandoned
        └── CrashHere       a test's hook asks the kubelet to die at this very step
"""

import grpc


class KubeletError(Exception):
    """Base of every error of this package."""


class AdmissionFailure(KubeletError):
    """The device manager cannot give a container its devices."""


class PodRejected(AdmissionFailure):
    """An admission handler other than the device manager refuses the pod.

    Attributes:
        reason: the ``status.reason``, such as ``NodeAffinity``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TurnedAway(KubeletError):
    """Raised by a misbehaviour: whoever calls the kubelet's socket gets this instead."""

    def __init__(self, message: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(message)
        self.code = code


class PluginCallFailed(KubeletError):
    """A plugin call failed, in Go's words: ``rpc error: code = C desc = D``."""


class StartFailure(KubeletError):
    """A container cannot be started now (``CreateContainerConfigError``)."""


class InvalidPod(KubeletError):
    """Not a pod: a field is missing or of the wrong kind."""


class CorruptCheckpoint(KubeletError):
    """The checkpoint file is not what was written."""


class Stopping(KubeletError):
    """The kubelet ends; nothing more is recorded, written or said."""


class CrashHere(Stopping):
    """Raised by a hook: die at this step, as SIGKILL would."""

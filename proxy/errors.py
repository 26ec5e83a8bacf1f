"""The errors of the proxy, by cause.

::

    RpcFailed             a call ended with a gRPC status: passed on as it is
    └── BadRegistration   the plugin's fault: reported to the plugin, not to the kubelet
"""

from enum import IntEnum


class Code(IntEnum):
    """The gRPC status codes that the proxy uses or distinguishes."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    INTERNAL = 13
    UNAVAILABLE = 14


class RpcFailed(Exception):
    """A call ended with an error.

    Attributes:
        code: number of the gRPC status.
        text: the status message.
        trailing: the trailing metadata, which may have details of the status.
    """

    def __init__(
        self, code: int, text: str, trailing: tuple[tuple[str, str | bytes], ...] = ()
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.trailing = trailing

    def __str__(self) -> str:
        """Return code and text on one line, for a log."""
        return f"{self.code}: {self.text}"


class BadRegistration(RpcFailed):
    """A plugin's registration, or what it sends, breaks a rule of the device plugin API."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.INVALID_ARGUMENT, text)

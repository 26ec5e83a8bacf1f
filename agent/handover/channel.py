"""Messages between two agents of one node, with open files, over a socket of the node.

Messages are JSON objects, one a packet. Only a process of the same user may speak: root on a
node, whoever runs both where an agent is tried out.
"""

import fcntl
import json
import os
import select
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.errors import HandoverError

SOCKET = "handover.sock"
_MOST_BYTES = 128 * 1024
_MOST_FILES = 250  # SCM_MAX_FD is 253
_QUEUE = 16

Message = Mapping[str, object]


class Channel:
    """One connection between the agent that serves and one that stands by."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over *connection*.

        Raises:
            HandoverError: the peer is a process of another user.
        """
        self._socket = connection
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _pid, user, _group = struct.unpack("3i", peer)
        if user != os.geteuid():
            connection.close()
            raise HandoverError(f"a process of user {user} may not take part in a handover")

    @classmethod
    def connect(cls, folder: Path) -> "Channel":
        """Connect to the agent that serves.

        Raises:
            HandoverError: nobody serves there, or another user does.
        """
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            made.connect(str(folder / SOCKET))
        except OSError as error:
            made.close()
            raise HandoverError(f"{folder / SOCKET}: {error}") from error
        return cls(made)

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def ended(self) -> bool:
        """Whether the peer has hung up, though messages of its may still wait."""
        return bool(self._poll(0) & select.POLLHUP)

    def wait(self, seconds: float) -> bool:
        """Wait until there is something to receive, or the peer has hung up; tell whether."""
        return bool(self._poll(seconds))

    def _poll(self, seconds: float) -> int:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return next((events for _, events in poll.poll(seconds * 1000)), 0)

    def send(self, step: str, content: Message | None = None, files: Sequence[int] = ()) -> None:
        """Send one message, with open files.

        Raises:
            HandoverError: the peer has gone, or does not read.
        """
        data = json.dumps({"step": step, **(content or {})}).encode()
        if len(data) > _MOST_BYTES or len(files) > _MOST_FILES:
            raise HandoverError(
                f"{step}: {len(data)} bytes and {len(files)} files are too much for one message"
            )
        try:
            self._socket.settimeout(5)
            if files:
                socket.send_fds(self._socket, [data], list(files))
            else:
                self._socket.send(data)
        except OSError as error:
            raise HandoverError(f"{step}: {error}") from error

    def send_files(self, step: str, files: Sequence[int]) -> None:
        """Send open files in as many messages as it takes; ``last`` says which ends it.

        Raises:
            HandoverError: as ``send``.
        """
        for begin in range(0, max(len(files), 1), _MOST_FILES):
            last = begin + _MOST_FILES >= len(files)
            self.send(step, {"last": last}, files[begin : begin + _MOST_FILES])

    def receive(self, within: float | None) -> tuple[Message, list[int]]:
        """Wait for a message; its open files belong to the caller.

        Args:
            within: seconds to wait at most; ``None`` waits for ever.

        Raises:
            HandoverError: the peer has gone, is silent, or makes no sense.
        """
        try:
            self._socket.settimeout(within)
            data, files, flags, _ = socket.recv_fds(self._socket, _MOST_BYTES, _MOST_FILES)
        except TimeoutError as error:
            raise HandoverError(f"no word within {within:g} s") from error
        except OSError as error:
            raise HandoverError(str(error)) from error
        try:
            if not data:
                raise HandoverError("the other agent has ended")
            message = json.loads(data)
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or not isinstance(message, dict):
                raise HandoverError("a message that makes no sense")
        except (ValueError, HandoverError) as error:
            for each in files:
                os.close(each)
            if isinstance(error, HandoverError):
                raise
            raise HandoverError(f"a message that makes no sense: {error}") from error
        for each in files:
            fcntl.fcntl(each, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        return message, files

    def expect(self, step: str, within: float) -> tuple[Message, list[int]]:
        """Wait for the message *step*.

        Raises:
            HandoverError: as ``receive``, or it is another message.
        """
        message, files = self.receive(within)
        if message.get("step") != step:
            for each in files:
                os.close(each)
            raise HandoverError(f"{message.get('step')!r} came instead of {step!r}")
        return message, files

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def listen(folder: Path) -> socket.socket:
    """Listen for agents that stand by, instead of whoever did before.

    Raises:
        OSError: the socket cannot be made.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    beside = folder / f".{SOCKET}.new"
    try:
        beside.unlink(missing_ok=True)
        made.bind(str(beside))
        beside.chmod(0o600)
        made.listen(_QUEUE)
        made.settimeout(0)
        beside.rename(folder / SOCKET)
    except OSError:
        made.close()
        raise
    return made

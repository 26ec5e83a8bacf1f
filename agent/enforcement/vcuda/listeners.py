"""A door that is listened at: its socket, and whether another may come in just now."""

import contextlib
import os
import selectors
import socket

from agent.enforcement.vcuda.limits import Account
from agent.enforcement.vcuda.ticket_sockets import TicketSocket, listen, socket_identity


class Listener:
    """A door and its socket. The selector's keys carry it as their data."""

    def __init__(
        self, door: TicketSocket, account: Account, selector: selectors.BaseSelector, pod: str = ""
    ) -> None:
        """Bind the door's socket; the selector is not told before ``attend``.

        Args:
            door: taken over.
            account: what its visitors have used up.
            selector: told when somebody is waited for.
            pod: whose door it is; its digest where nobody knows.

        Raises:
            OSError: a socket cannot be made there; the door is closed.
        """
        self.door = door
        self.account = account
        self.pod = pod or door.digest
        self.attending = False
        self._selector = selector
        try:
            with door.folder() as folder:
                self._socket, self._made = listen(folder)
        except OSError:
            door.close()
            raise

    def attend(self, *, wanted: bool) -> None:
        """Select for new connections only while one may be accepted; others queue."""
        if wanted and not self.attending:
            self._selector.register(self._socket, selectors.EVENT_READ, self)
        elif self.attending and not wanted:
            self._selector.unregister(self._socket)
        self.attending = wanted

    def accept(self) -> socket.socket | None:
        """Let one in; ``None`` when there is none after all.

        Raises:
            OSError: out of descriptors, or the visitor hung up meanwhile.
        """
        with contextlib.suppress(BlockingIOError):
            accepted, _ = self._socket.accept()
            accepted.settimeout(0)
            return accepted
        return None

    def mend(self) -> bool:
        """Listen anew where the socket's file is gone, or is not ours any more.

        Returns:
            Whether that was needed.

        Raises:
            FileNotFoundError: the directory was removed: the ticket has ended.
            OSError: a socket cannot be made there; what there was stays.
        """
        with self.door.folder() as folder:
            if not os.fstat(folder).st_nlink:
                raise FileNotFoundError("the directory was removed")
            if socket_identity(folder) == self._made:
                return False
            listening, made = listen(folder)
        self.attend(wanted=False)
        self._socket.close()
        self._socket, self._made = listening, made
        return True

    def close(self) -> None:
        """Stop listening; the door is closed."""
        self.attend(wanted=False)
        self._socket.close()
        self.door.close()

"""A ticket's socket that is listened at, and whether another may come in just now."""

import contextlib
import os
import selectors
import socket

from agent.enforcement.vcuda.limits import Account
from agent.enforcement.vcuda.ticket_sockets import TicketSocket, listen, socket_identity


class Listener:
    """A ticket's socket. The selector's keys carry it as their data."""

    def __init__(
        self,
        ticket_socket: TicketSocket,
        account: Account,
        selector: selectors.BaseSelector,
        pod: str = "",
    ) -> None:
        """Bind the ticket's socket, which is taken over; the selector is told by ``attend``.

        Raises:
            OSError: a socket cannot be made there; the ticket's socket is closed.
        """
        self.ticket_socket = ticket_socket
        self.account = account
        self.pod = pod or ticket_socket.digest
        self.attending = False
        self._selector = selector
        try:
            with ticket_socket.folder() as folder:
                self._socket, self._made = listen(folder)
        except OSError:
            ticket_socket.close()
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
            OSError: out of descriptors, or the peer hung up meanwhile.
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
        with self.ticket_socket.folder() as folder:
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
        """Stop listening; the ticket's socket is closed."""
        self.attend(wanted=False)
        self._socket.close()
        self.ticket_socket.close()

"""The front of a worker: connections, TLS and whole requests, on one thread that never waits.

A review is a tenth of a millisecond of computing without any I/O: threads would only take
turns at it. What takes long is the network, and a client that sends slowly, or nothing,
must not hold what others need. So everything a client can delay (its handshake, its
request, the taking of its answer) happens here without blocking and within a time;
only a request that has arrived whole is answered, at once.

When there is no room for a connection, the oldest that has not had an answer yet goes:
a client in earnest has one within milliseconds.

Long, because what a connection may do next is decided by all it has done before.
"""

import contextlib
import errno
import os
import selectors
import socket
import ssl
from collections.abc import Callable, Iterable

from webhook.server.connection import Connection, Limits, Observer, Peer, Reply, State
from webhook.server.framing import Framer, Progress

_PIECE = 2**16
_MOST_PIECES = 16  # of one connection before others have their turn
_MOST_DISCARDED = 2**25
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Front:
    """Accepts, shakes hands, reads whole requests, has them answered, writes.

    Not safe between threads.

    Args:
        listeners: sockets that listen.
        context: gives the server's side of TLS for a new connection.
        answer: answers a whole request; raises nothing.
        limits: what a client is granted.
        clock: monotonic seconds.
        observer: is told what happens.
    """

    def __init__(  # noqa: PLR0913 - each is one dependency
        self,
        *,
        listeners: Iterable[socket.socket],
        context: Callable[[], ssl.SSLContext],
        answer: Callable[[bytes, Peer], Reply],
        limits: Limits,
        clock: Callable[[], float],
        observer: Observer,
    ) -> None:
        self._listeners = list(listeners)
        self._context = context
        self._answer = answer
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._selector = selectors.DefaultSelector()
        # Everyone in a state stays there equally long: the first in line is the first to go.
        self._states: dict[State, dict[Connection, None]] = {each: {} for each in State}
        self._unproven: dict[Connection, None] = {}
        self._unread: set[Connection] = set()  # with bytes that no readiness tells of
        self._buffered = 0
        for listener in self._listeners:
            listener.settimeout(0)
            self._selector.register(listener, selectors.EVENT_READ, listener)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return sum(map(len, self._states.values()))

    def wake_on(self, source: int) -> None:
        """Let a turn end when the file descriptor *source* can be read, and empty it."""
        self._selector.register(source, selectors.EVENT_READ, None)

    def turn(self, longest: float) -> None:
        """Do everything that can be done now; wait up to *longest* seconds for the first of it."""
        for key, _ in self._selector.select(0 if self._unread else longest):
            if isinstance(key.data, Connection):
                self._unread.discard(key.data)
                self._on_ready(key.data)
            elif key.data is None:
                _empty(key.fd)
            else:
                self._accept(key.data)
        unread, self._unread = self._unread, set()
        for connection in unread:
            self._on_ready(connection)
        self._end_overdue()

    def stop_accepting(self) -> None:
        """Take what has been connected already, and nothing more."""
        for listener in self._listeners:
            for _ in range(self._limits.connections):
                if not self._accept(listener):
                    break
            self._selector.unregister(listener)
            listener.close()
        self._listeners.clear()

    def drain(self, within: float) -> None:
        """Answer what is on its way, then end every connection.

        Idle ones end at once. Those that have not sent anything yet may have been opened for
        a request that is on its way, and others may not have read their answer: they are
        granted a moment.

        Args:
            within: seconds after which nothing is waited for any more.
        """
        self.stop_accepting()
        began = self._clock()
        while (now := self._clock()) < began + within:
            going = [State.IDLE]
            if now >= began + self._limits.parting:
                going += [State.HANDSHAKE, State.FRESH, State.LINGERING]
            for connection in [each for state in going for each in self._states[state]]:
                self._close(connection)
            if not self.connections:
                break
            self.turn(0.05)
        self.close()

    def close(self) -> None:
        """End every connection now, and listen no more."""
        for listener in self._listeners:
            listener.close()
        for connections in self._states.values():
            for connection in tuple(connections):
                self._close(connection)
        self._selector.close()

    def _accept(self, listener: socket.socket) -> bool:
        try:
            plain, address = listener.accept()
        except OSError as error:  # gone again, or taken by another worker
            if error.errno in (errno.EMFILE, errno.ENFILE) and self.connections:
                self._make_room()
            return False
        while self.connections >= self._limits.connections:
            self._make_room()
        try:
            plain.settimeout(0)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            local = plain.getsockname()
            secure = self._context().wrap_socket(
                plain, server_side=True, do_handshake_on_connect=False
            )
        except OSError:  # gone again
            plain.close()
            return True
        peer = Peer(address[:2], local[:2], verified=False)
        connection = Connection(secure, peer, self._limits)
        self._states[State.HANDSHAKE][connection] = None
        connection.deadline = self._clock() + self._limits.seconds[State.HANDSHAKE]
        self._unproven[connection] = None
        self._selector.register(secure, connection.interest, connection)
        self._observer.connected(1)
        return True

    def _make_room(self) -> None:
        lines = (self._unproven, *(self._states[each] for each in (State.LINGERING, State.IDLE)))
        for line in (*lines, *self._states.values()):
            if line:
                self._end(next(iter(line)), "no-room")
                return

    def _on_ready(self, connection: Connection) -> None:
        if connection not in self._states[connection.state]:
            return  # it was ended a moment ago, to make room
        try:
            match connection.state:
                case State.HANDSHAKE:
                    self._shake_hands(connection)
                case State.WRITING:
                    self._write(connection)
                    self._advance(connection)
                case State.LINGERING:
                    self._discard(connection)
                case _:
                    self._read(connection)
        except (ssl.SSLWantReadError, BlockingIOError):
            self._watch(connection, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._watch(connection, selectors.EVENT_WRITE)
        except OSError as error:  # its client has gone, or does not speak TLS
            if connection.state is State.HANDSHAKE and isinstance(error, ssl.SSLError):
                self._observer.ended(connection.state, "tls")
                self._let_alert_arrive(connection)
            else:
                self._close(connection)

    def _shake_hands(self, connection: Connection) -> None:
        connection.sock.do_handshake()
        if connection.sock.context.verify_mode is not ssl.CERT_NONE:
            verified = bool(connection.sock.getpeercert())
            peer = connection.peer
            connection.peer = Peer(peer.address, peer.local, verified)
        self._watch(connection, selectors.EVENT_READ)
        self._move(connection, State.FRESH)
        self._read(connection)  # a client may have sent more than its part of the handshake

    def _read(self, connection: Connection) -> None:
        for _ in range(_MOST_PIECES):
            data = connection.sock.recv(_PIECE)
            if not data:
                self._close(connection)
                return
            self._receive(connection, data)
            open_still = connection in self._states[connection.state]
            if not open_still or connection.state not in (State.READING, State.IDLE):
                return
        self._unread.add(connection)

    def _receive(self, connection: Connection, data: bytes) -> None:
        framer = connection.framer
        before = len(framer)
        progress = framer.receive(data)
        self._buffered += len(framer) - before
        if connection.state is not State.READING:
            self._move(connection, State.READING)
            self._observer.in_flight(1)
        if progress is Progress.BODY and framer.expects_continue:
            self._promise(connection)
        self._advance(connection)
        if self._buffered > self._limits.buffered:
            reading = self._states[State.READING] or {connection: None}
            largest = max(reading, key=lambda each: len(each.framer))
            self._end(largest, "memory")

    def _promise(self, connection: Connection) -> None:
        if not connection.told_to_continue:
            connection.told_to_continue = True
            connection.sock.send(_CONTINUE)  # so few bytes fit, or the client takes none at all

    def _advance(self, connection: Connection) -> None:
        """Answer what has arrived whole, one after the other."""
        while connection.state is State.READING:
            progress = connection.framer.progress
            if progress not in (Progress.WHOLE, Progress.LAST):
                return
            before = len(connection.framer)
            request = connection.framer.take()
            self._buffered += len(connection.framer) - before
            connection.told_to_continue = False
            reply = self._answer(request, connection.peer)
            connection.outgoing = reply.content
            connection.keep = reply.keep and progress is not Progress.LAST
            self._unproven.pop(connection, None)
            self._move(connection, State.WRITING)
            self._write(connection)

    def _write(self, connection: Connection) -> None:
        while connection.outgoing:
            sent = connection.sock.send(connection.outgoing)
            connection.outgoing = connection.outgoing[sent:]
        self._observer.in_flight(-1)
        self._watch(connection, selectors.EVENT_READ)
        if not connection.keep:
            self._part(connection)
        elif connection.framer.progress is Progress.NOTHING:
            self._move(connection, State.IDLE)
        else:
            self._move(connection, State.READING)
            self._observer.in_flight(1)

    def _part(self, connection: Connection) -> None:
        """Say goodbye and wait for the client to have read it all.

        Closing while its bytes are on their way would reset the connection, and with it
        an answer that it has not read yet.
        """
        self._forget_bytes(connection)
        self._move(connection, State.LINGERING)
        with contextlib.suppress(OSError, ValueError):
            connection.sock.unwrap()
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_WR)
        self._discard(connection)

    def _let_alert_arrive(self, connection: Connection) -> None:
        """Part after a failed handshake: OpenSSL has told the client why."""
        try:
            self._part(connection)
        except BlockingIOError:
            self._watch(connection, selectors.EVENT_READ)
        except OSError:
            self._close(connection)

    def _discard(self, connection: Connection) -> None:
        for _ in range(_MOST_PIECES):
            data = connection.sock.recv(_PIECE)
            connection.discarded += len(data)
            if not data or connection.discarded > _MOST_DISCARDED:
                self._close(connection)
                return
        self._unread.add(connection)

    def _move(self, connection: Connection, state: State) -> None:
        del self._states[connection.state][connection]
        connection.state = state
        connection.deadline = self._clock() + self._limits.seconds[state]
        self._states[state][connection] = None

    def _watch(self, connection: Connection, interest: int) -> None:
        if connection.interest != interest:
            connection.interest = interest
            self._selector.modify(connection.sock, interest, connection)

    def _end_overdue(self) -> None:
        now = self._clock()
        for connections in self._states.values():
            while connections:
                connection = next(iter(connections))
                if connection.deadline > now:
                    break
                self._end(connection, "timeout")

    def _end(self, connection: Connection, why: str) -> None:
        self._observer.ended(connection.state, why)
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection not in self._states[connection.state]:
            return  # ended before, by what was done on its behalf
        del self._states[connection.state][connection]
        if connection.state in (State.READING, State.WRITING):
            self._observer.in_flight(-1)
        self._unproven.pop(connection, None)
        self._unread.discard(connection)
        self._forget_bytes(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        self._observer.connected(-1)

    def _forget_bytes(self, connection: Connection) -> None:
        self._buffered -= len(connection.framer)
        connection.framer = Framer(largest_body=0)


def _empty(source: int) -> None:
    with contextlib.suppress(OSError):
        while len(os.read(source, _PIECE)) == _PIECE:
            pass

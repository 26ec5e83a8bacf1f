"""The table of connections alone: fakes that are closed, a clock of the test's own."""

import pytest

from common.serving.connections import Connections, Limits, State
from tests.common.serving.stages import Told


class Client:
    """A connection that counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    def abort(self) -> None:
        self.closed += 1


class Table:
    """A table of connections, its metrics and its clock."""

    def __init__(self, *, connections: int = 10, buffered: int = 1000) -> None:
        self.told = Told()
        self.now = 1000.0
        self.connections = Connections(
            Limits(connections, buffered), clock=lambda: self.now, observer=self.told
        )

    def open(self, *states: State, answered: bool = False) -> Client:
        """Add a connection and lead it through states."""
        client = Client()
        self.connections.add(client)
        for state in states:
            self.connections.move(client, state)
        if answered:
            self.connections.answered(client)
        return client


def test_connections_and_requests_are_counted() -> None:
    table = Table()
    client = table.open(State.FRESH, State.READING)
    assert (table.told.open, table.told.flying, len(table.connections)) == (1, 1, 1)
    table.connections.move(client, State.WRITING)
    assert table.told.flying == 1
    table.connections.move(client, State.IDLE)
    assert table.told.flying == 0
    table.connections.remove(client)
    table.connections.remove(client)  # a connection can end in two ways at once
    assert (table.told.open, len(table.connections)) == (0, 0)
    assert (table.told.ends, client.closed) == ({}, 0)


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        (State.HANDSHAKE, 10),
        (State.FRESH, 120),
        (State.READING, 15),
        (State.IDLE, 120),
        (State.WRITING, 10),
        (State.LINGERING, 5),
    ],
)
def test_no_state_lasts_forever(state: State, seconds: float) -> None:
    table = Table()
    client = table.open(*([] if state is State.HANDSHAKE else [state]))
    table.now += seconds - 0.1
    table.connections.end_overdue()
    assert client.closed == 0
    table.now += 0.2
    table.connections.end_overdue()
    assert client.closed == 1
    assert table.told.ends == {(state.value, "timeout"): 1}
    assert (table.told.open, table.told.flying) == (0, 0)


def test_bytes_that_trickle_do_not_prolong_a_state() -> None:
    table = Table()
    client = table.open(State.READING)
    table.now += 10
    table.connections.hold(client, 5)
    table.now += 6
    table.connections.end_overdue()
    assert client.closed == 1


def test_a_lingering_connection_is_not_used_again() -> None:
    table = Table()
    client = table.open(State.LINGERING)
    table.connections.move(client, State.READING)
    assert table.told.flying == 0
    table.now += 6
    table.connections.end_overdue()
    assert table.told.ends == {("lingering", "timeout"): 1}
    table.connections.move(client, State.READING)  # bytes may arrive once more
    assert len(table.connections) == 0


def test_the_connection_longest_without_an_answer_makes_room() -> None:
    table = Table(connections=5)
    idle_long = table.open(State.IDLE, answered=True)
    idle = table.open(State.IDLE, answered=True)
    lingering = table.open(State.LINGERING, answered=True)
    reading = table.open(State.READING)
    handshake = table.open()
    order = [reading, handshake, lingering, idle_long, idle]
    for number, expected in enumerate(order):
        assert [each.closed for each in order] == [1] * number + [0] * (5 - number)
        table.open(State.READING, answered=True)
        assert expected.closed == 1
    assert sum(table.told.ends.values()) == 5
    assert {why for _, why in table.told.ends} == {"no-room"}
    assert table.told.open == 5


def test_when_all_are_busy_the_oldest_makes_room() -> None:
    table = Table(connections=2)
    oldest, other = (table.open(State.READING, answered=True) for _ in range(2))
    table.open()
    assert (oldest.closed, other.closed) == (1, 0)


def test_an_empty_table_has_no_room_to_make() -> None:
    table = Table()
    table.connections.make_room()
    assert table.told.ends == {}


def test_the_largest_of_too_many_unfinished_requests_is_closed() -> None:
    table = Table(buffered=1000)
    small, large, answered = (table.open(State.READING) for _ in range(3))
    for client, size in ((small, 300), (answered, 500), (large, 400)):
        table.connections.hold(client, size)
        if client is answered:
            table.connections.answered(client)
    table.connections.hold(small, 350)
    assert table.told.ends == {}
    table.connections.hold(small, 601)
    assert table.told.ends == {("reading", "memory"): 1}
    assert (small.closed, large.closed) == (1, 0)
    table.connections.hold(small, 5000)  # it may still be reading
    assert large.closed == 0


def test_only_connections_in_the_named_states_are_closed() -> None:
    table = Table()
    clients = {state: table.open(*({state} - {State.HANDSHAKE})) for state in State}
    table.connections.close(State.IDLE, State.FRESH)
    assert {state for state, each in clients.items() if each.closed} == {State.IDLE, State.FRESH}
    table.connections.close(*State)
    assert {each.closed for each in clients.values()} == {1}
    assert (table.told.open, table.told.flying, table.told.ends) == (0, 0, {})

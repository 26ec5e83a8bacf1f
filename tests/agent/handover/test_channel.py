"""The lock, the messages between two agents, and who may speak."""

import multiprocessing
import os
import shutil
import socket
from pathlib import Path

import pytest

from agent.errors import HandoverError
from agent.handover.channel import SOCKET, Channel, listen
from agent.handover.lock import LOCK, ServingLock
from tests.agent.fakes import DEADLINE_S

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")


def pair() -> tuple[Channel, Channel]:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(one), Channel(two)


# --- the lock -------------------------------------------------------------------------


def test_one_agent_has_the_lock_and_the_next_when_it_is_released(folder: Path) -> None:
    first = ServingLock.try_take(folder / "f")
    assert first is not None
    assert ServingLock.try_take(folder / "f") is None
    first.release()
    second = ServingLock.try_take(folder / "f")
    assert second is not None
    second.release()


def test_nobody_else_can_look_into_the_folder(folder: Path) -> None:
    lock = ServingLock.try_take(folder / "f")
    assert lock is not None
    assert (folder / "f").stat().st_mode & 0o777 == 0o700
    assert (folder / "f" / LOCK).stat().st_mode & 0o777 == 0o600
    lock.release()


def test_a_lock_that_was_handed_on_outlives_the_one_who_took_it(folder: Path) -> None:
    first = ServingLock.try_take(folder / "f")
    assert first is not None
    inherited = ServingLock(os.dup(first.descriptor))
    first.release()
    assert ServingLock.try_take(folder / "f") is None
    inherited.release()


def test_a_lock_whose_file_was_removed_covers_nothing(folder: Path) -> None:
    lock = ServingLock.try_take(folder / "f")
    assert lock is not None
    assert lock.covers(folder / "f")
    shutil.rmtree(folder / "f")
    assert not lock.covers(folder / "f")
    second = ServingLock.try_take(folder / "f")
    assert second is not None
    assert not lock.covers(folder / "f")
    lock.release()
    second.release()


def test_a_file_in_the_folders_place_is_told(folder: Path) -> None:
    (folder / "f").touch()
    with pytest.raises(OSError, match=r"Not a directory|exists"):
        ServingLock.try_take(folder / "f")


# --- messages -------------------------------------------------------------------------


def test_messages_and_files_arrive_as_they_were_sent(folder: Path) -> None:
    here, there = pair()
    reader, writer = os.pipe()
    here.send("take", {"a": [1, "ü"]}, files=[writer])
    os.close(writer)
    message, files = there.expect("take", DEADLINE_S)
    assert message == {"step": "take", "a": [1, "ü"]}
    os.write(files[0], b"x")
    assert os.read(reader, 1) == b"x"
    assert not os.get_inheritable(files[0])
    for each in (*files, reader):
        os.close(each)
    here.close()
    there.close()


def test_more_files_than_a_packet_can_carry_come_in_several() -> None:
    here, there = pair()
    reader, writer = os.pipe()
    here.send_files("connections", [reader] * 600)
    came, last = 0, False
    while not last:
        message, files = there.expect("connections", DEADLINE_S)
        came, last = came + len(files), bool(message["last"])
        for each in files:
            os.close(each)
    assert came == 600
    for each in (reader, writer):
        os.close(each)
    here.close()
    there.close()


def test_no_files_at_all_are_one_message() -> None:
    here, there = pair()
    here.send_files("connections", [])
    assert there.expect("connections", DEADLINE_S) == ({"step": "connections", "last": True}, [])
    here.close()
    there.close()


def test_an_end_is_seen_though_messages_wait() -> None:
    here, there = pair()
    assert not there.ended
    here.send("told")
    assert there.wait(DEADLINE_S)
    here.close()
    assert bool(there.ended)
    there.expect("told", DEADLINE_S)
    with pytest.raises(HandoverError, match="the other agent has ended"):
        there.receive(DEADLINE_S)
    with pytest.raises(HandoverError, match=r"told: .*Broken pipe"):
        there.send("told")
    there.close()


@pytest.mark.parametrize("data", [b"nonsense", b"[]", b"\xff", b"1" + b"0" * 200_000], ids=repr)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(two)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    one.send(data)
    with pytest.raises(HandoverError, match="makes no sense"):
        channel.receive(DEADLINE_S)
    one.close()
    channel.close()


def test_another_message_than_the_one_expected_is_an_error_and_its_files_are_closed() -> None:
    here, there = pair()
    reader, writer = os.pipe()
    here.send("take", files=[reader])
    os.close(reader)
    with pytest.raises(HandoverError, match="'take' came instead of 'told'"):
        there.expect("told", DEADLINE_S)
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    os.close(writer)
    here.close()
    there.close()


def test_silence_ends_after_a_while() -> None:
    here, there = pair()
    with pytest.raises(HandoverError, match=r"no word within 0\.05 s"):
        there.receive(0.05)
    here.close()
    there.close()


# --- who may speak --------------------------------------------------------------------


def test_nobody_to_connect_to_is_told(folder: Path) -> None:
    with pytest.raises(HandoverError, match=r"handover\.sock: .*No such file"):
        Channel.connect(folder)


def test_a_successor_listens_in_the_place_of_the_one_before(folder: Path) -> None:
    first = listen(folder)
    second = listen(folder)
    second.settimeout(DEADLINE_S)
    caller = Channel.connect(folder)
    second.accept()[0].close()
    assert (folder / SOCKET).stat().st_mode & 0o777 == 0o600
    for each in (first, second, caller):
        each.close()


def _as_nobody(folder: str) -> None:
    os.setgid(65534)
    os.setuid(65534)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(f"{folder}/{SOCKET}")
    made.recv(1)


@needs_root
def test_another_user_may_not_speak_even_where_it_reaches_the_socket(folder: Path) -> None:
    listener = listen(folder)
    listener.settimeout(DEADLINE_S)
    folder.chmod(0o755)
    (folder / SOCKET).chmod(0o666)
    process = multiprocessing.get_context("fork").Process(target=_as_nobody, args=(str(folder),))
    process.start()
    accepted, _ = listener.accept()
    with pytest.raises(HandoverError, match="a process of user 65534 may not take part"):
        Channel(accepted)
    process.join(DEADLINE_S)
    listener.close()

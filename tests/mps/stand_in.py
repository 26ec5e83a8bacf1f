#!/usr/bin/env -S python3 -I -S
"""A stand-in for nvidia-cuda-mps-control, nvidia-cuda-mps-server and nvidia-smi, in one file.

It is started under one of these names. It follows NVIDIA's documentation of MPS (architecture,
control commands, environment variables) as far as gpu-turnstile depends on it, and refuses what the
real programs refuse: a second daemon in a pipe folder, unknown commands and servers, limits that
are no percentage or no size, ordinals of cards that the daemon does not have. As in the real ones,
``set_default_...`` counts for servers that start later. What the real client and daemon say to each
other is not published, so that is made up: a client sends ``client PERCENT LIMITS`` and stays
connected; it gets the percentage and the MiB of each card that it may use. The client is in
tests/runtime/stand_in_driver.c.

Beside the folder of this file ``switches`` has files for tests: ``no-multi-user`` (an old driver),
``broken`` (a daemon that ends at once), ``modes/<uuid>`` (compute modes, written by nvidia-smi).
"""

import contextlib
import os
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

SWITCHES = Path(__file__).resolve().parent.parent / "switches"
PIPES = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
CARDS = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]


def mib(text: str) -> int:
    """Read a size such as 512M or 2G."""
    match = re.fullmatch(r"([0-9]+)([MG])", text)
    if match is None:
        raise ValueError(f"Invalid memory limit {text}")
    return int(match[1]) * (1024 if match[2] == "G" else 1)


def percent(text: str) -> float:
    """Read a percentage."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not 0 < float(text) <= 100:
        raise ValueError(f"Invalid active thread percentage {text}")
    return float(text)


def ordinal(text: str) -> int:
    """Read the ordinal of a card."""
    if not text.isdecimal() or int(text) >= len(CARDS):
        raise ValueError(f"Invalid device {text}")
    return int(text)


class Limits:
    """What a client may use at most."""

    def __init__(self, percentage: float = 100.0, memory: dict[int, int] | None = None) -> None:
        self.percent = percentage
        self.memory = dict(memory or {})


class Daemon:
    """The control daemon: one server for all users, or for the user of the first client."""

    def __init__(self, *, multi_user: bool) -> None:
        self.default = Limits()
        self.multi_user = multi_user
        self.server: subprocess.Popen[bytes] | None = None
        self.limits = Limits()
        self.state = "ACTIVE"
        self.user = 0
        self.clients: dict[socket.socket, int] = {}
        self.waiting: list[tuple[socket.socket, int, int, str]] = []
        self.running = True

    def run(self) -> None:
        PIPES.mkdir(parents=True, exist_ok=True)
        control = PIPES / "control"
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as other:
            other.connect(str(control))
            sys.exit("An instance of this daemon is already running")
        control.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(control))
        control.chmod(0o777)
        listening.listen(128)
        (PIPES / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
        selector = selectors.DefaultSelector()
        selector.register(listening, selectors.EVENT_READ)
        while self.running:
            for key, _ in selector.select():
                if key.fileobj is listening:
                    selector.register(listening.accept()[0], selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    self.hear(key.fileobj, selector)
        control.unlink()

    def hear(self, one: socket.socket, selector: selectors.BaseSelector) -> None:
        data = b""
        with contextlib.suppress(ConnectionResetError):
            data = one.recv(65536)
        words = data.decode().split()
        if not words:
            self.clients.pop(one, None)
            selector.unregister(one)
            one.close()
            if not self.clients:
                self.state = "ACTIVE"  # all clients of a fault have ended
                waiting, self.waiting = self.waiting, []
                for each in waiting:
                    self.connect(*each)
        elif words[0] == "client":
            creds = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _ = struct.unpack("3i", creds)
            self.connect(one, pid, uid, " ".join(words[1:]))
        else:
            try:
                reply = self.command(*words)
            except (TypeError, ValueError, KeyError) as error:
                reply = f"error {error}"
            one.sendall(f"{reply}\0".encode())

    def connect(self, one: socket.socket, pid: int, uid: int, wanted: str) -> None:
        uid = 0 if self.multi_user else uid
        if self.server is not None and uid != self.user:
            if self.clients:
                self.waiting.append((one, pid, uid, wanted))  # until the others have ended
                return
            self.end_server()
        if self.state == "FAULT":
            one.sendall(b"error CUDA_ERROR_MPS_SERVER_NOT_READY\n")
            return
        self.start_server(uid)
        share, _, limits = wanted.partition(" ")
        own = {ordinal(k): mib(v) for k, v in re.findall(r"([0-9]+)=([0-9]+[MG])", limits)}
        memory = {
            each: min(own.get(each, 1 << 30), self.limits.memory.get(each, 1 << 30))
            for each in range(len(CARDS))
        }
        self.clients[one] = pid
        most = min(percent(share), self.limits.percent)
        one.sendall(f"{most} {' '.join(map(str, memory.values()))}\n".encode())

    def start_server(self, uid: int) -> None:
        if self.server is None:
            program = [sys.executable, __file__, "--server"]
            self.server = subprocess.Popen(program, stdin=subprocess.DEVNULL)
            self.limits = Limits(self.default.percent, self.default.memory)
            self.state, self.user = "ACTIVE", uid

    def end_server(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server = None

    def of(self, pid: str) -> Limits:
        if self.server is None or str(self.server.pid) != pid:
            raise ValueError(f"Server {pid} not found")
        return self.limits

    def command(self, name: str, *words: str) -> str:  # noqa: PLR0911 -- a table
        if name == "get_server_list":
            return str(self.server.pid) if self.server is not None else ""
        if name == "get_server_status":
            self.of(*words)
            return self.state
        if name == "get_client_list":
            self.of(*words)
            return "\n".join(map(str, self.clients.values()))
        if name == "start_server":
            self.start_server(int(words[1]))
            return ""
        if name == "quit":
            self.end_server()
            self.running = False
            return ""
        if name == "stand_in_fault":
            self.state = "FAULT"
            return ""
        what = re.fullmatch(
            r"(set|get)_(default_)?(active_thread_percentage|device_pinned_mem_limit)", name
        )
        if what is None:
            raise ValueError(f"Unknown command {name}")
        limits = self.default if what[2] else self.of(words[0])
        rest = words if what[2] else words[1:]
        if what[1] == "get":
            if what[3] == "active_thread_percentage":
                return str(limits.percent)
            found = limits.memory.get(ordinal(*rest))
            return f"{found}M" if found is not None else "unlimited"
        if what[3] == "active_thread_percentage":
            limits.percent = percent(*rest)
            return str(limits.percent)
        device, size = rest
        limits.memory[ordinal(device)] = mib(size)
        return ""


def send() -> None:
    """Send commands from standard input, as the real program does."""
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(str(PIPES / "control"))
        except OSError:
            sys.exit("Cannot find MPS control daemon process")
        for line in sys.stdin:
            if line.strip():
                one.sendall(line.encode())
                reply = b""
                while not reply.endswith(b"\0"):
                    piece = one.recv(65536)
                    if not piece:
                        sys.exit("Connection lost")
                    reply += piece
                text = reply.decode().rstrip("\0")
                if text.startswith("error "):
                    sys.exit(text.removeprefix("error "))
                if text:
                    sys.stdout.write(f"{text}\n")


def smi(arguments: list[str]) -> None:
    """Show or set a card's compute mode, in the words of nvidia-smi."""
    mode = SWITCHES / "modes" / arguments[1]
    if arguments[2] == "-c":
        if arguments[3] not in ("DEFAULT", "EXCLUSIVE_PROCESS", "PROHIBITED"):
            sys.exit(f"Unable to set the compute mode: Invalid Argument {arguments[3]}")
        mode.parent.mkdir(parents=True, exist_ok=True)
        mode.write_text(arguments[3].capitalize())
        return
    sys.stdout.write(f"{mode.read_text() if mode.exists() else 'Default'}\n")


def main() -> None:
    """Be the program that the name says."""
    arguments = sys.argv[1:]
    if Path(sys.argv[0]).name == "nvidia-smi":
        smi(arguments)
    elif arguments == ["--server"]:
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text("nvidia-cuda-mps-server")
        signal.pause()
    elif not arguments:
        send()
    else:
        if (SWITCHES / "broken").exists():
            sys.exit("Failed to initialize the driver")
        multi_user = "-multiuser-server" in arguments
        if multi_user and (SWITCHES / "no-multi-user").exists():
            sys.exit("Unrecognized option -multiuser-server")
        unknown = {*arguments} - {"-f", "-multiuser-server"}
        if unknown or "-f" not in arguments:
            sys.exit(f"Unrecognized option {' '.join(unknown)}")
        if not CARDS:
            sys.exit("No devices")
        Daemon(multi_user=multi_user).run()


if __name__ == "__main__":
    main()

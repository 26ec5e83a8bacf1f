"""Commands to ``nvidia-cuda-mps-control`` and ``nvidia-smi``, which belong to the driver.

The daemon's own program also sends commands to it: it reads them from its standard input.
"""

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.enforcement.mps.files import Share
from common.errors import Unavailable

PROGRAM = "nvidia-cuda-mps-control"
STATES = ("INITIALIZING", "ACTIVE", "FAULT")
_PROC = Path("/proc")


def environment(driver_dir: Path | None) -> dict[str, str]:
    """Return the environment in which the driver's programs are found.

    *driver_dir* has ``bin`` and ``lib64``, as the agent's ``--driver-dir auto`` makes it from the
    host's root or the driver container; without it NVIDIA's container runtime has added them.
    """
    found = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ}
    if driver_dir is not None:
        found["PATH"] = f"{driver_dir / 'bin'}:{found.get('PATH', os.defpath)}"
        found["LD_LIBRARY_PATH"] = str(driver_dir / "lib64")
    return found


@dataclass(frozen=True, slots=True)
class Control:
    """Sends commands to one daemon.

    Every method raises ``Unavailable`` if the daemon does not respond in time, or refuses.

    Attributes:
        env: environment of the daemon, with its folders and cards.
        seconds: how long a response may take; on a node under load that is long.
    """

    env: Mapping[str, str]
    seconds: float

    def send(self, *commands: str) -> str:
        """Send commands together; return the response without spaces around it."""
        return run([PROGRAM], self.env, self.seconds, *commands)

    def servers(self) -> dict[str, tuple[str, list[int]]]:
        """Return the state of each server, and its clients' process IDs, by its own ID."""
        found = {}
        for server in self.send("get_server_list").split():
            words = self.send(f"get_server_status {server}", f"get_client_list {server}").split()
            state = next((each for each in words if each in STATES), "UNKNOWN")
            found[server] = state, [int(each) for each in words if each.isdecimal()]
        return found

    def allow(self, most: Share, servers: Iterable[str]) -> None:
        """Set the most that a client may have, for *servers* that run, and for later ones."""
        commands = []
        for prefix, server in (("set_default_", ""), *(("set_", f"{each} ") for each in servers)):
            commands.append(f"{prefix}active_thread_percentage {server}{most.percent}")
            for ordinal, mib in enumerate(most.memory):
                commands.append(f"{prefix}device_pinned_mem_limit {server}{ordinal} {mib}M")
        self.send(*commands)

    def set_compute_mode(self, card: str, mode: str) -> str:
        """Set a card's compute mode by ``nvidia-smi``; return the one before, such as ``Default``.

        Raises ``Unavailable`` also if that program is missing.
        """
        smi = ["nvidia-smi", "-i", card]
        query = [*smi, "--query-gpu=compute_mode", "--format=csv,noheader"]
        before = run(query, self.env, self.seconds)
        if before.lower() != mode.lower():
            run([*smi, "-c", mode.upper()], self.env, self.seconds)
        return before


def run(command: Sequence[str], env: Mapping[str, str], seconds: float, *lines: str) -> str:
    """Run a program with *lines* as its input, and return its output.

    Raises:
        Unavailable: it is missing, takes too long or fails.
    """
    what = lines[0] if lines else " ".join(command)
    try:
        ended = subprocess.run(  # noqa: S603 -- the driver's programs
            command,
            env=dict(env),
            input="".join(f"{each}\n" for each in lines),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{what}: no response in {seconds:g} s") from error
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}: set --driver-dir") from error
    output = ended.stdout.strip()
    if ended.returncode:
        reason = (ended.stderr.strip() or output or f"status {ended.returncode}").splitlines()[-1]
        raise Unavailable(f"{what}: {reason}")
    return output


def kill_leftovers(pipes: Path, proc: Path = _PROC) -> None:
    """Kill what is left of a daemon that has ended: its servers have the same pipe folder."""
    mark = b"\0CUDA_MPS_PIPE_DIRECTORY=%s\0" % bytes(pipes)
    for each in proc.iterdir() if proc.is_dir() else ():
        with suppress(OSError):
            ours = (each / "comm").read_bytes().startswith(b"nvidia-cuda-mps")
            if ours and mark in b"\0" + (each / "environ").read_bytes():
                os.kill(int(each.name), signal.SIGKILL)

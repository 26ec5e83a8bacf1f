"""One control daemon: started, told what clients may have, watched, and started again."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent.enforcement.mps.control import PROGRAM, Control, kill_leftovers
from agent.enforcement.mps.files import DaemonStatus, MpsClient, MpsFolder, Share
from agent.runtime.cgroups import Cgroups
from common.errors import Unavailable

log = logging.getLogger("agent.enforcement.mps")

_POLL_SECONDS = 0.05
_START_SECONDS = 60.0
_MOST_SILENT = 3
"""A daemon that does not respond so many times in a row hangs, and is killed."""
_QUICK_SECONDS = 10.0
_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses before a restart, by how often the daemon has ended soon after its start."""
EXCLUSIVE = "Exclusive_Process"


@dataclass(frozen=True, slots=True)
class DaemonPace:
    """Times in seconds.

    Attributes:
        check: between two checks of a daemon.
        response: how long a response may take. To kill a daemon that is only slow ends all clients.
    """

    check: float = 5.0
    response: float = 10.0


class Daemon(threading.Thread):
    """Runs the daemon of one set of cards until :meth:`end`."""

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        folder: MpsFolder,
        most: Share,
        env: Mapping[str, str],
        *,
        multi_user: bool = True,
        exclusive: bool = False,
        pace: DaemonPace,
    ) -> None:
        """Prepare; *most* is what a client may have."""
        super().__init__(name=f"mps-{most.set}", daemon=True)
        self.wanted = most
        self._status = DaemonStatus(most.cards)
        self._ending = threading.Event()
        self._pipes, self._logs = (folder.part(most.set, each) for each in ("pipe", "log"))
        self._modes = folder.part(most.set, "modes")
        self._folder = folder
        self._control = Control(
            {
                **env,
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": ",".join(most.cards),
                "CUDA_MPS_PIPE_DIRECTORY": str(self._pipes),
                "CUDA_MPS_LOG_DIRECTORY": str(self._logs),
            },
            pace.response,
        )
        self._options = ["-multiuser-server"] if multi_user else []
        self._exclusive = exclusive
        self._pace = pace
        self._processes = Cgroups()

    @property
    def status(self) -> DaemonStatus:
        """What the daemon does now; may be read from any thread."""
        if self._ending.is_set():
            return replace(self._status, instance="", problem="it is being ended")
        return self._status

    def end(self) -> None:
        """Make the daemon quit; the thread ends once it has."""
        self._ending.set()

    def run(self) -> None:
        """Keep the daemon running."""
        quick = 0
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                why = self._serve()
            except Unavailable as error:
                why = str(error)
            except OSError as error:
                why = f"{error.filename or PROGRAM}: {error.strerror}"
            self._clear()
            if self._ending.is_set():
                break
            quick = quick + 1 if time.monotonic() - began < _QUICK_SECONDS else 0
            log.error("MPS daemon has ended", extra={"cards": self._status.cards, "reason": why})
            self._status = DaemonStatus(
                self._status.cards, problem=why, ended=why, ends=self._status.ends + 1
            )
            self._ending.wait(_PAUSES[min(quick, len(_PAUSES)) - 1] if quick else 0)
        self._restore_modes()
        log.info("MPS daemon is stopped", extra={"cards": self._status.cards})

    def _serve(self) -> str:
        """Run the daemon once; return why it has ended.

        Raises:
            Unavailable: it refuses a command.
        """
        self._folder.make_set(self.wanted.set)
        self._clear()
        self._set_modes()
        output = self._logs / "output.log"
        with output.open("wb") as log_file:
            process = subprocess.Popen(  # noqa: S603 -- the driver's program
                [PROGRAM, "-f", *self._options],
                env=self._control.env,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return self._watch(process, output)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _watch(self, process: "subprocess.Popen[bytes]", output: Path) -> str:
        started, checked, silent = time.monotonic(), 0.0, 0
        allowed: Share | None = None
        while process.poll() is None:
            if self._ending.is_set():
                self._quit(process)
                return "it was told to"
            now, wanted = time.monotonic(), self.wanted
            if now - checked >= self._pace.check or allowed != wanted:
                try:
                    servers = self._control.servers()
                    if allowed != wanted:
                        self._control.allow(wanted, servers)
                        allowed = wanted
                    self._report(process, wanted, servers)
                    checked, silent = time.monotonic(), 0
                except Unavailable as error:
                    if allowed is None and now - started < _START_SECONDS:
                        time.sleep(_POLL_SECONDS)
                        continue  # it does not listen yet
                    checked, silent = time.monotonic(), silent + 1
                    if silent >= _MOST_SILENT:
                        return f"it hangs ({error}), and was killed"
            time.sleep(_POLL_SECONDS)
        lines = output.read_text(errors="replace").split("\n")
        said = next((f": {each}" for each in reversed(lines) if each.strip()), "")
        code = process.returncode
        return f"{signal.Signals(-code).name if code < 0 else f'status {code}'}{said[:200]}"

    def _report(
        self,
        process: "subprocess.Popen[bytes]",
        most: Share,
        servers: Mapping[str, tuple[str, list[int]]],
    ) -> None:
        pids = [pid for _, clients in servers.values() for pid in clients]
        owners = self._processes.containers_of(pids)
        clients = (
            MpsClient(
                pid, (found.pod_uid or "") if found else "", found.container_id if found else ""
            )
            for pid, found in ((pid, owners.get(pid)) for pid in sorted(pids))
        )
        if not self._status.instance:
            log.info("MPS daemon serves", extra={"cards": self._status.cards})
        self._status = replace(
            self._status,
            instance=self._status.instance or f"{process.pid}-{time.time_ns()}",
            problem="",
            percent=most.percent,
            memory=most.memory,
            servers={server: state for server, (state, _) in servers.items()},
            clients=tuple(clients),
        )

    def _quit(self, process: "subprocess.Popen[bytes]") -> None:
        with contextlib.suppress(Unavailable, subprocess.TimeoutExpired):
            self._control.send("quit")
            process.wait(self._control.seconds)

    def _clear(self) -> None:
        """Kill its servers and remove its sockets; containers have the folder mounted."""
        kill_leftovers(self._pipes)
        for each in self._pipes.iterdir() if self._pipes.is_dir() else ():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)

    # --- compute mode: only with the flag ----------------------------------------------------

    def _set_modes(self) -> None:
        """Make cards exclusive, and note the mode before, also for the next program."""
        for card in self._status.cards if self._exclusive else ():
            before = self._control.set_compute_mode(card, EXCLUSIVE)
            if not (noted := self._modes / card).exists():
                self._modes.mkdir(exist_ok=True)
                noted.write_text(before)

    def _restore_modes(self) -> None:
        for noted in self._modes.iterdir() if self._modes.is_dir() else ():
            try:
                self._control.set_compute_mode(noted.name, noted.read_text())
                noted.unlink()
            except (Unavailable, OSError) as error:
                extra = {"card": noted.name, "reason": str(error)}
                log.error("compute mode not restored", extra=extra)

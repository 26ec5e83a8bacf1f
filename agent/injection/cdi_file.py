"""CDI specs on disk: reads the host's, and writes ours if those do not match the cards."""

import json
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from agent.cards.cards_file import decode_yaml
from agent.errors import EnforcementError, SettingsError
from agent.holdings.edits import ContainerEdits
from agent.host.directories import opened_path, replace
from agent.host.disk_errors import explain
from agent.injection.cdi import (
    SpecFile,
    names_on_host,
    own_names,
    parse_spec,
    spec_document,
)
from common.text import cut
from contract.inventory import Inventory

log = logging.getLogger(__name__)

HOST_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""The folders in which container runtimes look for specs, by ascending priority."""

FILE_NAME = "gpu-turnstile.json"
_MOST_BYTES = 1 << 19
_LONGEST_PROBLEM = 200
_WRONG_SUFFIX = ".yml"
_SUFFIXES = (".json", ".yaml", _WRONG_SUFFIX)

# Identity of a file's content: inode, times, size.
_State = tuple[int, int, int, int]


class CdiFile:
    """The CDI names of a node's cards, and our spec. Safe to share between threads."""

    def __init__(
        self,
        directory: Path,
        *,
        common: Callable[[], ContainerEdits],
        locate: Callable[[str], str] = str,
        host_dirs: Iterable[Path] = HOST_DIRS,
        on_host_specs: Callable[[str], None] = lambda _problem: None,
    ) -> None:
        """Prepare; nothing is read or written yet.

        Our spec is in *directory*, which the runtime must read. *common* returns the edits of every
        container with a card. *locate* returns the path on the host of a device node, by its path
        in containers. *on_host_specs* is called with why the host's specs are not used although
        ours has no driver files, with an empty text if they are, and when that changes.
        """
        self._directory = directory
        self._common = common
        self._locate = locate
        self._host_dirs = tuple(dict.fromkeys((*host_dirs, directory)))
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[_State | str, SpecFile]] = {}
        self._on_host_specs = on_host_specs
        self._reported: str | None = None

    @property
    def path(self) -> Path:
        """The path of our spec."""
        return self._directory / FILE_NAME

    def refresh(self, inventory: Inventory) -> Mapping[str, str]:
        """Return every card's full CDI name, by UUID; write our spec if the host's do not match.

        If the host's own spec matches the cards, its names are returned and ours is not needed. An
        existing spec of ours stays and is updated: the kubelet restarts containers with the names
        of their allocation (fact K12), and the runtime rejects unknown names.

        Raises:
            EnforcementError: our spec is needed and cannot be written.
        """
        if not inventory.cards:
            return {}  # a spec without devices would be invalid
        with self._lock:
            found = names_on_host(inventory, self._host_specs())
            self._report(found.problem)
            if found.problem:
                self._write(inventory)
                return own_names(inventory)
            if self.path.exists():
                try:
                    self._write(inventory)
                except EnforcementError as error:  # no new container needs it
                    log.warning("old CDI spec not updated", extra={"reason": str(error)})
            return found.by_uuid

    def _report(self, problem: str) -> None:
        """Report why the host's specs are not used, unless ours has driver files, too."""
        if self._common().mounts:
            problem = ""
        if problem == self._reported:
            return
        if problem:
            more = {"path": str(self.path), "reason": problem}
            log.warning("CDI specs of the host not used, ours has no driver files", extra=more)
        self._reported = problem
        self._on_host_specs(problem)

    # --- ours --------------------------------------------------------------------------

    def _write(self, inventory: Inventory) -> None:
        """Write our spec unless it exists, complete and readable for the runtime."""
        document = spec_document(inventory, self._common(), self._locate)
        data = (json.dumps(document, indent=2) + "\n").encode()
        try:
            if self._is_written(data):
                return
            # Its temporary name is one that no runtime reads.
            with opened_path(self._directory) as folder:
                replace(folder, {FILE_NAME: data}, synced=True)
        except OSError as error:
            log.error(
                "cannot write a CDI spec", extra={"path": str(self.path), "reason": str(error)}
            )
            raise EnforcementError(
                f"cdi-dir: cannot write the CDI spec of this node's cards: {explain(error)}"
            ) from error
        log.info("wrote a CDI spec", extra={"path": str(self.path)})

    def _is_written(self, data: bytes) -> bool:
        try:
            found = self.path.lstat()
            regular = stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o644
            return regular and found.st_size == len(data) and self.path.read_bytes() == data
        except FileNotFoundError:
            return False

    # --- the host's --------------------------------------------------------------------

    def _host_specs(self) -> list[list[SpecFile]]:
        """Read every spec of the host, directory by directory."""
        known, self._known = self._known, {}
        found = []
        for directory in self._host_dirs:
            paths, problem = _spec_files(directory)
            specs = [SpecFile(str(directory), problem=problem)] if problem else []
            for path in paths:
                if path == self.path:
                    continue
                state = _state(path)
                before = known.get(path)
                if before is None or before[0] != state:
                    before = (state, _read(path, state))
                self._known[path] = before
                specs.append(before[1])
            found.append(specs)
        return found


def _spec_files(directory: Path) -> tuple[list[Path], str]:
    """Return the files that may be meant as specs, and why they cannot be listed."""
    try:
        return sorted(each for each in directory.iterdir() if each.suffix in _SUFFIXES), ""
    except (FileNotFoundError, NotADirectoryError):
        return [], ""
    except OSError as error:
        log.warning("cannot list CDI specs", extra={"path": str(directory), "reason": str(error)})
        return [], f"cannot be listed: {error.strerror or error}"


def _state(path: Path) -> _State | str:
    """Return the identity of the content, or why it cannot be read."""
    try:
        found = path.stat()
    except OSError as error:
        return error.strerror or "stat failed"
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if found.st_size > _MOST_BYTES:
        return f"it is larger than {_MOST_BYTES} bytes"
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _read(path: Path, state: _State | str) -> SpecFile:
    """Read one spec; log one that cannot be used."""
    try:
        if path.suffix == _WRONG_SUFFIX:
            raise ValueError("container runtimes read only .json and .yaml")
        if isinstance(state, str):
            raise ValueError(state)
        text = _text(path)
        spec = parse_spec(json.loads(text) if path.suffix == ".json" else decode_yaml(text))
    except (OSError, ValueError, RecursionError, SettingsError) as error:
        log.warning("CDI spec of the host ignored", extra={"path": str(path), "reason": str(error)})
        return SpecFile(str(path), problem=cut(" ".join(str(error).split()), _LONGEST_PROBLEM))
    return SpecFile(str(path), spec)


def _text(path: Path) -> str:
    """Read a file; it may have been replaced by anything since its ``stat``."""
    # Without O_NONBLOCK opening a pipe would wait for a writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        data = file.read(_MOST_BYTES + 1) or b""
    if len(data) > _MOST_BYTES:
        raise SettingsError(f"it is larger than {_MOST_BYTES} bytes")
    return data.decode()

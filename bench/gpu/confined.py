"""Run a program with the variables and mounts of an ``Allocate`` response.

The program has its own mount namespace with overlays on ``/etc`` and ``/usr/local``, so that mount
points can be created there. Everything else is this machine's.
"""

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.holdings.edits import ContainerEdits, Mount

_OVERLAID = ("/etc", "/usr/local")
_UNSHARE = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")))
_SECONDS = 60


class NotHere(Exception):
    """This machine does not support the check."""


class ProgramFailed(Exception):
    """The program failed or did not end in time."""


def check() -> None:
    """Check that programs can be confined on this machine.

    Raises:
        NotHere: mount namespaces are not available.
    """
    try:
        run(ContainerEdits(), ["true"], {})
    except (OSError, ProgramFailed) as error:
        raise NotHere(f"no mount namespace: {error}") from error


def run(
    edits: ContainerEdits,
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    before: str = ":",
) -> tuple[str, str]:
    """Run a program; return its standard output and standard error.

    Args:
        edits: the container edits with variables and mounts.
        command: the program and its arguments.
        variables: further environment variables.
        before: a shell command that runs before the mounts.

    Raises:
        OSError: the program could not be started.
        ProgramFailed: the program failed; the message is its last line.
    """
    with tempfile.TemporaryDirectory() as own:
        script = "\n".join(
            (
                f"set -e\nmount -t tmpfs none {own}",
                *(_overlay(each, f"{own}{each}") for each in _OVERLAID),
                before,
                *map(_bind, edits.mounts),
                f"exec {shlex.join(command)}",
            )
        )
        with subprocess.Popen(  # noqa: S603 - what is measured
            [*_UNSHARE, "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | dict(variables) | dict(edits.envs),
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=_SECONDS)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)
                raise ProgramFailed(f"still running after {_SECONDS} s") from error
    if process.returncode:
        lines = errors.strip().splitlines() or [f"exited with status {process.returncode}"]
        raise ProgramFailed(lines[-1])
    return output, errors


def _overlay(path: str, own: str) -> str:
    options = f"lowerdir={path},upperdir={own}/upper,workdir={own}/work"
    return f"mkdir -p {own}/upper {own}/work; mount -t overlay -o {options} none {path}"


def _bind(mount: Mount) -> str:
    source, target = shlex.quote(mount.host), shlex.quote(mount.container)
    parent = shlex.quote(str(Path(mount.container).parent))
    folder = Path(mount.host).is_dir()
    make = f"mkdir -p {target}" if folder else f"mkdir -p {parent}; test -e {target} || >{target}"
    return f"{make}; mount -o {'bind,ro' if mount.read_only else 'bind'} {source} {target}"

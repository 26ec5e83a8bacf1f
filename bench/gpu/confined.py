"""A program with what an ``Allocate`` answer gives a container: its variables and its mounts.

It has a mount namespace of its own, in which ``/etc`` and ``/usr/local`` are overlaid, so that
the mounts find a place. All else is this machine's.
"""

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.allocator.grants import ContainerEdits, Mount

_OVERLAID = ("/etc", "/usr/local")
_UNSHARE = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")))
_SECONDS = 60


class NotHere(Exception):
    """This machine cannot do it."""


class ProgramFailed(Exception):
    """The program did not end well."""


def check() -> None:
    """Try whether programs can be confined here.

    Raises:
        NotHere: they cannot.
    """
    try:
        run(ContainerEdits(), ["true"], {})
    except (OSError, ProgramFailed) as error:
        raise NotHere(f"no mount namespace: {error}") from error


def run(
    answer: ContainerEdits,
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    before: str = ":",
) -> tuple[str, str]:
    """Run a program, having run *before* in a shell; return its output and its errors.

    Raises:
        OSError: it could not be begun.
        ProgramFailed: with its last line.
    """
    with tempfile.TemporaryDirectory() as own:
        script = "\n".join(
            (
                f"set -e\nmount -t tmpfs none {own}",
                *(_overlay(each, f"{own}{each}") for each in _OVERLAID),
                before,
                *map(_bind, answer.mounts),
                f"exec {shlex.join(command)}",
            )
        )
        with subprocess.Popen(  # noqa: S603 - what is measured
            [*_UNSHARE, "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | dict(variables) | dict(answer.envs),
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=_SECONDS)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)
                raise ProgramFailed(f"it had not ended after {_SECONDS} s") from error
    if process.returncode:
        told = errors.strip().splitlines() or [f"it ended with {process.returncode}"]
        raise ProgramFailed(told[-1])
    return output, errors


def _overlay(path: str, own: str) -> str:
    options = f"lowerdir={path},upperdir={own}/upper,workdir={own}/work"
    return f"mkdir -p {own}/upper {own}/work; mount -t overlay -o {options} none {path}"


def _bind(mount: Mount) -> str:
    source, target = shlex.quote(mount.host), shlex.quote(mount.container)
    above = shlex.quote(str(Path(mount.container).parent))
    folder = Path(mount.host).is_dir()
    place = f"mkdir -p {target}" if folder else f"mkdir -p {above}; test -e {target} || >{target}"
    return f"{place}; mount -o {'bind,ro' if mount.read_only else 'bind'} {source} {target}"

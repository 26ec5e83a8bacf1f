"""A containerd of our own: started, checked, and removed.

Nothing is shared with another containerd of the machine, or of another test worker: root,
state, socket, runc's state and the cgroups have names of their own, and it runs in a mount
namespace of its own, so that no mount outlives it whatever happens.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.agent.fakes import short_dir
from tests.runtime import image
from tests.runtime.api import cri_pb2 as pb

WHICH = "GPU_TURNSTILE_TEST_RUNTIME"
"""The variable that names the runtime: ``containerd``, the default, or ``crio``."""

_START_SECONDS = _END_SECONDS = 60.0
_POLL_SECONDS = 0.02

# The snapshotter "native" copies where "overlayfs" mounts: it works on every file system, in
# a container as well, and one image of 3 MB is all there is to copy.
_CONFIG = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["{folder}/cdi"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        Root = "{folder}/runc"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{folder}/cni"
    conf_dir = "{folder}/cni"
"""


class Unusable(Exception):
    """Containers cannot be run here; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A container runtime that runs; everything it writes is below *folder*.

    *cgroup* is the one, from the root, below which pods' cgroups belong; *knows_cdi*: it resolves
    CDI devices at all (containerd 1.7 and newer, CRI-O).
    """

    folder: Path
    socket: Path
    cgroup: str
    cdi_folder: Path
    knows_cdi: bool
    runtime: "Cri"


class Cri:
    """The calls of both services, by CRI's names."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def __getattr__(self, method: str) -> Callable[..., Any]:
        service = "ImageService" if method == "ImageStatus" else "RuntimeService"
        return self._channel.unary_unary(
            f"/runtime.v1.{service}/{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=getattr(pb, f"{method}Response").FromString,
        )


@contextmanager
def containerd() -> Iterator[Runtime]:
    """Run a containerd with the test image in it."""
    programs = find_programs("containerd", "ctr")
    with short_dir() as folder:
        socket, cgroup = folder / "c.sock", f"/gpu-turnstile-{secrets.token_hex(4)}"
        (folder / "cdi").mkdir()
        config = folder / "config.toml"
        config.write_text(
            _CONFIG.format(folder=folder, socket=socket, image=image.NAME, runc=programs["runc"])
        )
        known = subprocess.run(
            [programs["containerd"], "config", "default"],
            check=True,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
        )
        command = (programs["containerd"], "--config", config)
        ctr = (programs["ctr"], "--address", socket, "--namespace", "k8s.io")
        with serving(command, programs, folder / "log", socket, cgroup) as runtime:
            archive = folder / "image.tar"
            load = (*ctr, "images", "import", "--no-unpack", archive)
            import_image(runtime, programs, archive, load)
            knows_cdi = "enable_cdi" in known.stdout
            yield Runtime(folder, socket, cgroup, folder / "cdi", knows_cdi, runtime)


@contextmanager
def serving(
    command: Sequence[str | Path],
    programs: Mapping[str, Path],
    log: Path,
    socket: Path,
    cgroup: str,
) -> Iterator[Cri]:
    """Run a container runtime in a mount namespace of its own; end it with all its pods.

    :raises Unusable: if it does not serve CRI at *socket*.
    """
    isolated = (programs["unshare"], "--mount", "--propagation", "private")
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [*isolated, *command],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,  # an interrupted test run ends it below, not before
        )
    options = (("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 100))
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        runtime = Cri(channel)
        try:
            _wait_until_ready(process, runtime, log)
            yield runtime
        finally:
            _remove_pods(runtime)
            _end(process, socket, cgroup)


# --- before ----------------------------------------------------------------------------


def find_programs(*names: str) -> dict[str, Path]:
    """Find these programs, and those that every runtime needs."""
    if os.geteuid() != 0:
        raise Unusable("only root can run containers")
    wanted = (*names, "runc", "busybox", "unshare", "cc")
    found = {name: shutil.which(name) for name in wanted}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise Unusable(f"not installed: {', '.join(missing)}")
    for hierarchy in cgroup_hierarchies():
        if not os.access(hierarchy, os.W_OK):
            raise Unusable(f"cgroups cannot be made: {hierarchy} is not writable")
    if not cgroup_hierarchies():
        raise Unusable("no cgroup file system is mounted")
    return {name: Path(path) for name, path in found.items() if path is not None}


def cgroup_hierarchies() -> list[Path]:
    """Return where cgroups are mounted: one folder with v2, one per controller with v1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(words[1]) for words in mounts if words[2] in ("cgroup", "cgroup2")]


def _wait_until_ready(process: subprocess.Popen[bytes], runtime: Cri, log: Path) -> None:
    def ready() -> bool:
        if process.poll() is not None:
            raise Unusable(f"it does not start: {_last_words(log)}")
        try:
            status = runtime.Status(pb.StatusRequest(), timeout=5).status
        except grpc.RpcError:
            return False
        return any(each.type == "RuntimeReady" and each.status for each in status.conditions)

    if not _within(_START_SECONDS, ready):
        raise Unusable(f"it serves no CRI: {_last_words(log)}")


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace").strip().rpartition("\n")[2][-500:]


def import_image(
    runtime: Cri, programs: Mapping[str, Path], archive: Path, load: Sequence[str | Path]
) -> None:
    """Build the test image as *archive*, load it with the command *load*, until CRI knows it.

    :raises Unusable: if one of these fails.
    """
    try:
        archive.write_bytes(image.build(programs["busybox"], programs["cc"]))
        subprocess.run(load, check=True, capture_output=True, text=True, timeout=_START_SECONDS)
    except subprocess.CalledProcessError as error:
        raise Unusable(f"no image can be made: {error}: {error.stderr}") from error
    archive.unlink()
    wanted = pb.ImageStatusRequest(image=pb.ImageSpec(image=image.NAME))
    if not _within(
        _START_SECONDS, lambda: runtime.ImageStatus(wanted, timeout=5).HasField("image")
    ):
        raise Unusable("the CRI does not see the image that was imported")


# --- after -----------------------------------------------------------------------------


def _remove_pods(runtime: Cri) -> None:
    """End pods in good order; what does not is ended by force."""
    with contextlib.suppress(grpc.RpcError):
        for each in runtime.ListPodSandbox(pb.ListPodSandboxRequest(), timeout=10).items:
            runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=each.id), timeout=10)
            runtime.RemovePodSandbox(pb.RemovePodSandboxRequest(pod_sandbox_id=each.id), timeout=10)


def _end(process: subprocess.Popen[bytes], socket: Path, cgroup: str) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_SECONDS)
    assert _within(_END_SECONDS, lambda: not _killed(socket, cgroup)), "processes are left"
    assert _within(_END_SECONDS, lambda: _cgroups_removed(cgroup)), "cgroups are left"


def _killed(socket: Path, cgroup: str) -> list[int]:
    """Kill what is left of ours: shims, known by the runtime's socket, and containers."""
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (process / "cmdline").read_bytes().split(b"\0")
            groups = (process / "cgroup").read_text()
            if bytes(socket) in words or f":{cgroup}/" in groups:
                left.append(int(process.name))
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _cgroups_removed(cgroup: str) -> bool:
    tops = [each / cgroup.lstrip("/") for each in cgroup_hierarchies()]
    for top in tops:
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):  # busy: the next round
                Path(folder).rmdir()
    return not any(top.exists() for top in tops)


def _within(seconds: float, holds: Callable[[], object]) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True

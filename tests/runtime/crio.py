"""A CRI-O of our own, as :mod:`tests.runtime.containerd` runs a containerd."""

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from tests.agent.fakes import short_dir
from tests.runtime import image
from tests.runtime.containerd import (
    START_SECONDS,
    Cri,
    Runtime,
    Unusable,
    end,
    find_programs,
    remove_pods,
    wait_for_image,
    wait_until_ready,
)

# The driver "vfs" copies where "overlay" mounts. The pods have the host's network: no network
# plugin is needed. MKNOD is not among CRI-O's own defaults: the tests make forged device nodes.
_CONFIG = """\
[crio]
root = "{folder}/root"
runroot = "{folder}/state"
storage_driver = "vfs"
log_dir = "{folder}/logs"
version_file = "{folder}/version"
version_file_persist = ""
clean_shutdown_file = ""
[crio.api]
listen = "{socket}"
stream_port = "0"
[crio.image]
pause_image = "{image}"
signature_policy = "{folder}/policy.json"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "{pinns}"
namespaces_dir = "{folder}/namespaces"
container_exits_dir = "{folder}/exits"
container_attach_socket_dir = "{folder}/attach"
hooks_dir = []
default_capabilities = [
  "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "SETGID", "SETPCAP", "SETUID"
]
cdi_spec_dirs = ["{folder}/cdi"]
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
runtime_root = "{folder}/runc"
monitor_path = "{conmon}"
monitor_cgroup = "pod"
[crio.network]
network_dir = "{folder}/cni"
plugin_dirs = ["{folder}/cni"]
[crio.nri]
enable_nri = false
"""


@contextmanager
def crio() -> Iterator[Runtime]:
    """Run a CRI-O with the test image in it."""
    programs = find_programs("crio", "conmon", "pinns", "skopeo")
    with short_dir() as folder:
        socket, cgroup = folder / "c.sock", f"/gpu-turnstile-{secrets.token_hex(4)}"
        for each in ("cdi", "cni"):
            (folder / each).mkdir()
        config, log = folder / "crio.conf", folder / "log"
        paths = {each: programs[each] for each in ("runc", "conmon", "pinns")}
        config.write_text(_CONFIG.format(folder=folder, socket=socket, image=image.NAME, **paths))
        (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        isolated = (programs["unshare"], "--mount", "--propagation", "private")
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                [*isolated, programs["crio"], "--config", config, "--config-dir", ""],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,  # an interrupted test run ends it below, not before
            )
        options = (("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 100))
        with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
            runtime = Cri(channel)
            try:
                wait_until_ready(process, runtime, log)
                _import(programs, folder, runtime)
                yield Runtime(folder, socket, cgroup, folder / "cdi", True, runtime)
            finally:
                remove_pods(runtime)
                end(process, socket, cgroup)


def _import(programs: dict[str, Path], folder: Path, runtime: Cri) -> None:
    archive = folder / "image.tar"
    store = f"containers-storage:[vfs@{folder}/root+{folder}/state]{image.NAME}"
    copy = (programs["skopeo"], "--insecure-policy", "copy")
    try:
        archive.write_bytes(image.build(programs["busybox"], programs["cc"]))
        subprocess.run(
            [*copy, f"docker-archive:{archive}:{image.NAME}", store],
            check=True,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise Unusable(f"no image can be made: {error}: {error.stderr}") from error
    archive.unlink()
    wait_for_image(runtime)

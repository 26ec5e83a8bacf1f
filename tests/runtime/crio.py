"""A CRI-O of our own, as :mod:`tests.runtime.containerd` runs a containerd."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from tests.agent.fakes import short_dir
from tests.runtime import image
from tests.runtime.containerd import (
    Runtime,
    find_programs,
    import_image,
    serving,
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
        config = folder / "crio.conf"
        paths = {each: programs[each] for each in ("runc", "conmon", "pinns")}
        config.write_text(_CONFIG.format(folder=folder, socket=socket, image=image.NAME, **paths))
        (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        command = (programs["crio"], "--config", config, "--config-dir", "")
        with serving(command, programs, folder / "log", socket, cgroup) as runtime:
            archive = folder / "image.tar"
            store = f"containers-storage:[vfs@{folder}/root+{folder}/state]{image.NAME}"
            copy = (programs["skopeo"], "--insecure-policy", "copy")
            load = (*copy, f"docker-archive:{archive}:{image.NAME}", store)
            import_image(runtime, programs, archive, load)
            yield Runtime(folder, socket, cgroup, folder / "cdi", True, runtime)

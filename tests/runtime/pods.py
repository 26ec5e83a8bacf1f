"""Pods on a real container runtime, started as the kubelet starts them, and seen from inside."""

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.agent.fakes import eventually
from tests.runtime.api import cri_pb2 as pb
from tests.runtime.containerd import Runtime
from tests.runtime.image import BRIDGE, NAME

_SECONDS = 60.0
_EXEC_SECONDS = 60
_HAND = "/hand"
_numbers = itertools.count()


# The network is the host's: no network plugin is needed.
_NAMESPACES = pb.NamespaceOption(
    network=pb.NamespaceMode.NODE, pid=pb.NamespaceMode.CONTAINER, ipc=pb.NamespaceMode.POD
)


class Inside:
    """A container that runs, and what its processes see."""

    def __init__(self, runtime: Runtime, container_id: str, hand: Path) -> None:
        self.id = container_id
        self._runtime = runtime
        self._hand = hand

    def sh(self, script: str) -> str:
        """Run a shell script in it, as root; return its output, or fail with it."""
        code, output = self.run("sh", "-c", script)
        assert code == 0, f"{script}: exit code {code}: {output}"
        return output

    def refused(self, script: str) -> str:
        """Run a command that must fail; return its error output."""
        code, output = self.run("sh", "-c", script)
        assert code != 0, f"{script}: done: {output}"
        return output

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command in it; return the exit code, and both outputs."""
        done = self._runtime.runtime.ExecSync(
            pb.ExecSyncRequest(container_id=self.id, cmd=command, timeout=_EXEC_SECONDS),
            timeout=_EXEC_SECONDS + 10,
        )
        return done.exit_code, (done.stdout + done.stderr).decode()

    def env(self) -> dict[str, str]:
        return dict(line.partition("=")[::2] for line in self.sh("env").splitlines())

    def read(self, path: str) -> bytes:
        return bytes.fromhex(self.sh(f"xxd -p '{path}'"))

    def list(self, path: str) -> list[str]:
        return sorted(self.sh(f"ls -A '{path}'").split())

    def mounts(self) -> dict[str, set[str]]:
        """Its mount points, with their options."""
        lines = [line.split() for line in self.sh("cat /proc/mounts").splitlines()]
        return {words[1]: set(words[3].split(",")) for words in lines}

    def host_pids(self) -> set[int]:
        """The processes in it, by their numbers on the host."""
        found = set()
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if self.id in (each / "cgroup").read_text():
                    found.add(int(each.name))
        return found

    def main_pid(self) -> int:
        """Its first process, by its number on the host, as the runtime has it."""
        request = pb.ContainerStatusRequest(container_id=self.id, verbose=True)
        response = self._runtime.runtime.ContainerStatus(request, timeout=_SECONDS)
        return int(json.loads(response.info["info"])["pid"])

    @contextmanager
    def speaking_to(self, socket: str) -> Iterator[Path]:
        """Give a socket of the host by which a process of this container connects to *socket*."""
        name = f"{next(_numbers)}.sock"
        near = self._hand / name
        ended: list[tuple[int, str]] = []
        thread = threading.Thread(
            target=lambda: ended.append(self.run(BRIDGE, f"{_HAND}/{name}", socket)), daemon=True
        )
        thread.start()
        eventually(lambda: near.exists() or ended, f"{socket} is connected to")
        if ended:
            raise ConnectionError(ended[0][1].strip())
        try:
            yield near
        finally:
            thread.join(_SECONDS)
            assert not thread.is_alive()

    def finish(self) -> None:
        """Have it end well, as an init container does."""
        self._runtime.runtime.StopContainer(
            pb.StopContainerRequest(container_id=self.id, timeout=_EXEC_SECONDS),
            timeout=_EXEC_SECONDS + 10,
        )

    def stop(self) -> None:
        """Kill it; its files on the host stay until it is removed."""
        self._runtime.runtime.StopContainer(
            pb.StopContainerRequest(container_id=self.id), timeout=_SECONDS
        )


class Pod:
    """A pod's sandbox; its containers find the host's folder *hand*, for the tests' use."""

    def __init__(self, runtime: Runtime, name: str, uid: str, hand: Path) -> None:
        self._runtime = runtime
        self._hand = hand
        self._labels = {
            "io.kubernetes.pod.name": name,
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": uid,
        }
        self._config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace="default"),
            labels=self._labels,
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=f"{runtime.cgroup}/kubepods/besteffort/pod{uid}",
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=_NAMESPACES),
            ),
        )
        request = pb.RunPodSandboxRequest(config=self._config)
        self.id = runtime.runtime.RunPodSandbox(request, timeout=_SECONDS).pod_sandbox_id

    def start(
        self,
        container: str,
        received: Mapping[str, Any],
        *,
        attempt: int = 0,
        volumes: Mapping[str, Path] | None = None,
    ) -> Inside:
        """Start a container with device plugins' responses and volumes of its author."""
        mounts = [
            pb.Mount(
                container_path=each["container_path"],
                host_path=each["host_path"],
                readonly=each["read_only"],
            )
            for each in received.get("mounts", ())
        ]
        mounts += [
            pb.Mount(container_path=place, host_path=str(path))
            for place, path in {_HAND: self._hand, **(volumes or {})}.items()
        ]
        envs = received.get("envs", {}).items()
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=container, attempt=attempt),
            image=pb.ImageSpec(image=NAME, user_specified_image=NAME),
            envs=[pb.KeyValue(key=key, value=value.encode()) for key, value in envs],
            mounts=mounts,
            devices=[pb.Device(**each) for each in received.get("devices", ())],
            annotations=received.get("annotations", {}),
            CDI_devices=[pb.CDIDevice(**each) for each in received.get("cdi_devices", ())],
            labels={**self._labels, "io.kubernetes.container.name": container},
            linux=pb.LinuxContainerConfig(
                security_context=pb.LinuxContainerSecurityContext(namespace_options=_NAMESPACES)
            ),
        )
        made = self._runtime.runtime.CreateContainer(
            pb.CreateContainerRequest(
                pod_sandbox_id=self.id, config=config, sandbox_config=self._config
            ),
            timeout=_SECONDS,
        )
        self._runtime.runtime.StartContainer(
            pb.StartContainerRequest(container_id=made.container_id), timeout=_SECONDS
        )
        return Inside(self._runtime, made.container_id, self._hand)

    def remove(self) -> None:
        stop = pb.StopPodSandboxRequest(pod_sandbox_id=self.id)
        self._runtime.runtime.StopPodSandbox(stop, timeout=_SECONDS)
        remove = pb.RemovePodSandboxRequest(pod_sandbox_id=self.id)
        self._runtime.runtime.RemovePodSandbox(remove, timeout=_SECONDS)

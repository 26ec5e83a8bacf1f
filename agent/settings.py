"""The agent's settings: each field with its flag, checked once at the start.

What reads a flag raises ``SettingsError``, whose message names the flag, the value and the rule.
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

import click

from agent.cards.health import APPLICATION_XIDS
from agent.errors import SettingsError
from agent.injection.inject import (
    DRIVER_IN_CONTAINER,
    DriverFiles,
    Injection,
    parse_directory,
    parse_extra_devices,
)
from common.commandline import choice, setting, switch
from contract.errors import quote
from contract.names import DEFAULT_DOMAIN, Names
from contract.quantity import parse_quantity
from placement.scoring import Policy

# A unix socket's path is at most 107 bytes (unix(7)).
_LONGEST_SOCKET_PATH = 107

_SHORTEST_PERIOD = 1.0

AUTO = "auto"
"""In the place of a folder: the agent makes it of the host's driver."""
HAMI_LIBRARY_DIR = Path("/usr/local/vgpu")

_HOST_ROOT = Path("/")
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")

_FOLDER = click.Path(path_type=Path, file_okay=False)
_SOCKET = click.Path(path_type=Path, readable=False)

_PERIOD = re.compile(
    r"(?=[0-9])(?:(?P<h>[0-9]{1,5})h)?(?:(?P<m>[0-9]{1,5})m)?(?:(?P<s>[0-9]{1,5})s)?\Z", re.ASCII
)
_XID = re.compile(r"[0-9]{1,5}\Z", re.ASCII)


class EnforcementMode(StrEnum):
    """What holds a container to its share."""

    NONE = "none"
    """Nothing: it sees its cards and no others."""
    VCUDA = "vcuda"
    """Tencent's vcuda-controller, in the host's driver directory."""
    HAMI_CORE = "hami-core"
    """HAMi-core's libvgpu.so."""


class MetricsNames(StrEnum):
    """Under which names the gauges of containers are served."""

    OWN = "gpu-turnstile"
    """Ours, at ``/metrics``."""
    GPU_MANAGER = "gpu-manager"
    """Ours, and at ``/metric`` those of gpu-manager."""


def parse_cards(text: str) -> Path | None:
    """Read where cards come from: a file, which is opened later, or ``None`` to ask NVML."""
    return None if text == "nvml" else Path(text)


def parse_memory_block(text: str) -> int:
    """Return the bytes of a memory block."""
    size = parse_quantity(text)
    if size is None or size <= 0 or size % (1 << 20):
        raise SettingsError(
            f"memory-block: Invalid value: {quote(text)}: must be a whole number of MiB "
            "such as 256Mi"
        )
    return int(size)


def parse_driver_dir(text: str) -> DriverFiles | None:
    """Read ``HOST[:CONTAINER]``: where driver files are, and where containers find them.

    ``auto`` stays in the place of the first path; of nothing ``None`` is made.
    """
    if not text:
        return None
    host, separator, container = text.partition(":")
    return DriverFiles(
        host if host == AUTO else parse_directory("driver-dir", host),
        parse_directory("driver-dir", container) if separator else DRIVER_IN_CONTAINER,
    )


def parse_period(flag: str, text: str) -> float:
    """Return the seconds of a length of time, such as ``90s``, ``5m`` or ``1h30m``."""
    match = _PERIOD.match(text)
    if match is None:
        raise SettingsError(
            f"{flag}: Invalid value: {quote(text)}: must be a time such as 90s, 5m or 1h30m"
        )
    hours, minutes, seconds = (int(match[unit] or 0) for unit in "hms")
    return float(hours * 3600 + minutes * 60 + seconds)


def parse_ignored_xids(text: str) -> frozenset[int] | None:
    """Read further Xids that leave a card healthy beside an application's; ``None`` for all."""
    return None if text.strip() == "all" else APPLICATION_XIDS | parse_xids("ignore-xids", text)


def parse_xids(flag: str, text: str) -> frozenset[int]:
    """Read Xids, comma-separated."""
    entries = [entry.strip() for entry in text.split(",")] if text.strip() else []
    for entry in entries:
        if not _XID.match(entry):
            raise SettingsError(
                f"{flag}: Invalid value: {quote(entry)}: must be Xid numbers, comma-separated, "
                "such as 63,94"
            )
    return frozenset(int(entry) for entry in entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an admin can set: the flags of ``python -m agent``, in the order of its help.

    Raises:
        SettingsError: a path is too long for a socket, a period too short, or settings contradict
            each other.
    """

    node_name: str = setting(
        envvar=["GPU_TURNSTILE_NODE_NAME", "NODE_NAME"],
        help="This node's name in the API.  [required to serve]",
    )
    kubeconfig: Path | None = setting(
        default=None,
        type=click.Path(path_type=Path, dir_okay=False),
        help="A kubeconfig file.  [default: the pod's service account]",
    )
    kubelet_dir: Path = setting(
        default=_DEVICE_PLUGINS,
        type=_FOLDER,
        help="The kubelet's own device plugin directory, only read: a new kubelet.sock there is a "
        "new kubelet.",
    )
    plugin_dir: Path = setting(
        default=_DEVICE_PLUGINS,
        type=_FOLDER,
        help="The folder where the agent registers: the device plugin proxy's, or the kubelet's "
        "own.",
    )
    pod_resources_socket: Path = setting(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        type=_SOCKET,
        help="The kubelet's PodResources socket.",
    )
    cards: Path | None = setting(
        default="nvml",
        parse=parse_cards,
        metavar="nvml|FILE",
        help="Where the node's cards are known from: the driver, or a YAML file that lists them.",
    )
    recovery_quiet: float = setting(
        default="5m",
        parse=partial(parse_period, "recovery-quiet"),
        help="How long an unhealthy card must be without a fault before it may come back.",
    )
    ignore_xids: frozenset[int] | None = setting(
        default="",
        parse=parse_ignored_xids,
        show_default="none",
        help="Further Xids that leave a card healthy, comma-separated, besides those of "
        f"applications, {', '.join(map(str, sorted(APPLICATION_XIDS)))}; or all.",
    )
    fatal_xids: frozenset[int] = setting(
        default="",
        parse=partial(parse_xids, "fatal-xids"),
        show_default="none",
        help="Xids that make a card unhealthy even if they are ignored, comma-separated.",
    )
    memory_block: int = setting(
        default="256Mi",
        parse=parse_memory_block,
        help="How much memory one vcuda-memory stands for.",
    )
    names: Names = setting(
        "domain",
        default=DEFAULT_DOMAIN,
        parse=Names,
        help="Domain of resource and annotation names.",
    )
    policy: Policy = choice(
        Policy.BINPACK,
        help="Which card a share prefers: the fullest that fits, or the emptiest. A pod's "
        "annotation gpu-policy goes before it.",
    )
    strict_predicate: bool = switch(
        "predicate",
        words=("prefer", "strict"),
        help="What becomes of a pod whose scheduler chose cards (predicate-gpu-idx-<i>) that do "
        "not fit: others are taken, or it is refused.",
    )
    numa: bool = switch(
        help="Whether the kubelet is told each card's NUMA node. Its Topology Manager counts "
        "places, not cards, and refuses shares that fit: on is for nodes that give out whole cards "
        "only.",
    )
    inject: Injection = choice(
        Injection.NODES,
        help="How cards reach a container: device nodes, the environment alone (for the NVIDIA "
        "container runtime), or CDI names.",
    )
    extra_devices: tuple[str, ...] = setting(
        default="",
        parse=parse_extra_devices,
        show_default="none",
        help="Further device nodes for every GPU container, comma-separated, such as "
        "/dev/infiniband/uverbs0.",
    )
    driver_dir: DriverFiles | None = setting(
        default="",
        parse=parse_driver_dir,
        metavar="HOST[:CONTAINER]|auto[:CONTAINER]",
        show_default="none",
        help="A folder of driver files (bin, lib, lib64) that containers find read-only, by "
        "default at /usr/local/nvidia: for hosts without the NVIDIA container runtime. With auto "
        "the agent makes it in --state-dir of the driver in --host-root, and renews it.",
    )
    host_root: Path = setting(
        default=_HOST_ROOT,
        type=_FOLDER,
        help="Where the host's root is mounted; read with --driver-dir auto alone.",
    )
    cdi_dir: Path = setting(
        default=Path("/var/run/cdi"),
        type=_FOLDER,
        help="Where the CDI spec is written with --inject cdi, if the host has none for its cards.",
    )
    enforcement: EnforcementMode = choice(
        EnforcementMode.NONE,
        help="What holds a container to its share: nothing, Tencent's vcuda-controller (in "
        "--driver-dir), or HAMi-core.",
    )
    state_dir: Path = setting(
        default=Path("/var/lib/gpu-turnstile"),
        type=_FOLDER,
        help="Where the files that enforcement mounts into containers are kept.",
    )
    hami_library_dir: Path = setting(
        default=HAMI_LIBRARY_DIR,
        type=_FOLDER,
        help="The host's folder with HAMi-core's libvgpu.so.",
    )
    cri_socket: Path = setting(
        default=Path("/run/containerd/containerd.sock"),
        type=_SOCKET,
        help="The container runtime's socket; vcuda and --measure-use ask it which container a "
        "process is in.",
    )
    measure_use: bool = switch(
        help="Whether it is measured what each container uses of its cards; needs hostPID and "
        "--cri-socket.",
    )
    use_period: float = setting(
        default="5s",
        parse=partial(parse_period, "use-period"),
        help="How often that is measured.",
    )
    metrics_names: MetricsNames = choice(
        MetricsNames.OWN,
        help="Whether gpu-manager's gauges of containers are served too, at its path /metric.",
    )
    http_host: str = setting(
        default="0.0.0.0",  # noqa: S104 -- the kubelet probes the pod's address
        help="Address of the pages below.",
    )
    http_port: int = setting(
        default=9440,
        type=click.IntRange(0, 65535),
        help="Port of /healthz, /readyz and /metrics; 0 takes a free one.",
    )

    def __post_init__(self) -> None:
        """Refuse what would only fail later, with a worse message."""
        if not self.node_name:
            raise SettingsError("node-name: Required value: the node's name in the API")
        if self.use_period < _SHORTEST_PERIOD:
            raise SettingsError(
                f"use-period: Invalid value: {self.use_period:g}: must be at least 1s: the driver "
                "samples processes about once a second"
            )
        for flag, path in (
            ("plugin-dir", self.plugin_dir / "vmemory-01234567.sock"),
            ("pod-resources-socket", self.pod_resources_socket),
            ("cri-socket", self.cri_socket),
        ):
            if len(bytes(path)) > _LONGEST_SOCKET_PATH:
                raise SettingsError(
                    f"{flag}: Invalid value: {quote(str(path))}: a unix socket's path is at most "
                    f"{_LONGEST_SOCKET_PATH} bytes"
                )
        for flag, path in (
            ("state-dir", self.state_dir),
            ("hami-library-dir", self.hami_library_dir),
            ("cdi-dir", self.cdi_dir),
        ):
            parse_directory(flag, str(path))  # containers find what is there: no relative path
        if self.host_root != _HOST_ROOT:
            parse_directory("host-root", str(self.host_root))
        if self.enforcement is EnforcementMode.VCUDA:
            self._check_vcuda()

    def _check_vcuda(self) -> None:
        """Refuse vcuda where containers would not find its library, and nothing would hold."""
        if self.inject is not Injection.NODES:
            raise SettingsError(
                f"enforcement: Invalid value: {quote(self.enforcement)}: must be used with "
                f"--inject {Injection.NODES}, found --inject {self.inject}: containers would find "
                "the runtime's driver files, not vcuda-controller's, and nothing would hold them "
                "to their shares"
            )
        if self.driver_dir is None:
            raise SettingsError(
                f"enforcement: Invalid value: {quote(self.enforcement)}: must be used with "
                "--driver-dir, found none: containers would not find vcuda-controller's library, "
                "and nothing would hold them to their shares"
            )
        if self.driver_dir.container != DRIVER_IN_CONTAINER:
            raise SettingsError(
                f"driver-dir: Invalid value: {quote(self.driver_dir.container)}: must be "
                f"{DRIVER_IN_CONTAINER} in the container with --enforcement {self.enforcement}: "
                "vcuda-controller's library looks for its client there"
            )

    @property
    def lays_out_driver(self) -> bool:
        """Whether the agent makes the folder of driver files."""
        return self.driver_dir is not None and self.driver_dir.host == AUTO

    @property
    def driver_link(self) -> Path:
        """The path of that folder, which leads to the driver of today."""
        return self.state_dir / "driver" / "current"

    @property
    def driver(self) -> DriverFiles | None:
        """The driver files that containers find."""
        if self.driver_dir is None or not self.lays_out_driver:
            return self.driver_dir
        return replace(self.driver_dir, host=str(self.driver_link))

"""The agent's settings: each field with its flag, checked once at the start.

The functions that parse a flag raise ``SettingsError``; its message names flag, value and rule.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

import click

from agent.cards.health import APPLICATION_XIDS
from agent.enforcement.mps.files import MPS_DIR
from agent.errors import SettingsError
from agent.injection.inject import (
    DRIVER_IN_CONTAINER,
    DriverFiles,
    Injection,
    parse_directory,
    parse_extra_devices,
)
from common.commandline import WholeNumber, choice, setting, switch
from common.listener import EVERY_ADDRESS
from common.text import parse_seconds
from contract.claims import driver_name
from contract.errors import quote
from contract.names import DEFAULT_DOMAIN, Names
from contract.quantity import BLOCK_SIZE_RULE, parse_block_size, parse_quantity
from placement.scoring import Policy

# A unix socket's path is at most 107 bytes (unix(7)).
_LONGEST_SOCKET_PATH = 107

_SHORTEST_PERIOD = 1.0

AUTO = "auto"
"""Instead of a folder: the agent makes one from the host's driver."""
HAMI_LIBRARY_DIR = Path("/usr/local/vgpu")

_HOST_ROOT = Path("/")
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")

_FOLDER = click.Path(path_type=Path, file_okay=False)
_SOCKET = click.Path(path_type=Path, readable=False)

_XID = re.compile(r"[0-9]{1,5}\Z", re.ASCII)


class EnforcementMode(StrEnum):
    """What enforces shares."""

    NONE = "none"
    """None: a container sees only its cards, and may use all of them."""
    VCUDA = "vcuda"
    """Tencent's vcuda-controller, in the host's driver directory."""
    HAMI_CORE = "hami-core"
    """HAMi-core's libvgpu.so."""
    MPS = "mps"
    """NVIDIA's Multi-Process Service, by ``python -m agent.enforcement.mps`` in another pod."""


class AgentMode(StrEnum):
    """How the kubelet and schedulers learn of the cards."""

    PLUGIN = "plugin"
    """As a device plugin, whose calls do not name the container."""
    DRA = "dra"
    """As a driver for Dynamic Resource Allocation, from Kubernetes 1.36 on."""


class MigMode(StrEnum):
    """What is done with the MIG instances of cards."""

    OFF = "off"
    """A card in MIG mode is left out."""
    SHARES = "shares"
    """Each instance that an admin has made is served as a small card."""


class MetricsNames(StrEnum):
    """The names under which the gauges of containers are served."""

    OWN = "gpu-turnstile"
    """Our names, at ``/metrics``."""
    GPU_MANAGER = "gpu-manager"
    """Our names, and gpu-manager's at ``/metric``."""


def parse_cards(text: str) -> Path | None:
    """Return the cards file, which is opened later, or ``None`` for NVML."""
    return None if text == "nvml" else Path(text)


def parse_memory_block(text: str) -> int:
    """Return the bytes of a memory block."""
    size = parse_block_size(text)
    if size is None:
        raise SettingsError(f"memory-block: Invalid value: {quote(text)}: {BLOCK_SIZE_RULE}")
    return size


def parse_reserved_memory(text: str) -> int:
    """Return the bytes of each card that are not offered."""
    size = parse_quantity(text)
    if size is None or size < 0 or size.denominator != 1:
        raise SettingsError(
            f"reserved-memory: Invalid value: {quote(text)}: must be a number of bytes such as "
            "512Mi"
        )
    return int(size)


def parse_driver_dir(text: str) -> DriverFiles | None:
    """Parse ``HOST[:CONTAINER]``: the folder of driver files, and its path in containers.

    The result has ``auto`` as host path if *text* has; it is ``None`` for an empty *text*.
    """
    if not text:
        return None
    host, separator, container = text.partition(":")
    return DriverFiles(
        host if host == AUTO else parse_directory("driver-dir", host),
        parse_directory("driver-dir", container) if separator else DRIVER_IN_CONTAINER,
    )


def parse_period(flag: str, text: str) -> float:
    """Return the seconds in a duration, such as ``90s``, ``5m`` or ``1h30m``."""
    seconds = parse_seconds(text)
    if seconds is None:
        raise SettingsError(
            f"{flag}: Invalid value: {quote(text)}: must be a time such as 90s, 5m or 1h30m"
        )
    return seconds


def parse_ignored_xids(text: str) -> frozenset[int] | None:
    """Return the Xids that leave a card healthy, those of applications included; ``None``: all."""
    return None if text.strip() == "all" else APPLICATION_XIDS | parse_xids("ignore-xids", text)


def parse_xids(flag: str, text: str) -> frozenset[int]:
    """Parse Xids, separated by commas."""
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
    """The flags of ``python -m agent``, in the order of its help.

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
    mode: AgentMode = choice(
        AgentMode.PLUGIN,
        help="Serve the cards as a device plugin, or as a driver for Dynamic Resource Allocation "
        "(Kubernetes 1.36). Its sockets are in --plugin-dir if that is the proxy's, otherwise in "
        "the folders plugins and plugins_registry beside --kubelet-dir.",
    )
    kubelet_dir: Path = setting(
        default=_DEVICE_PLUGINS,
        type=_FOLDER,
        help="The kubelet's own device plugin directory, which is only read. Its checkpoint is "
        "there, and a new kubelet.sock there shows that the kubelet has restarted.",
    )
    plugin_dir: Path = setting(
        default=_DEVICE_PLUGINS,
        type=_FOLDER,
        help="The folder in which the agent registers: that of the device plugin proxy, or the "
        "kubelet's own.",
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
        help="Read the node's cards from the driver (nvml), or from a YAML file that lists them.",
    )
    mig: MigMode = choice(
        MigMode.OFF,
        help="Leave cards in MIG mode out, or serve each of their instances as a small card, for "
        "shares. Used with --cards nvml.",
    )
    recovery_quiet: float = setting(
        default="5m",
        parse=partial(parse_period, "recovery-quiet"),
        help="How long an unhealthy card must be without faults before it may become healthy.",
    )
    ignore_xids: frozenset[int] | None = setting(
        default="",
        parse=parse_ignored_xids,
        show_default="none",
        help="Additional Xids that leave a card healthy, separated by commas, or all. Those of "
        f"applications are included: {', '.join(map(str, sorted(APPLICATION_XIDS)))}.",
    )
    fatal_xids: frozenset[int] = setting(
        default="",
        parse=partial(parse_xids, "fatal-xids"),
        show_default="none",
        help="Xids that make a card unhealthy even if --ignore-xids has them, separated by commas.",
    )
    memory_block: int = setting(
        default="256Mi",
        parse=parse_memory_block,
        help="Size of a memory block, the unit of vcuda-memory.",
    )
    reserved_memory: int = setting(
        default="0",
        parse=parse_reserved_memory,
        help="Memory of each card that is not offered, besides what the driver keeps for itself.",
    )
    names: Names = setting(
        "domain",
        default=DEFAULT_DOMAIN,
        parse=Names,
        help="Domain of the names of resources and annotations.",
    )
    policy: Policy = choice(
        Policy.BINPACK,
        help="Which card a share prefers: the fullest that fits (binpack), or the emptiest "
        "(spread). A pod's annotation gpu-policy overrides it.",
    )
    strict_predicate: bool = switch(
        "predicate",
        words=("prefer", "strict"),
        help="If the cards that a pod's scheduler chose (predicate-gpu-idx-<i>) do not fit: take "
        "others (prefer), or refuse the pod (strict).",
    )
    numa: bool = switch(
        help="Report each card's NUMA node to the kubelet. Its Topology Manager counts slots, not "
        "cards, and rejects shares that fit: use it only on nodes whose pods get whole cards.",
    )
    inject: Injection = choice(
        Injection.NODES,
        help="How cards reach a container: device nodes, the environment with or without them (for "
        "the NVIDIA container runtime), or CDI names.",
    )
    extra_devices: tuple[str, ...] = setting(
        default="",
        parse=parse_extra_devices,
        show_default="none",
        help="Additional device nodes for every GPU container, separated by commas, for example "
        "/dev/infiniband/uverbs0.",
    )
    driver_dir: DriverFiles | None = setting(
        default="",
        parse=parse_driver_dir,
        metavar="HOST[:CONTAINER]|auto[:CONTAINER]",
        show_default="none",
        help="A folder of driver files (bin, lib, lib64), mounted read-only into containers, by "
        "default at /usr/local/nvidia: for hosts without the NVIDIA container runtime. With auto "
        "the agent makes it in --state-dir from the driver below --host-root, and updates it.",
    )
    host_root: Path = setting(
        default=_HOST_ROOT,
        type=_FOLDER,
        help="Where the host's root is mounted; used only with --driver-dir auto.",
    )
    cdi_dir: Path = setting(
        default=Path("/var/run/cdi"),
        type=_FOLDER,
        help="Folder of the CDI spec that --inject cdi writes if the host has none for its cards, "
        "and of the specs of claims with --mode dra.",
    )
    enforcement: EnforcementMode = choice(
        EnforcementMode.NONE,
        help="What enforces shares: nothing, Tencent's vcuda-controller (in --driver-dir), "
        "HAMi-core, or NVIDIA's MPS, whose daemons run in a pod of their own.",
    )
    state_dir: Path = setting(
        default=Path("/var/lib/gpu-turnstile"),
        type=_FOLDER,
        help="Folder of the files that enforcement mounts into containers.",
    )
    hami_library_dir: Path = setting(
        default=HAMI_LIBRARY_DIR,
        type=_FOLDER,
        help="The host's folder with HAMi-core's libvgpu.so.",
    )
    mps_dir: Path = setting(
        default=MPS_DIR,
        type=_FOLDER,
        help="Folder in which the agent and the program that runs the MPS daemons meet, in memory "
        "(/run).",
    )
    cri_socket: Path = setting(
        default=Path("/run/containerd/containerd.sock"),
        type=_SOCKET,
        help="The container runtime's socket. vcuda and --measure-use use it to find the container "
        "of a process.",
    )
    measure_use: bool = switch(
        help="Measure the use of cards by each container; needs hostPID and --cri-socket.",
    )
    use_period: float = setting(
        default="5s",
        parse=partial(parse_period, "use-period"),
        help="Interval between two measurements.",
    )
    metrics_names: MetricsNames = choice(
        MetricsNames.OWN,
        help="With gpu-manager, its gauges of containers are served as well, at its path /metric.",
    )
    http_host: str = setting(
        default=EVERY_ADDRESS,
        help="Address to listen on for HTTP; :: is every address, IPv4 and IPv6.",
    )
    http_port: int = setting(
        default=9440,
        type=WholeNumber("port, such as 9440", 0, 65535),
        help="Port of /healthz, /readyz and /metrics; 0 chooses a free one.",
    )

    def __post_init__(self) -> None:
        """Refuse settings that would otherwise fail later, with a worse message."""
        if not self.node_name:
            raise SettingsError("node-name: Required value: the node's name in the API")
        if self.use_period < _SHORTEST_PERIOD:
            raise SettingsError(
                f"use-period: Invalid value: {self.use_period:g}: must be at least 1s: the driver "
                "samples processes about once a second"
            )
        claim_sockets = []
        if self.mode is AgentMode.DRA:
            flag = "plugin-dir" if self.has_proxy else "kubelet-dir"
            registration = f"{self.claim_driver}-01234567-reg.sock"
            claim_sockets = [
                (flag, self.claim_plugins / "dra-01234567.sock"),
                (flag, self.plugin_registry / registration),
            ]
        for flag, path in (
            ("plugin-dir", self.plugin_dir / "vmemory-01234567.sock"),
            ("pod-resources-socket", self.pod_resources_socket),
            ("cri-socket", self.cri_socket),
            *claim_sockets,
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
            ("mps-dir", self.mps_dir),
        ):
            parse_directory(flag, str(path))  # mounted into containers: no relative path
        if self.host_root != _HOST_ROOT:
            parse_directory("host-root", str(self.host_root))
        if self.enforcement is EnforcementMode.VCUDA:
            self._check_vcuda()
        if self.enforcement is EnforcementMode.MPS and self.mig is MigMode.SHARES:
            raise SettingsError(
                f"mig: Invalid value: {quote(self.mig)}: must be {MigMode.OFF} with --enforcement "
                f"{self.enforcement}: its daemons serve whole cards, not MIG instances"
            )

    def _check_vcuda(self) -> None:
        """Refuse vcuda if containers would not find its library: no share would be enforced.

        In a MIG instance it would stop programs: NVML returns no use of processes there, and the
        library waits for it (``utilization_watcher`` in its ``src/hijack_call.c``).
        """
        if self.mig is MigMode.SHARES:
            raise SettingsError(
                f"mig: Invalid value: {quote(self.mig)}: must be used with --enforcement "
                f"{EnforcementMode.NONE} or {EnforcementMode.HAMI_CORE}, found "
                f"{self.enforcement}: its library would stop programs on MIG instances"
            )
        if self.inject is not Injection.NODES:
            raise SettingsError(
                f"enforcement: Invalid value: {quote(self.enforcement)}: must be used with "
                f"--inject {Injection.NODES}, found --inject {self.inject}: containers would find "
                "the runtime's driver files, not vcuda-controller's, and no share would be enforced"
            )
        if self.driver_dir is None:
            raise SettingsError(
                f"enforcement: Invalid value: {quote(self.enforcement)}: must be used with "
                "--driver-dir, found none: containers would not find vcuda-controller's library, "
                "and no share would be enforced"
            )
        if self.driver_dir.container != DRIVER_IN_CONTAINER:
            raise SettingsError(
                f"driver-dir: Invalid value: {quote(self.driver_dir.container)}: must be "
                f"{DRIVER_IN_CONTAINER} in the container with --enforcement {self.enforcement}: "
                "vcuda-controller's library looks for its client there"
            )

    @property
    def claim_driver(self) -> str:
        """The name of the driver for Dynamic Resource Allocation."""
        return driver_name(self.names)

    @property
    def has_proxy(self) -> bool:
        """Whether the agent registers with the device plugin proxy."""
        return self.plugin_dir.resolve() != self.kubelet_dir.resolve()

    @property
    def claim_plugins(self) -> Path:
        """The folder of that driver's socket: the proxy's, or one below the kubelet's own."""
        if self.has_proxy:
            return self.plugin_dir
        return self.kubelet_dir.parent / "plugins" / self.claim_driver

    @property
    def plugin_registry(self) -> Path:
        """The folder in which the proxy, or the kubelet, looks for drivers to register."""
        if self.has_proxy:
            return self.plugin_dir
        return self.kubelet_dir.parent / "plugins_registry"

    @property
    def lays_out_driver(self) -> bool:
        """Whether the agent itself makes the folder of driver files."""
        return self.driver_dir is not None and self.driver_dir.host == AUTO

    @property
    def driver_link(self) -> Path:
        """The path of that folder: a link to the files of the present driver."""
        return self.state_dir / "driver" / "current"

    @property
    def written_folders(self) -> Mapping[str, Path]:
        """The folders that the agent writes to, by their flags."""
        folders = {"plugin-dir": self.plugin_dir}
        if self.enforcement is EnforcementMode.MPS:
            folders["mps-dir"] = self.mps_dir
        elif self.enforcement is not EnforcementMode.NONE:
            folders["state-dir"] = self.state_dir
        if self.lays_out_driver:
            folders["state-dir"] = self.state_dir
        if self.mode is AgentMode.DRA:
            folders["cdi-dir"] = self.cdi_dir
        return folders

    @property
    def driver(self) -> DriverFiles | None:
        """The driver files that containers find."""
        if self.driver_dir is None or not self.lays_out_driver:
            return self.driver_dir
        return replace(self.driver_dir, host=str(self.driver_link))

"""The agent's settings, checked once at the start."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from agent.cards.xids import APPLICATION_XIDS
from agent.errors import SettingsError
from agent.injection.inject import DRIVER_IN_CONTAINER, DriverFiles, Injection, parse_directory
from contract.errors import quote
from contract.names import Names
from contract.quantity import parse_quantity
from placement.scoring import Policy

# A unix socket's path is at most 107 bytes (unix(7)).
_LONGEST_SOCKET_PATH = 107

_SHORTEST_PERIOD = 1.0

STATE_DIR = Path("/var/lib/gpu-turnstile")
HOST_ROOT = Path("/")
AUTO = "auto"
"""In the place of a folder: the agent makes it of the host's driver."""
HAMI_LIBRARY_DIR = Path("/usr/local/vgpu")
CRI_SOCKET = Path("/run/containerd/containerd.sock")
CDI_DIR = Path("/var/run/cdi")

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


@dataclass(frozen=True, slots=True)
class Settings:
    """What an admin can set: the flags of ``agent/__main__.py``, whose help says what each is for.

    Attributes:
        kubeconfig: ``None`` for the pod's service account.
        cards: the cards file, ``None`` to ask NVML.
        memory_block: bytes one ``vcuda-memory`` stands for.
        driver_dir: the host's path in it is ``AUTO`` where the agent lays the files out.
        recovery_quiet: seconds without a fault before an unhealthy card may come back.
        ignore_xids: the Xids that leave a card healthy; ``None`` for all.
        fatal_xids: Xids that make a card unhealthy, ignored or not.
        use_period: seconds between two measurements.

    Raises:
        SettingsError: a path is too long for a socket, a period too short, or settings contradict
            each other.
    """

    node_name: str
    kubeconfig: Path | None
    kubelet_dir: Path
    plugin_dir: Path
    pod_resources_socket: Path
    cards: Path | None
    memory_block: int
    names: Names
    policy: Policy
    inject: Injection
    http_host: str
    http_port: int
    recovery_quiet: float = 300.0
    ignore_xids: frozenset[int] | None = APPLICATION_XIDS
    fatal_xids: frozenset[int] = frozenset()
    strict_predicate: bool = False
    numa: bool = False
    enforcement: EnforcementMode = EnforcementMode.NONE
    state_dir: Path = STATE_DIR
    driver_dir: DriverFiles | None = None
    extra_devices: tuple[str, ...] = ()
    hami_library_dir: Path = HAMI_LIBRARY_DIR
    cri_socket: Path = CRI_SOCKET
    cdi_dir: Path = CDI_DIR
    host_root: Path = HOST_ROOT
    measure_use: bool = False
    use_period: float = 5.0
    metrics_names: MetricsNames = MetricsNames.OWN

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
        if self.host_root != HOST_ROOT:
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


def parse_memory_block(text: str) -> int:
    """Read the size of a memory block.

    Returns:
        Bytes.

    Raises:
        SettingsError: it is not a whole number of MiB.
    """
    size = parse_quantity(text)
    if size is None or size <= 0 or size % (1 << 20):
        raise SettingsError(
            f"memory-block: Invalid value: {quote(text)}: must be a whole number of MiB "
            "such as 256Mi"
        )
    return int(size)


def parse_driver_dir(text: str) -> DriverFiles | None:
    """Read ``HOST[:CONTAINER]``: where driver files are, and where containers find them.

    Returns:
        Both paths, the first as it is where it is ``auto``; ``None`` where nothing is given.

    Raises:
        SettingsError: a path is not absolute, or not written plainly.
    """
    if not text:
        return None
    host, separator, container = text.partition(":")
    return DriverFiles(
        host if host == AUTO else parse_directory("driver-dir", host),
        parse_directory("driver-dir", container) if separator else DRIVER_IN_CONTAINER,
    )


def parse_period(flag: str, text: str) -> float:
    """Read a length of time, such as ``90s``, ``5m`` or ``1h30m``.

    Returns:
        Seconds.

    Raises:
        SettingsError: it is none; the message names the flag.
    """
    match = _PERIOD.match(text)
    if match is None:
        raise SettingsError(
            f"{flag}: Invalid value: {quote(text)}: must be a time such as 90s, 5m or 1h30m"
        )
    hours, minutes, seconds = (int(match[unit] or 0) for unit in "hms")
    return float(hours * 3600 + minutes * 60 + seconds)


def parse_ignored_xids(text: str) -> frozenset[int] | None:
    """Read further Xids that leave a card healthy, comma-separated, or ``all``.

    Returns:
        Them, and those that are an application's fault; ``None`` for all.

    Raises:
        SettingsError: an entry is no number.
    """
    return None if text.strip() == "all" else APPLICATION_XIDS | _read_xids("ignore-xids", text)


def parse_fatal_xids(text: str) -> frozenset[int]:
    """Read Xids that make a card unhealthy, ignored or not, comma-separated.

    Raises:
        SettingsError: an entry is no number.
    """
    return _read_xids("fatal-xids", text)


def _read_xids(flag: str, text: str) -> frozenset[int]:
    entries = [entry.strip() for entry in text.split(",")] if text.strip() else []
    for entry in entries:
        if not _XID.match(entry):
            raise SettingsError(
                f"{flag}: Invalid value: {quote(entry)}: must be Xid numbers, comma-separated, "
                "such as 63,94"
            )
    return frozenset(int(entry) for entry in entries)

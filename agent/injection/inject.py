"""Makes the container edits of a holding: device nodes, environment, CDI names.

Cards are always in the order of their index, which stays the same after every restart. CUDA
numbers them in another order: the fastest first, or with ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` by PCI
address.

``NVIDIA_VISIBLE_DEVICES`` is set in every mode: many images default to ``all``, and with the NVIDIA
container runtime such an image would see every card of the node. ``NVIDIA_DRIVER_CAPABILITIES`` is
never set: the image sets it to the parts of the driver that its programs need (compute, video,
graphics), and container edits would override that. The same is true for ``PATH``, without
which an image's own commands are not found.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.errors import GrantError, SettingsError
from agent.holdings.edits import ContainerEdits, Mount
from agent.holdings.holding import Holding
from contract.errors import quote
from contract.inventory import Inventory

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
"""Read by the NVIDIA container runtime, and by people."""

VOID = "void"
"""The value with which the NVIDIA container runtime ignores a container."""

LIBRARY_PATH = "LD_LIBRARY_PATH"

CONTROL_DEVICES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)
"""Device nodes that every GPU program needs besides the card's own, if the host has them."""

DRIVER_IN_CONTAINER = "/usr/local/nvidia"
"""The folder in which images for NVIDIA's cards look for a mounted driver."""


class Injection(StrEnum):
    """How cards reach a container."""

    NODES = "nodes"
    """Device nodes in the container edits."""
    ENVVAR = "envvar"
    """The environment, by which the NVIDIA container runtime adds the driver; and device nodes.

    The runtime adds the nodes, too, but behind the back of runc and systemd: these take them away
    whenever they write the container's device rules again, as ``systemctl daemon-reload`` does.
    """
    ENVVAR_ONLY = "envvar-only"
    """Only the environment: the host has no device nodes in ``/dev``."""
    CDI = "cdi"
    """Names of CDI devices; the container runtime finds them in a spec."""


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """A directory of driver files that containers find: ``bin``, ``lib`` and ``lib64``.

    For hosts without the NVIDIA container runtime, and images without a driver. Paths are absolute.
    """

    host: str
    container: str = DRIVER_IN_CONTAINER

    def edits(self) -> ContainerEdits:
        """Return the mount, and the variable with the loader's search path.

        The variable replaces the image's own, which a device plugin cannot read; images for
        NVIDIA's cards have this same value.
        """
        libraries = ":".join(posixpath.join(self.container, each) for each in ("lib", "lib64"))
        return ContainerEdits({LIBRARY_PATH: libraries}, mounts=(Mount(self.container, self.host),))


def inject(  # noqa: PLR0913 -- the parts of one response
    holding: Holding,
    inventory: Inventory,
    mode: Injection,
    *,
    control_devices: Sequence[str] = (),
    extra_devices: Sequence[str] = (),
    driver: DriverFiles | None = None,
    cdi_names: Mapping[str, str] | None = None,
) -> ContainerEdits:
    """Return the container edits of a holding.

    Only cores inject cards; memory alone has no edits here (enforcement adds its own). With
    ``envvar`` the NVIDIA container runtime adds the driver files, with ``envvar-only`` the device
    nodes, too; with ``cdi`` the spec has both, except for *extra_devices*. *cdi_names* has the
    fully qualified CDI name of every card, by UUID.

    Raises:
        GrantError: a card has no CDI name.
    """
    if not holding.cores_per_card:
        return ContainerEdits()
    if mode is Injection.CDI:
        # Otherwise NVIDIA's runtime would add these cards again, or those that the image requests.
        # NVIDIA's own specs set this value, too.
        names = tuple(_cdi_name(card, cdi_names or {}) for card in holding.cards)
        return ContainerEdits(
            {VISIBLE_DEVICES: VOID}, tuple(dict.fromkeys(extra_devices)), cdi=names
        )
    nodes: list[str] = []
    if mode is not Injection.ENVVAR_ONLY:
        for card in inventory.cards:
            nodes += card.device_nodes if card.uuid in holding.cards else ()
        nodes += control_devices
    edits = ContainerEdits(
        {VISIBLE_DEVICES: ",".join(holding.cards)}, tuple(dict.fromkeys([*nodes, *extra_devices]))
    )
    if driver is None or mode is not Injection.NODES:
        return edits
    return edits.merged_with(driver.edits())


def shared_by_all(
    *, control_devices: Sequence[str] = (), driver: DriverFiles | None = None
) -> ContainerEdits:
    """Return the edits of every container with a card, for our own CDI spec."""
    common = ContainerEdits({VISIBLE_DEVICES: VOID}, tuple(dict.fromkeys(control_devices)))
    return common.merged_with(driver.edits()) if driver is not None else common


def parse_extra_devices(text: str) -> tuple[str, ...]:
    """Parse additional device nodes for every container: paths below ``/dev``, comma-separated."""
    entries = [entry.strip() for entry in text.split(",")] if text.strip() else []
    for entry in entries:
        if not entry.startswith("/dev/") or not _plain(entry):
            raise SettingsError(
                f"extra-devices: Invalid value: {quote(entry)}: must be absolute paths below "
                "/dev, comma-separated, such as /dev/infiniband/uverbs0"
            )
    return tuple(dict.fromkeys(entries))


def parse_directory(flag: str, text: str) -> str:
    """Check and return the absolute path of a directory to mount."""
    if not text.startswith("/") or text == "/" or not _plain(text):
        raise SettingsError(
            f"{flag}: Invalid value: {quote(text)}: must be an absolute path without '.' and "
            "'..', such as /opt/nvidia"
        )
    return text


def _plain(path: str) -> bool:
    """Return whether a path is normalised and printable."""
    return posixpath.normpath(path) == path and path.isprintable() and not path.startswith("//")


def _cdi_name(card: str, names: Mapping[str, str]) -> str:
    if card not in names:
        raise GrantError(f"card {card} has no CDI name on this node now")
    return names[card]

"""The answer that brings a container its cards: device nodes and environment, from a grant.

Cards are always in the order of their index, the same after every restart. It is not the
order in which CUDA numbers them: that is the fastest first, or with
``CUDA_DEVICE_ORDER=PCI_BUS_ID`` by PCI address, whatever the order here.

``NVIDIA_VISIBLE_DEVICES`` is set in every mode: many images default to ``all``, and where
the NVIDIA container runtime is at work such an image would see every card of the node.
``NVIDIA_DRIVER_CAPABILITIES`` is never set: which parts of the driver a program needs
(compute, video, graphics) its image knows and says, and what an ``Allocate`` answer sets
replaces what an image says. So it is with ``PATH``, without which an image's own commands
are not found.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.allocator.grants import ContainerEdits, Grant, Mount
from agent.errors import GrantError, SettingsError
from contract.errors import quote
from contract.inventory import Inventory
from contract.resource import Resource

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
"""Read by the NVIDIA container runtime, and by people."""

VOID = "void"
"""Tells the NVIDIA container runtime to leave a container alone."""

LIBRARY_PATH = "LD_LIBRARY_PATH"

CONTROL_DEVICES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)
"""Device nodes every GPU program needs beside the card's own, where the host has them."""

DRIVER_IN_CONTAINER = "/usr/local/nvidia"
"""Where images made for NVIDIA's cards look for a driver that is not their own."""


class Injection(StrEnum):
    """How cards reach a container."""

    NODES = "nodes"
    """Device nodes in the ``Allocate`` answer."""
    ENVVAR = "envvar"
    """The environment alone; the NVIDIA container runtime does the rest."""
    CDI = "cdi"
    """Names of CDI devices; the container runtime reads in a spec what they are."""


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """A directory of driver files that containers find: ``bin``, ``lib`` and ``lib64``.

    For hosts without the NVIDIA container runtime, and images without a driver. Paths are absolute.
    """

    host: str
    container: str = DRIVER_IN_CONTAINER

    def edits(self) -> ContainerEdits:
        """Return the mount, and the variable that tells the loader where the libraries are.

        The variable replaces the image's own, which no device plugin can read; images made
        for NVIDIA's cards have this same value.
        """
        libraries = ":".join(posixpath.join(self.container, each) for each in ("lib", "lib64"))
        return ContainerEdits({LIBRARY_PATH: libraries}, mounts=(Mount(self.container, self.host),))


def inject(  # noqa: PLR0913 -- one answer, spelled out
    grant: Grant,
    inventory: Inventory,
    mode: Injection,
    *,
    control_devices: Sequence[str] = (),
    extra_devices: Sequence[str] = (),
    driver: DriverFiles | None = None,
    cdi_names: Mapping[str, str] | None = None,
) -> ContainerEdits:
    """Make the answer for one grant.

    The core answer carries the cards. Another resource's carries none of them: what enforces
    the memory limit comes from enforcement. With ``envvar`` the NVIDIA container runtime decides
    on device nodes and driver files, with ``cdi`` the spec does, but for *extra_devices*.
    *cdi_names* has the fully qualified CDI name of every card, by UUID.

    Raises:
        GrantError: a card has no CDI name.
    """
    if grant.resource is not Resource.CORE:
        return ContainerEdits()
    if mode is Injection.CDI:
        # The runtime of NVIDIA would add the same cards once more, or those that the image
        # asks for. NVIDIA's own specs say this, too.
        names = tuple(_cdi_name(card, cdi_names or {}) for card in grant.cards)
        return ContainerEdits(
            {VISIBLE_DEVICES: VOID}, tuple(dict.fromkeys(extra_devices)), cdi=names
        )
    answer = ContainerEdits({VISIBLE_DEVICES: ",".join(grant.cards)})
    if mode is Injection.ENVVAR:
        return answer
    nodes = [card.device for card in inventory.cards if card.uuid in grant.cards]
    answer = answer.merged_with(
        ContainerEdits(devices=tuple(dict.fromkeys([*nodes, *control_devices, *extra_devices])))
    )
    return answer.merged_with(driver.edits()) if driver is not None else answer


def shared_by_all(
    *, control_devices: Sequence[str] = (), driver: DriverFiles | None = None
) -> ContainerEdits:
    """Return what every container with a card finds in ``cdi``: for a spec of our own."""
    common = ContainerEdits({VISIBLE_DEVICES: VOID}, tuple(dict.fromkeys(control_devices)))
    return common.merged_with(driver.edits()) if driver is not None else common


def parse_extra_devices(text: str) -> tuple[str, ...]:
    """Read further device nodes for every container, comma-separated paths below ``/dev``."""
    entries = [entry.strip() for entry in text.split(",")] if text.strip() else []
    for entry in entries:
        if not entry.startswith("/dev/") or not _plain(entry):
            raise SettingsError(
                f"extra-devices: Invalid value: {quote(entry)}: must be absolute paths below "
                "/dev, comma-separated, such as /dev/infiniband/uverbs0"
            )
    return tuple(dict.fromkeys(entries))


def parse_directory(flag: str, text: str) -> str:
    """Read the absolute path of a directory that is mounted."""
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

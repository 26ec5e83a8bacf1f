"""The plugins of one resource: which one serves, and which list the kubelet gets. Pure; no I/O.

The newest registration serves. Older plugins, and plugins that leave a call unanswered, are silent:
one of them serves again only after it has responded, as it may hang, and if no other plugin serves.
While no plugin serves, the kubelet keeps the last list until patience is over, and then gets the
same list with every device Unhealthy.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from common.kubelet_api import deviceplugin_pb2 as api

P = TypeVar("P")


@dataclass(slots=True)
class _Member(Generic[P]):
    plugin: P
    number: int
    options: bytes
    devices: bytes
    silent: bool = False


class Roster(Generic[P]):
    """The plugins of one resource that are connected, by the order of their registrations.

    Attributes:
        devices: the ``ListAndWatchResponse`` for the kubelet; ``None`` before the first list.
        options: the ``DevicePluginOptions`` of the plugin that serves, or served last.
        given_up: whether no plugin serves, and patience is over.
    """

    def __init__(self) -> None:
        """Start without a plugin."""
        self._members: dict[P, _Member[P]] = {}
        self.devices: bytes | None = None
        self.options = b""
        self.given_up = False

    def __contains__(self, plugin: P) -> bool:
        """Return whether a plugin is connected."""
        return plugin in self._members

    @property
    def plugins(self) -> tuple[P, ...]:
        """The plugins that are connected, oldest registration first."""
        return tuple(
            each.plugin for each in sorted(self._members.values(), key=lambda each: each.number)
        )

    @property
    def silent(self) -> tuple[P, ...]:
        """The silent plugins, which must respond before they serve again, newest first."""
        silent = [each for each in self._members.values() if each.silent]
        return tuple(each.plugin for each in sorted(silent, key=lambda each: -each.number))

    @property
    def serving(self) -> P | None:
        """The newest plugin that is not silent, which gets the calls; ``None`` without one."""
        responding = [each for each in self._members.values() if not each.silent]
        return max(responding, key=lambda each: each.number).plugin if responding else None

    def set_devices(self, plugin: P, number: int, options: bytes, devices: bytes) -> None:
        """Set a plugin's list of devices; its first list makes it connected.

        Args:
            plugin: the plugin.
            number: number of its registration; a higher one is newer.
            options: its ``DevicePluginOptions``.
            devices: a ``ListAndWatchResponse`` that can be decoded.
        """
        member = self._members.get(plugin)
        if member is None:
            newest = all(each.number < number for each in self._members.values())
            for each in self._members.values():
                each.silent = each.silent or newest
            member = _Member(plugin, number, options, devices, silent=not newest)
            self._members[plugin] = member
        member.devices = devices
        self._update()

    def leave(self, plugin: P) -> None:
        """Remove a plugin whose stream has ended."""
        if self._members.pop(plugin, None) is not None:
            self._update()

    def mark_silent(self, plugin: P) -> bool:
        """Stop using a plugin that left a call unanswered; return whether it was in use.

        If no other plugin serves, give up at once: the call has already waited for all of patience.
        """
        member = self._members.get(plugin)
        if member is None or member.silent:
            return False
        member.silent = True
        self._update()
        self.give_up()
        return True

    def mark_responding(self, plugin: P) -> None:
        """Use a plugin again that has responded; older ones become silent."""
        member = self._members.get(plugin)
        if member is not None:
            member.silent = False
            for each in self._members.values():
                each.silent = each.silent or each.number < member.number
            self._update()

    def give_up(self) -> None:
        """Mark all devices unhealthy for the kubelet, unless a plugin serves."""
        if self.serving is None and self.devices is not None and not self.given_up:
            self.devices = unhealthy(self.devices)
            self.given_up = True

    def _update(self) -> None:
        if (plugin := self.serving) is not None:
            member = self._members[plugin]
            self.devices, self.options, self.given_up = member.devices, member.options, False


def unhealthy(devices: bytes) -> bytes:
    """Return the same list of devices, each of them Unhealthy.

    Args:
        devices: a ``ListAndWatchResponse`` that can be decoded.
    """
    response = api.ListAndWatchResponse.FromString(devices)
    for each in response.devices:
        each.health = "Unhealthy"
    return response.SerializeToString()

"""The plugins of one resource: which of them serves, and what the kubelet is told. Pure; no I/O.

The newest registration serves. All older ones are passed over: one of them serves again when nobody
else does and it has answered, for it may have hung meanwhile. So is a plugin that leaves a call
unanswered. While nobody serves, the kubelet is told the last list, until patience is over: then the
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
        devices: the ``ListAndWatchResponse`` for the kubelet; ``None`` before the first came.
        options: the ``DevicePluginOptions`` of the plugin that serves, or served last.
        given_up: whether nobody serves, and patience is over.
    """

    def __init__(self) -> None:
        """Begin without a plugin."""
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
    def passed_over(self) -> tuple[P, ...]:
        """The plugins that have to answer before one of them serves, newest first."""
        silent = [each for each in self._members.values() if each.silent]
        return tuple(each.plugin for each in sorted(silent, key=lambda each: -each.number))

    @property
    def serving(self) -> P | None:
        """The plugin that is asked: the newest that is heard; ``None`` while there is none."""
        heard = [each for each in self._members.values() if not each.silent]
        return max(heard, key=lambda each: each.number).plugin if heard else None

    def set_devices(self, plugin: P, number: int, options: bytes, devices: bytes) -> None:
        """Take a list of devices; a plugin's first makes it connected.

        Args:
            plugin: who sent it.
            number: of its registration; a higher one is newer.
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
        """Remove a plugin, whose stream has ended."""
        if self._members.pop(plugin, None) is not None:
            self._update()

    def mark_silent(self, plugin: P) -> bool:
        """Pass over a plugin that left a call unanswered; tell whether it was counted on before.

        If nobody else is there, give up at once: the call has waited for as long as any may wait.
        """
        member = self._members.get(plugin)
        if member is None or member.silent:
            return False
        member.silent = True
        self._update()
        self.give_up()
        return True

    def mark_responding(self, plugin: P) -> None:
        """Count on a plugin again that has answered, and on none that is older."""
        member = self._members.get(plugin)
        if member is not None:
            member.silent = False
            for each in self._members.values():
                each.silent = each.silent or each.number < member.number
            self._update()

    def give_up(self) -> None:
        """Tell the kubelet that all devices are unhealthy, unless somebody serves."""
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

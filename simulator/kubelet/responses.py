"""What a plugin's ``Allocate`` responses for one container, and how two responses are merged."""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.json_format import MessageToDict

from common.kubelet_api import deviceplugin_pb2 as pb

PluginResponse: TypeAlias = pb.ContainerAllocateResponse
"""The container edits for one resource, or merged for all resources."""


class MergedResponse(NamedTuple):
    """The responses for all resources of a container, merged.

    Attributes:
        response: all edits; of two that conflict, the first.
        conflicts: a text for each edit that differs in a later response.
    """

    response: PluginResponse
    conflicts: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return the fields of the message, and the conflicts."""
        fields = MessageToDict(
            self.response,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        return {**fields, "conflicts": self.conflicts}


def merge_responses(responses: Iterable[PluginResponse]) -> MergedResponse:
    """Merge the responses for all resources as the kubelet does: the first wins, without a log.

    The kubelet iterates over a Go map here, so the order is random; *responses* must come in such
    a random order.
    """
    merged = MergedResponse(PluginResponse(), [])
    of_path: dict[tuple[str, str], Any] = {}
    for response in responses:
        for kind in ("envs", "annotations"):
            into = getattr(merged.response, kind)
            for key, value in getattr(response, kind).items():
                if into.setdefault(key, value) != value:
                    merged.conflicts.append(f"{kind} {key}: {into[key]!r} and {value!r}")
        for kind in ("mounts", "devices"):
            for each in getattr(response, kind):
                kept = of_path.setdefault((kind, each.container_path), each)
                if kept is each:
                    getattr(merged.response, kind).append(each)
                elif kept.host_path != each.host_path:
                    paths = f"{kept.host_path!r} and {each.host_path!r}"
                    merged.conflicts.append(f"{kind} {each.container_path}: {paths}")
        names = {each.name for each in merged.response.cdi_devices}
        merged.response.cdi_devices.extend(
            each for each in response.cdi_devices if each.name not in names
        )
    return merged

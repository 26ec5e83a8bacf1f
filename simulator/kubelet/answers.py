"""What a plugin's ``Allocate`` answers for one container, and how two answers are merged."""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.json_format import MessageToDict

from common.kubelet_api import deviceplugin_pb2 as pb

PluginResponse: TypeAlias = pb.ContainerAllocateResponse
"""What a container receives: of one resource, or of all once merged."""


class MergedResponse(NamedTuple):
    """What a container finally received.

    Attributes:
        answer: everything, the first of two that conflict.
        conflicts: what a later answer said differently, in words.
    """

    answer: PluginResponse
    conflicts: list[str]

    def as_json(self) -> dict[str, Any]:
        """Write it down: the fields of the message, and the conflicts."""
        fields = MessageToDict(
            self.answer,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        return {**fields, "conflicts": self.conflicts}


def merge_responses(answers: Iterable[PluginResponse]) -> MergedResponse:
    """Merge the answers of all resources as the kubelet does: the first wins, silently.

    The kubelet walks a Go map here, so with a conflict it is chance which one is first;
    *answers* come in that chance order.
    """
    merged = MergedResponse(PluginResponse(), [])
    of_path: dict[tuple[str, str], Any] = {}
    for answer in answers:
        for kind in ("envs", "annotations"):
            into = getattr(merged.answer, kind)
            for key, value in getattr(answer, kind).items():
                if into.setdefault(key, value) != value:
                    merged.conflicts.append(f"{kind} {key}: {into[key]!r} and {value!r}")
        for kind in ("mounts", "devices"):
            for each in getattr(answer, kind):
                kept = of_path.setdefault((kind, each.container_path), each)
                if kept is each:
                    getattr(merged.answer, kind).append(each)
                elif kept.host_path != each.host_path:
                    paths = f"{kept.host_path!r} and {each.host_path!r}"
                    merged.conflicts.append(f"{kind} {each.container_path}: {paths}")
        names = {each.name for each in merged.answer.cdi_devices}
        merged.answer.cdi_devices.extend(
            each for each in answer.cdi_devices if each.name not in names
        )
    return merged

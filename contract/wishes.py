"""The wishes of a pod's author: the webhook checks them, the agent follows them.

``use-gpu-type``, ``nouse-gpu-type``: parts of product names, in any case. ``use-gpu-uuid``,
``nouse-gpu-uuid``: cards. Lists are comma-separated; what is empty is no wish.
``gpu-policy``: which card a share prefers.
``gpu-node-policy``: which node the scheduler extender prefers.
``gpu-link``: what several whole cards of a container must have in common.
``vcuda-core-limit``: how far a share may go beyond its cores while others leave them idle.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.demand import CORES_PER_CARD
from contract.errors import FieldError, FieldFault, quote
from contract.names import Names

POLICIES = ("binpack", "spread")
"""The values of ``gpu-policy`` and ``gpu-node-policy``."""

LINKS = ("nvlink", "numa")
"""The values of ``gpu-link``: NVLinks connect the cards, or they are of one NUMA node."""

_UUID = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._]{0,54}[A-Za-z0-9])?\Z", re.ASCII)
_CORE_LIMIT = re.compile(r"[0-9]{1,9}\Z", re.ASCII)
_LONGEST_TYPE = 96  # NVML's product names are at most so long
_MOST_ENTRIES = 256
"""An annotation has room for thousands, each of which is held against each card, or each other."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes of a pod's author; a wish that is not made is empty.

    Attributes:
        use_types: parts of product names, lower case: a card must have one of them.
        nouse_types: a card must have none of them.
        use_uuids: a card must be one of them.
        nouse_uuids: a card must be none of them.
        policy: which card a share prefers, one of :data:`POLICIES`.
        core_limit: hundredths of a card, 1 to 100, that a share may use in all while others
            leave them idle; ``None`` holds it to what it asked for.
        node_policy: which node the scheduler prefers, one of :data:`POLICIES`.
        link: what several whole cards must have in common, one of :data:`LINKS`.
    """

    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    nouse_uuids: tuple[str, ...] = ()
    policy: str = ""
    core_limit: int | None = None
    node_policy: str = ""
    link: str = ""

    @property
    def rules_out_cards(self) -> bool:
        """Whether any card may be ruled out."""
        return bool(self.use_types or self.nouse_types or self.use_uuids or self.nouse_uuids)

    def excludes(self, *, model: str, uuid: str) -> str:
        """Return the annotation that rules a card out; empty when none does."""
        if not self.rules_out_cards:
            return ""
        name = model.lower()
        if self.use_uuids and uuid not in self.use_uuids:
            return "use-gpu-uuid"
        if uuid in self.nouse_uuids:
            return "nouse-gpu-uuid"
        if self.use_types and not any(each in name for each in self.use_types):
            return "use-gpu-type"
        if any(each in name for each in self.nouse_types):
            return "nouse-gpu-type"
        return ""


NO_WISHES = Wishes()


def read_wishes(
    annotations: Mapping[str, Any], names: Names, *, path: str = ""
) -> tuple[Wishes, tuple[FieldError, ...]]:
    """Read what can be read and find everything that is wrong, without raising.

    Args:
        annotations: of a pod or a template, possibly hostile.
        names: the annotations' names.
        path: what stands before ``metadata`` in the paths of findings.
    """
    if annotations.keys().isdisjoint(names.wishes):
        return NO_WISHES, ()
    errors: list[FieldError] = []

    def entries(key: str, what: str) -> tuple[str, ...]:
        if key not in annotations:
            return ()
        found, wrong = _read_list(annotations[key], what)
        if wrong:
            errors.append(_refuse(path, key, annotations[key], *wrong))
        return found

    use_types = entries(names.use_gpu_type, "type")
    nouse_types = entries(names.nouse_gpu_type, "type")
    use_uuids = entries(names.use_gpu_uuid, "uuid")
    nouse_uuids = entries(names.nouse_gpu_uuid, "uuid")
    types_out = all(any(each in one for each in nouse_types) for one in use_types)
    for key, used, out in (
        (names.nouse_gpu_type, use_types, types_out),
        (names.nouse_gpu_uuid, use_uuids, set(use_uuids) <= set(nouse_uuids)),
    ):
        if used and out:
            rule = f"rules out everything that {key.replace('/nouse-', '/use-')} asks for"
            errors.append(_refuse(path, key, annotations[key], rule, "wishes-contradict"))
    words = []
    for key, known, name in (
        (names.gpu_policy, POLICIES, "not-a-policy"),
        (names.gpu_node_policy, POLICIES, "not-a-policy"),
        (names.gpu_link, LINKS, "not-a-link"),
    ):
        word = annotations.get(key, "")
        if word not in ("", *known):
            errors.append(_refuse(path, key, word, "must be " + " or ".join(known), name))
            word = ""
        words.append(word)
    core_limit: int | None = None
    if annotations.get(names.core_limit, "") != "":
        core_limit = _read_core_limit(annotations[names.core_limit])
        if core_limit is None:
            rule = f"must be a whole number, 1 to {CORES_PER_CARD} (more is read as that)"
            value = annotations[names.core_limit]
            errors.append(_refuse(path, names.core_limit, value, rule, "not-a-core-limit"))
    policy, node_policy, link = words
    wishes = Wishes(
        use_types, nouse_types, use_uuids, nouse_uuids, policy, core_limit, node_policy, link
    )
    return wishes, tuple(errors)


def _read_core_limit(value: object) -> int | None:
    """Read a limit as gpu-manager does: what is more than a whole card is a whole card."""
    if not isinstance(value, str) or not _CORE_LIMIT.match(value) or int(value) < 1:
        return None
    return min(int(value), CORES_PER_CARD)


def _read_list(value: object, what: str) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """Read a list as far as it can be read; give the rule it breaks too, and that rule's name.

    Empty entries are none: a chart writes ``""`` where its user wishes for nothing.
    """
    if not isinstance(value, str):
        return (), ("must be text", "wish-not-text")
    listed = [entry.strip() for entry in value.split(",", _MOST_ENTRIES)]
    if len(listed) > _MOST_ENTRIES:
        rule = (f"must have at most {_MOST_ENTRIES} entries", "wish-too-long")
        return _known(listed[:_MOST_ENTRIES], what), rule
    for entry in filter(None, listed):
        if what == "uuid" and not _UUID.match(entry):
            rule = (f"{quote(entry)} is no card UUID such as GPU-5f3c1a2e", "wish-not-a-uuid")
            return _known(listed, what), rule
        if what == "type" and not (entry.isprintable() and len(entry) <= _LONGEST_TYPE):
            rule = (f"{quote(entry)} is no part of a product name such as A100", "wish-not-a-type")
            return _known(listed, what), rule
    return _known(listed, what), None


def _known(listed: list[str], what: str) -> tuple[str, ...]:
    """Keep each entry once; types are compared in lower case."""
    entries = (entry.lower() if what == "type" else entry for entry in listed if entry)
    return tuple(dict.fromkeys(entries))


def _refuse(path: str, key: str, value: object, detail: str, rule: str) -> FieldError:
    where = f"{path}metadata.annotations[{key}]"
    return FieldError(where, FieldFault.INVALID, detail, rule, quote(value))

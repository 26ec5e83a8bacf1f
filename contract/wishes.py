"""The wishes of a pod's author: the webhook checks them, the agent follows them.

``use-gpu-type``, ``nouse-gpu-type``: parts of product names, in upper or lower case, as NVML has
them or as the node's label ``gpu-model`` does.
``use-gpu-uuid``, ``nouse-gpu-uuid``: cards, by UUIDs in upper or lower case. Lists are
comma-separated; empty entries are ignored.
``gpu-policy``: which card a share prefers.
``gpu-node-policy``: which node the scheduler extender prefers.
``gpu-link``: what must connect several cards of a container, whole or shared.
``vcuda-core-limit``: cores that a share may use in all while other cores of its card are idle.
``gpu-processes``: how many processes share a container's limits, which hold for each (MPS).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.demand import CORES_PER_CARD
from contract.errors import FieldError, quote
from contract.inventory import is_card_uuid
from contract.names import Names
from contract.text import fold_uuid, to_label

POLICIES = ("binpack", "spread")
"""The values of ``gpu-policy`` and ``gpu-node-policy``."""

LINKS = ("nvlink", "numa")
"""The values of ``gpu-link``: NVLinks connect the cards, or they are on one NUMA node."""

MOST_PROCESSES = 48
"""So many processes may use one card by MPS (NVIDIA's documentation, from Volta on)."""

_COUNT = re.compile(r"[0-9]{1,9}\Z", re.ASCII)
_LONGEST_TYPE = 96  # NVML's limit for product names
_MOST_ENTRIES = 256
"""An annotation could have thousands, and each is compared with each card and other entries."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes of a pod's author; fields of absent wishes are empty.

    Attributes:
        use_types: parts of product names, lower case: a card's name, or its form as a label,
            must contain one of them.
        nouse_types: parts of product names, lower case: neither may contain any of them.
        use_uuids: UUIDs, lower case: a card must be one of these.
        nouse_uuids: UUIDs, lower case: a card must be none of these.
        policy: which card a share prefers, one of :data:`POLICIES`.
        core_limit: hundredths of a card, 1 to 100, that a share may use in all while other cores
            are idle; ``None`` limits it to the cores that it requests.
        node_policy: which node the scheduler prefers, one of :data:`POLICIES`.
        link: what must connect several cards of a container, one of :data:`LINKS`.
        processes: over how many processes a container divides its limits, where they hold for each.
    """

    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    nouse_uuids: tuple[str, ...] = ()
    policy: str = ""
    core_limit: int | None = None
    node_policy: str = ""
    link: str = ""
    processes: int = 1

    @property
    def excludes_cards(self) -> bool:
        """Whether these wishes may exclude any card."""
        return bool(self.use_types or self.nouse_types or self.use_uuids or self.nouse_uuids)

    def excludes(self, *, model: str, uuid: str) -> str:
        """Return the name of the wish that excludes a card; empty if none does."""
        if not self.excludes_cards:
            return ""
        key = fold_uuid(uuid)
        if self.use_uuids and key not in self.use_uuids:
            return "use-gpu-uuid"
        if key in self.nouse_uuids:
            return "nouse-gpu-uuid"
        if self.use_types and not _names_any(self.use_types, model):
            return "use-gpu-type"
        if _names_any(self.nouse_types, model):
            return "nouse-gpu-type"
        return ""

    def names_instance(self, *, model: str, uuid: str) -> bool:
        """Return whether the author wants this MIG instance: by its UUID or its profile.

        A type that is in the name of its card, too, such as ``a100``, does not name the profile.
        """
        card = model.partition(" MIG ")[0]
        profiles = tuple(each for each in self.use_types if not _names_any((each,), card))
        return fold_uuid(uuid) in self.use_uuids or _names_any(profiles, model)


NO_WISHES = Wishes()


def read_wishes(
    annotations: Mapping[str, Any], names: Names, *, path: str = ""
) -> tuple[Wishes, tuple[FieldError, ...]]:
    """Read all wishes that can be read and find all errors, without raising."""
    if annotations.keys().isdisjoint(names.wishes):
        return NO_WISHES, ()
    errors: list[FieldError] = []

    def entries(key: str, kind: str) -> tuple[str, ...]:
        if key not in annotations:
            return ()
        found, error = _read_list(annotations[key], kind)
        if error:
            errors.append(_field_error(path, key, annotations[key], *error))
        return found

    use_types = entries(names.use_gpu_type, "type")
    nouse_types = entries(names.nouse_gpu_type, "type")
    use_uuids = entries(names.use_gpu_uuid, "uuid")
    nouse_uuids = entries(names.nouse_gpu_uuid, "uuid")
    all_excluded = all(_names_any(nouse_types, used) for used in use_types)
    for key, used, excluded in (
        (names.nouse_gpu_type, use_types, all_excluded),
        (names.nouse_gpu_uuid, use_uuids, set(use_uuids) <= set(nouse_uuids)),
    ):
        if used and excluded:
            rule = f"excludes everything that {key.replace('/nouse-', '/use-')} allows"
            errors.append(_field_error(path, key, annotations[key], rule, "wishes-contradict"))
    words = []
    for key, allowed, detail, rule_name in (
        (names.gpu_policy, POLICIES, "must be binpack or spread", "not-a-policy"),
        (names.gpu_node_policy, POLICIES, "must be binpack or spread", "not-a-policy"),
        (names.gpu_link, LINKS, "must be nvlink or numa", "not-a-link"),
    ):
        word = annotations.get(key, "")
        if word not in ("", *allowed):
            errors.append(_field_error(path, key, word, detail, rule_name))
            word = ""
        words.append(word)
    core_limit = _read_count(annotations.get(names.core_limit, ""))
    if core_limit is None and annotations.get(names.core_limit, "") != "":
        rule = f"must be a whole number from 1 to {CORES_PER_CARD} (more counts as that)"
        value = annotations[names.core_limit]
        errors.append(_field_error(path, names.core_limit, value, rule, "not-a-core-limit"))
    if core_limit is not None:  # as gpu-manager does: more than a whole card counts as one
        core_limit = min(core_limit, CORES_PER_CARD)
    processes = _read_count(annotations.get(names.gpu_processes, "1"))
    if processes is None or processes > MOST_PROCESSES:
        rule = f"must be a whole number from 1 to {MOST_PROCESSES}"
        if (value := annotations[names.gpu_processes]) != "":
            errors.append(_field_error(path, names.gpu_processes, value, rule, "not-a-count"))
        processes = 1
    policy, node_policy, link = words
    cards = use_types, nouse_types, use_uuids, nouse_uuids
    return Wishes(*cards, policy, core_limit, node_policy, link, processes), tuple(errors)


def _names_any(types: tuple[str, ...], model: str) -> bool:
    """Return whether a product name, or its form as a label, contains any of these types."""
    forms = model.lower(), to_label(model).lower()
    return any(each in form for each in types for form in forms)


def _read_count(value: object) -> int | None:
    """Read a whole number of 1 or more; ``None`` for anything else."""
    if not isinstance(value, str) or not _COUNT.match(value) or int(value) < 1:
        return None
    return int(value)


def _read_list(value: object, kind: str) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """Read a list; return its readable entries and, if it breaks a rule, text and name of the rule.

    Empty entries are ignored: charts write ``""`` if their user sets no wish.
    """
    if not isinstance(value, str):
        return (), ("must be text", "wish-not-text")
    listed = [entry.strip() for entry in value.split(",", _MOST_ENTRIES)]
    if len(listed) > _MOST_ENTRIES:
        rule = (f"must have at most {_MOST_ENTRIES} entries", "wish-too-long")
        return _unique(listed[:_MOST_ENTRIES], kind), rule
    for entry in filter(None, listed):
        if kind == "uuid" and not is_card_uuid(entry):
            rule = (f"{quote(entry)} is not a card UUID such as GPU-5f3c1a2e", "wish-not-a-uuid")
            return _unique(listed, kind), rule
        if kind == "type" and not (entry.isprintable() and len(entry) <= _LONGEST_TYPE):
            text = f"{quote(entry)} cannot be part of a product name such as A100"
            return _unique(listed, kind), (text, "wish-not-a-type")
    return _unique(listed, kind), None


def _unique(listed: list[str], kind: str) -> tuple[str, ...]:
    """Keep each entry once, in the case in which it is compared."""
    fold = fold_uuid if kind == "uuid" else str.lower
    return tuple(dict.fromkeys(map(fold, filter(None, listed))))


def _field_error(path: str, key: str, value: object, detail: str, rule: str) -> FieldError:
    where = f"{path}metadata.annotations[{key}]"
    return FieldError(where, detail, rule, quote(value))

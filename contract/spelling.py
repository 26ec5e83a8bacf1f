"""Names that were meant as ours: misspelt ones, and those of other systems.

No node offers ``tencent.com/vcuda-cores``: a pod that requests it stays pending forever, and the
scheduler reports only ``Insufficient tencent.com/vcuda-cores``. Nobody reads an annotation
``tencent.com/use-gputype``: its pod runs on any card.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Any

from contract.errors import FieldError, quote
from contract.names import Names
from contract.other_systems import MIG_PREFIX, NVIDIA, REQUESTS, RESOURCES, WISHES
from contract.quantity import as_written, parse_quantity
from contract.requests import annotations_of, keys_of, listings_of, walk_containers
from contract.resource import Resource
from contract.workloads import template_of

_VCUDA = "vcuda"
_MARKS = (_VCUDA, "gpu", MIG_PREFIX)
"""Every misspelt resource contains one of these, in upper or lower case."""

_INTENDED = {"vcuda": Resource.CORE, "vcuda-mem": Resource.MEMORY}
"""The intended resource, for misspelt names that are not similar enough."""

_CLOSE = 0.8
"""Least similarity by ``difflib``; ``vcuda-cor``, ``vcuda_core``, ``vcuda-memories`` have it."""

_CARDS = re.compile(
    r"(?:gpu|vcuda)[-_.]?cards?(?:[-_.](?P<container>.*))?", re.ASCII | re.IGNORECASE
)
"""Last part of an annotation that was meant to divide a container's share over several cards."""

_LONGEST_NAME = 317  # characters of a qualified name: a domain, a slash, 63 characters
_MOST = 32
"""Most names of a pod that are checked: a hostile pod may have thousands."""

_MOST_KEYS = 256
"""Most annotations and labels that are compared: a hostile object may have 100,000."""

_UNITS = {Resource.CORE: "100 is one card", Resource.MEMORY: "in blocks"}


@dataclass(frozen=True, slots=True)
class MisnamedRequest:
    """A resource or an annotation by which a pod requests GPUs, and that is not ours.

    Attributes:
        right: what to write instead: our resource, and where if it is an annotation.
        unit: the unit of *right*, if the name is another system's; else empty.
        usual: whether another device plugin beside ours often offers it.
        error: the error, if no node can offer it because it is in our domain; else ``None``.
        replaces: path of *right* in the same container.
    """

    name: str
    right: str
    unit: str = ""
    usual: bool = False
    error: FieldError | None = None
    replaces: str = ""


def find_misnamed(
    pod: Mapping[str, Any], names: Names, *, path: str = ""
) -> tuple[MisnamedRequest, ...]:
    """Find requests by names that are nearly ours, or another system's."""
    found = islice(_candidates(pod.get("spec"), names, f"{path}spec"), _MOST)
    resources = (_read_name(*each, names) for each in found)
    annotations = annotations_of(pod)
    shares = (
        MisnamedRequest(key, f"{names.of(resource)} in limits", _UNITS[resource])
        for key, resource in REQUESTS.items()
        if key in annotations
    )
    return (*filter(None, resources), *shares)


def advise_names(misnamed: Iterable[MisnamedRequest]) -> tuple[str, ...]:
    """Return what to write instead, one sentence for each of our resources."""
    misnamed = tuple(misnamed)
    nearly = dict.fromkeys(
        f"write {each.right}, {each.name} is not served here" for each in misnamed if not each.unit
    )
    others: dict[str, dict[str, None]] = {}
    for each in misnamed:
        if each.unit:
            others.setdefault(f"{each.right} ({each.unit})", {})[each.name] = None
    return (
        *nearly,
        *(
            f"write {right}: gpu-turnstile does not serve {', '.join(found)}"
            for right, found in others.items()
        ),
    )


def intended_wish(key: str, names: Names) -> str:
    """Return the wish that an annotation or label was meant as, also if that is its name.

    Returns:
        The name of an annotation; empty if the key has nothing to do with wishes. In our own domain
        a similar name is enough; in others, and without one, it must be the same but for case,
        hyphens and a plural, or be another system's.
    """
    if key in names.wishes:
        return key
    if len(key) > _LONGEST_NAME:
        return ""
    domain, _, last = key.rpartition("/")
    plain = _plain(last)
    meant = WISHES.get(key) or _PLAIN_WISHES.get(plain)
    if meant is None and domain.lower() == names.domain:
        meant = _PLAIN_OWN.get(_close_to(plain))
    return f"{names.domain}/{meant}" if meant else ""


def intended_cards(key: str, names: Names, containers: Collection[str]) -> str:
    """Return the ``gpu-cards-<container>`` that an annotation or label was meant as.

    Returns:
        The name of an annotation, also if that is the key; empty if the key has nothing to do with
        it. In other domains, and without one, the key must name a container of the pod.
    """
    domain, _, last = key.rpartition("/") if len(key) <= _LONGEST_NAME else ("", "", "")
    found = _CARDS.fullmatch(last)
    if found is None:
        return ""
    named = found["container"] or ""
    if named not in containers and domain.lower() != names.domain:
        return ""
    only = next(iter(containers)) if len(containers) == 1 else "<container>"
    return names.gpu_cards_of(named or only)


def _intended(key: str, names: Names, containers: Collection[str]) -> str:
    return intended_wish(key, names) or intended_cards(key, names, containers)


def _container_names(pod: object) -> Collection[str]:
    """Return the names of a pod's or a template's containers."""
    spec = pod.get("spec") if isinstance(pod, Mapping) else None
    found = (container.get("name") for *_, container in walk_containers(spec))
    return {name for name in found if isinstance(name, str) and name}


def advise_wishes(pod: Mapping[str, Any], names: Names, *, path: str = "") -> Iterator[str]:
    """Return what to write instead of annotations that are nearly ours, and of labels."""
    containers = _container_names(pod)
    for key in _first_keys(pod, "annotations"):
        right = _intended(key, names, containers)
        if right not in ("", key):
            yield f"write {right}: gpu-turnstile does not read {key}"
    for key in _first_keys(pod, "labels"):
        if right := _intended(key, names, containers):
            yield f"write {right} in {path}metadata.annotations, not in labels"


def advise_places(
    workload: Mapping[str, Any], names: Names, *, steps: tuple[str, ...]
) -> Iterator[str]:
    """Return where to write annotations that a workload or a ``jobTemplate`` has in its metadata.

    Only a pod's own annotations are read, and these are the pod template's.

    *steps* is the path to the pod template; none if it is a pod.
    """
    found: object = workload
    place, template = "", ".".join(steps)
    containers = _container_names(template_of(workload, steps))
    for step in steps:
        if not isinstance(found, Mapping):
            return
        for key in (*_first_keys(found, "annotations"), *_first_keys(found, "labels")):
            if right := _intended(key, names, containers):
                yield f"write {right} in {template}.metadata.annotations, not in {place}metadata"
        found, place = found.get(step), f"{place}{step}."


def _first_keys(obj: Mapping[str, Any], field: str) -> Iterator[str]:
    return islice(keys_of(obj, field), _MOST_KEYS)


def _plain(last: str) -> str:
    return last.lower().replace("-", "").replace("_", "").removesuffix("s")


@lru_cache(maxsize=1024)
def _close_to(plain: str) -> str:
    """Return the most similar name of a wish; every GPU pod has some of our other names."""
    return next(iter(get_close_matches(plain, _PLAIN_OWN, 1, _CLOSE)), "")


def _last(name: str) -> str:
    return name.rpartition("/")[2]


_LAST_PARTS = {_last(name): resource for name, resource in Names().resources.items()}
_PLAIN_WISHES = {_plain(each): each for each in map(_last, sorted(Names().wishes))}
_PLAIN_OWN = {_plain(_last(name)): meant for name, meant in WISHES.items()} | _PLAIN_WISHES


def _read_name(
    container: str, field: str, name: str, value: object, names: Names
) -> MisnamedRequest | None:
    """Return what a resource was meant as; ``None`` if it has nothing to do with ours."""
    domain, _, last = name.rpartition("/")
    own, last = domain == names.domain, last.lower()
    if _VCUDA in last:
        (close,) = get_close_matches(last, _LAST_PARTS, 1, _CLOSE) or ("",)
        resource = _INTENDED.get(last) or _LAST_PARTS.get(close)
        if resource is None:
            return None
        right = names.of(resource)
        error = FieldError(
            f"{container}.{field}[{name}]",
            f"no node has such a resource: write {right}",
            "misspelt",
            quote(as_written(value)),
        )
        replaces = f"{container}.limits[{right}]"
        return MisnamedRequest(name, right, error=error if own else None, replaces=replaces)
    resource = RESOURCES.get(name)
    mig = name.startswith(MIG_PREFIX)
    if mig or (resource is None and own):
        resource = Resource.MEMORY if "mem" in last else Resource.CORE
    if resource is None:
        return None
    usual = name in NVIDIA or mig
    return MisnamedRequest(name, names.of(resource), _UNITS[resource], usual)


def _candidates(spec: object, names: Names, path: str) -> Iterator[tuple[str, str, str, object]]:
    """Yield the resources that may be misnamed: path of ``resources``, listing, name and value."""
    ours = names.resources
    for field, index, container in walk_containers(spec):
        limits, requests = listings_of(container)
        if limits.keys() | requests.keys() <= _USUAL:
            continue  # the usual case of a container without GPUs
        more = {name: value for name, value in requests.items() if name not in limits}
        listed: dict[str, Mapping[str, Any]] = {"limits": limits, "requests": more}
        for listing, counts in listed.items():
            for name, value in counts.items():
                if name in ours or not isinstance(name, str) or len(name) > _LONGEST_NAME:
                    continue
                marked = name in RESOURCES or any(each in name.lower() for each in _MARKS)
                if marked and parse_quantity(value) != 0:
                    yield f"{path}.{field}[{index}].resources", listing, name, value


_USUAL = frozenset({"cpu", "memory", "ephemeral-storage"})

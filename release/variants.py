"""What each component changes: the base rendered with it and without it, and the difference.

An object is flattened: each leaf by the path to it. A list whose elements have names is entered by
name, as a strategic merge does it; every other list is a leaf.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import yaml

from release.manifests import kustomize

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "scheduler-own": ("scheduler-extender",),
    "view-use": ("view",),
}
"""The components that come before one; kustomize refuses it without them."""

_LAST = ("driver-auto",)  # it takes the place of what vcuda names
_DOMAIN = "domain"  # replaces text everywhere: a value of the chart does it


class Element(NamedTuple):
    """A step into a list: to the element of this name."""

    name: str


class Identity(NamedTuple):
    """What tells one object from all others."""

    api: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Absent:
    """Nothing at this path, or no such object."""


ABSENT = Absent()
Path_: TypeAlias = tuple[str | Element, ...]
Leaves: TypeAlias = dict[Path_, Any]
Objects: TypeAlias = dict[Identity, Leaves]


@dataclass(frozen=True, slots=True)
class Change:
    """What one component does to one object.

    Attributes:
        component: its folder.
        leaves: new values by path, ``ABSENT`` for what is removed; ``None`` for the object as a
            whole, which then comes or goes.
        comes: with ``leaves=None``: the object's leaves, ``ABSENT`` where it goes.
    """

    component: str
    leaves: Leaves | None
    comes: Leaves | Absent = ABSENT


@dataclass(frozen=True, slots=True)
class Variants:
    """The base, and the changes of each component in the order in which they are made."""

    components: tuple[str, ...]
    base: Objects
    changes: Mapping[Identity, tuple[Change, ...]]

    def identities(self) -> Iterator[Identity]:
        """Yield every object that may be there, in the order of the base, then of components."""
        yield from self.base
        yield from (each for each in self.changes if each not in self.base)


def components(deploy: Path) -> tuple[str, ...]:
    """Return the names of all components that a chart switches, in the order of their changes."""
    found = {each.name for each in (deploy / "components").iterdir() if each.is_dir()}
    first = sorted(found - {_DOMAIN, *_LAST})
    return (*first, *(each for each in _LAST if each in found))


def read(deploy: Path) -> Variants:
    """Render what is needed.

    Raises:
        NoKubectl: there is no kubectl.
        subprocess.CalledProcessError: it refuses a combination.
    """
    names = components(deploy)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        base = _render(place / "base", deploy, ())
        changes: dict[Identity, list[Change]] = {}
        for name in names:
            needs = NEEDS.get(name, ())
            before = base
            if needs:
                before = _render(place / f"{name}-before", deploy, needs)
            after = _render(place / name, deploy, (*needs, name))
            for identity, change in _changes(name, before, after):
                changes.setdefault(identity, []).append(change)
    return Variants(names, base, {key: tuple(value) for key, value in changes.items()})


def _render(place: Path, deploy: Path, taken: Iterable[str]) -> Objects:
    place.mkdir()
    here = os.path.relpath(deploy.resolve(), place)
    written = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{here}/base"],
        "components": [f"{here}/components/{each}" for each in taken],
    }
    (place / "kustomization.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    documents = yaml.safe_load_all(kustomize(place))
    return {identity_of(each): dict(_flatten(each, ())) for each in documents}


def identity_of(obj: Mapping[str, Any]) -> Identity:
    """Return the identity of an object."""
    metadata = obj["metadata"]
    return Identity(obj["apiVersion"], obj["kind"], metadata.get("namespace", ""), metadata["name"])


def _flatten(value: Any, path: Path_) -> Iterator[tuple[Path_, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flatten(inner, (*path, key))
    elif has_names(value):
        for each in value:
            yield from _flatten(each, (*path, Element(each["name"])))
    else:
        yield path, value


def has_names(value: Any) -> bool:
    """Return whether it is a list whose elements can be told apart by their names."""
    if not isinstance(value, list) or not value:
        return False
    if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in value):
        return False
    return len({each["name"] for each in value}) == len(value)


def _changes(name: str, before: Objects, after: Objects) -> Iterator[tuple[Identity, Change]]:
    for identity, leaves in after.items():
        if identity not in before:
            yield identity, Change(name, None, leaves)
        elif changed := _difference(before[identity], leaves):
            yield identity, Change(name, changed)
    for identity in before:
        if identity not in after:
            yield identity, Change(name, None)


def _difference(before: Leaves, after: Leaves) -> Leaves:
    changed = {
        path: value for path, value in after.items() if path not in before or before[path] != value
    }
    return changed | {path: ABSENT for path in before if path not in after}

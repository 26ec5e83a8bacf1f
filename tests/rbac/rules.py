"""What RBAC rules allow, and how that differs from what was asked for. Pure.

The meaning is that of Kubernetes (``RuleAllows`` of its RBAC evaluation): a rule is the
product of its groups, resources, verbs and names, rules only add up, nothing is denied.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

ANY = "*"


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """What a program asked the API server for, in the terms in which RBAC speaks of it.

    Attributes:
        verb: such as ``get``.
        group: API group, empty for the core.
        resource: plural, with subresource: ``pods/binding``.
        namespace: empty for cluster-wide objects and for lists over all namespaces.
        name: empty for a collection, and so for ``create``.
    """

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "cluster-wide"
        named = f' named "{self.name}"' if self.name else ""
        return f'verb "{self.verb}" on {_what(self.group, self.resource)}{named}, {where}'


@dataclass(frozen=True, slots=True, order=True)
class Permission:
    """One factor of a rule that is bound to an account.

    Attributes:
        file: where the rule is written.
        role: kind and name of its role.
        verb, group, resource: as in the rule; ``*`` stands for any.
        name: of the one object, empty for any.
        namespace: where it holds, empty for everywhere.
        url: a path of no resource, when the rule is about one.
    """

    file: str
    role: str
    verb: str
    group: str = ""
    resource: str = ""
    name: str = ""
    namespace: str = ""
    url: str = ""

    def __str__(self) -> str:
        what = self.url or _what(self.group, self.resource)
        named = f' named "{self.name}"' if self.name else ""
        return f'verb "{self.verb}" on {what}{named}'

    def allows(self, request: Request) -> bool:
        """Tell whether this alone lets *request* through."""
        return (
            not self.url
            and self.verb in (ANY, request.verb)
            and self.group in (ANY, request.group)
            and _covers(self.resource, request.resource)
            and self.name in ("", request.name)
            and self.namespace in ("", request.namespace)
        )


def permissions(
    rules: Iterable[dict[str, Any]], *, file: str, role: str, namespace: str = ""
) -> Iterator[Permission]:
    """Multiply out the rules of a role.

    Args:
        rules: as in its manifest.
        file: where it is written.
        role: kind and name.
        namespace: where its binding holds, empty for everywhere.
    """
    for rule in rules:
        for verb in rule["verbs"]:
            for group, resource, name in product(
                rule.get("apiGroups", ()),
                rule.get("resources", ()),
                rule.get("resourceNames") or ("",),
            ):
                yield Permission(file, role, verb, group, resource, name, namespace)
            for url in rule.get("nonResourceURLs", ()):
                yield Permission(file, role, verb, namespace=namespace, url=url)


def missing(requests: Iterable[Request], granted: Collection[Permission]) -> list[Request]:
    """Find what nothing that is granted allows."""
    return sorted(
        each for each in set(requests) if not any(right.allows(each) for right in granted)
    )


def superfluous(
    requests: Collection[Request], granted: Iterable[Permission]
) -> list[tuple[Permission, str]]:
    """Find what is granted and not needed, with what to do about it.

    A right is too wide, too, when one name or one namespace would have been enough: the
    requests must come from more than one object, or namespace, where any is meant.
    """
    found = []
    for right in sorted(set(granted)):
        used = [each for each in requests if right.allows(each)]
        wide = next(
            (word for word in (right.verb, right.group, right.resource) if ANY in word), None
        )
        names = {each.name for each in used}
        namespaces = {each.namespace for each in used}
        if wide is not None:
            found.append((right, f'write out what "{wide}" stands for'))
        elif not used:
            found.append((right, "remove it"))
        elif not right.name and len(names) == 1 and names != {""}:
            found.append((right, f'limit it with resourceNames: ["{names.pop()}"]'))
        elif not right.namespace and len(namespaces) == 1 and namespaces != {""}:
            found.append((right, f"grant it by a Role in namespace {namespaces.pop()} instead"))
    return found


def _covers(rule: str, resource: str) -> bool:
    """Match a resource of a rule: itself, ``*``, or ``*/subresource``."""
    if rule in (ANY, resource):
        return True
    return rule.startswith("*/") and resource.partition("/")[2] == rule[2:] != ""


def _what(group: str, resource: str) -> str:
    return f'"{resource}" (apiGroup "{group}")'

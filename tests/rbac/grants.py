"""What deploy/ grants to each program, and how that differs from its requests.

The meaning is that of Kubernetes' RBAC: a rule is the product of its groups, resources, verbs and
names, rules only add up, nothing is denied. Rules with ``*`` or about URLs are errors here.
"""

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tests.deploy.manifests import DEPLOY, Json, containers, pod_specs, read_yaml

_NAMESPACE = "gpu-turnstile"
"""Where kustomize puts what names no namespace."""
_BINDINGS = ("RoleBinding", "ClusterRoleBinding")
_ROLES = ("Role", "ClusterRole")

Account = tuple[str, str]
"""Namespace and name of a service account; kind and name of a user or a group."""


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """A request of a program to the API server; *resource* has the subresource: ``pods/binding``.

    *namespace* is empty for cluster-wide objects and for lists over all namespaces, *name* for a
    collection, and so for ``create``.
    """

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Permission:
    """One factor of a rule that is bound to an account; names are empty for any."""

    role: str
    verb: str
    group: str
    resource: str
    name: str = ""
    namespace: str = ""

    def allows(self, request: Request) -> bool:
        return (
            (self.verb, self.group, self.resource)
            == (request.verb, request.group, request.resource)
            and self.name in ("", request.name)
            and self.namespace in ("", request.namespace)
        )


@functools.cache
def read() -> Sequence[Json]:
    """Read every object below deploy/; what only removes one, in an overlay, is left out."""
    return tuple(
        each
        for path in sorted(DEPLOY.rglob("*.yaml"))
        if path.parent.name != "templates"
        for each in read_yaml(path)
        if isinstance(each, dict)
        and (each.get("metadata") or {}).get("name")
        and each.get("$patch") != "delete"
    )


def started(objects: Iterable[Json], program: str) -> Iterator[tuple[Account, Json]]:
    """Find the containers that run ``python -m`` *program*, each with its pod's account."""
    for each in objects:
        for pod in pod_specs([each]).values():
            account = (_namespace(each), str(pod.get("serviceAccountName")))
            for container in containers(pod) if "containers" in pod else ():
                if _program(container) == program:
                    yield account, container


def command_line(container: Json) -> list[str]:
    return [str(each) for each in (*container.get("command", ()), *container.get("args", ()))]


def _program(container: Json) -> str:
    """Return the word after ``-m``, else the first."""
    arguments = command_line(container)
    run = arguments[arguments.index("-m") + 1] if "-m" in arguments[:-1] else (arguments or [""])[0]
    return run.removesuffix(".supervisor")


def accounts(objects: Iterable[Json], program: str) -> set[Account]:
    return {account for account, _ in started(objects, program) if account[1] != "None"}


def rights(program: str, objects: Collection[Json]) -> list[Permission]:
    """Multiply out everything that is bound to an account of *program*.

    The account of a kube-scheduler's pod is left out: Kubernetes itself defines its rights.
    """
    roles = {_key(each["kind"], each["metadata"]["name"], each): each for each in objects}
    ours = accounts(objects, program) - accounts(objects, "kube-scheduler")
    found: list[Permission] = []
    for binding in objects:
        if binding["kind"] in _BINDINGS and ours & subjects(binding):
            role = roles[reference(binding)]
            where = "" if binding["kind"] == "ClusterRoleBinding" else _namespace(binding)
            found += _permissions(role, where)
    return found


def _permissions(role: Json, namespace: str) -> Iterator[Permission]:
    title = f"{role['kind']} {role['metadata']['name']}"
    for rule in role["rules"]:
        assert "*" not in str(rule), f"{title}: write out what * stands for"
        assert "nonResourceURLs" not in rule, title
        names = rule.get("resourceNames") or ("",)
        for factors in product(rule["verbs"], rule["apiGroups"], rule["resources"], names):
            yield Permission(title, *factors, namespace)


def subjects(binding: Json) -> set[Account]:
    return {
        (each.get("namespace") or _namespace(binding), each["name"])
        if each["kind"] == "ServiceAccount"
        else (each["kind"], each["name"])
        for each in binding.get("subjects") or ()
    }


def reference(binding: Json) -> tuple[str, ...]:
    named = binding["roleRef"]
    return _key(named["kind"], named["name"], binding)


def role_keys(objects: Iterable[Json]) -> set[tuple[str, ...]]:
    return {
        _key(each["kind"], each["metadata"]["name"], each)
        for each in objects
        if each["kind"] in _ROLES
    }


def _key(kind: str, name: str, beside: Json) -> tuple[str, ...]:
    return (kind, name, _namespace(beside) if kind == "Role" else "")


def _namespace(each: Json) -> str:
    return str(each["metadata"].get("namespace") or _NAMESPACE)


def missing(requests: Iterable[Request], granted: Collection[Permission]) -> list[Request]:
    return sorted(
        each for each in set(requests) if not any(right.allows(each) for right in granted)
    )


def superfluous(requests: Collection[Request], granted: Iterable[Permission]) -> list[str]:
    """Find what is granted and not needed, with what to do about it.

    A right is too wide, too, where one name or one namespace would be enough.
    """
    found = []
    for right in sorted(set(granted)):
        used = [each for each in requests if right.allows(each)]
        names = {each.name for each in used}
        namespaces = {each.namespace for each in used}
        if not used:
            found.append(f"{right}: remove it")
        elif not right.name and len(names) == 1 and names != {""}:
            found.append(f"{right}: limit it to {names}")
        elif not right.namespace and len(namespaces) == 1 and namespaces != {""}:
            found.append(f"{right}: grant it by a Role in {namespaces}")
    return found


def never_granted(
    program: str, requests: Iterable[Request], objects: Collection[Json]
) -> list[Request]:
    """Find what *program* may not do to any object anywhere: tests make up names."""
    anywhere = [replace(right, name="", namespace="") for right in rights(program, objects)]
    return missing(requests, anywhere)

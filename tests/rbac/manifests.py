"""What deploy/ grants to the account of each program: its manifests, read and joined."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.rbac.rules import Permission, permissions

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
NAMESPACE = "gpu-turnstile"
"""Where kustomize puts what names no namespace."""

PROGRAMS = ("agent", "certs", "scheduler", "view", "webhook")

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Much faster where PyYAML comes with libyaml."""

_BINDINGS = ("RoleBinding", "ClusterRoleBinding")
_ROLES = ("Role", "ClusterRole")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object, and the file it is written in.

    Attributes:
        file: relative to the repository.
        body: the object.
    """

    file: str
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        """What it is."""
        return str(self.body.get("kind"))

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace, as kustomize fills it in."""
        return str(self.body["metadata"].get("namespace") or NAMESPACE)


@dataclass(frozen=True, slots=True)
class Account:
    """A service account."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"ServiceAccount {self.namespace}/{self.name}"


def read(folder: Path, *, root: Path = ROOT) -> list[Manifest]:
    """Read every object below *folder*; what only removes one, in an overlay, is left out."""
    found = []
    for path in sorted(folder.rglob("*.yaml")):
        found += [
            Manifest(str(path.relative_to(root)), body)
            for body in yaml.load_all(path.read_bytes(), Loader=LOADER)
            if isinstance(body, dict)
            and (body.get("metadata") or {}).get("name")
            and body.get("$patch") != "delete"
        ]
    return found


def accounts(manifests: Iterable[Manifest], program: str) -> set[Account]:
    """Find the accounts under which workloads run ``python -m`` *program*."""
    return {
        Account(manifest.namespace, str(pod["serviceAccountName"]))
        for manifest in manifests
        for pod in _pod_specs(manifest.body)
        if pod.get("serviceAccountName") and program in _started(pod)
    }


def granted(manifests: Iterable[Manifest], account: Account) -> list[Permission]:
    """Multiply out everything that is bound to *account*.

    Raises:
        LookupError: a binding names a role that is not there.
    """
    manifests = list(manifests)
    roles = {_role_key(each): each for each in manifests if each.kind in _ROLES}
    found: list[Permission] = []
    for binding in manifests:
        if binding.kind not in _BINDINGS or account not in subjects(binding):
            continue
        reference = binding.body["roleRef"]
        role = roles.get(_reference_key(binding))
        if role is None:
            raise LookupError(
                f"{binding.file}: {binding.kind} {binding.name}: there is no "
                f"{reference['kind']} {reference['name']} in deploy/"
            )
        everywhere = binding.kind == "ClusterRoleBinding"
        found += permissions(
            role.body.get("rules") or (),
            file=role.file,
            role=f"{role.kind} {role.name}",
            namespace="" if everywhere else binding.namespace,
        )
    return found


def unbound(manifests: Iterable[Manifest], known: Iterable[Account]) -> list[str]:
    """Find roles that nobody has, and bindings of anybody else."""
    manifests, known = list(manifests), set(known)
    bound: set[tuple[str, ...]] = set()
    problems: list[str] = []
    for each in manifests:
        if each.kind in _BINDINGS:
            bound.add(_reference_key(each))
            problems += [
                f"{each.file}: {each.kind} {each.name}: {subject} runs none of our programs"
                for subject in sorted(map(str, subjects(each) - known))
            ]
    return problems + [
        f"{each.file}: {each.kind} {each.name} is bound to nobody: remove it"
        for each in manifests
        if each.kind in _ROLES and _role_key(each) not in bound
    ]


def subjects(binding: Manifest) -> set[Account]:
    """Give whom a binding is for; users and groups count as accounts that run nothing."""
    return {
        Account(str(each.get("namespace") or binding.namespace), str(each["name"]))
        if each["kind"] == "ServiceAccount"
        else Account(str(each["kind"]), str(each["name"]))
        for each in binding.body.get("subjects") or ()
    }


def containers(manifests: Iterable[Manifest], program: str) -> list[dict[str, Any]]:
    """Give the containers that run ``python -m`` *program*."""
    return [
        container
        for manifest in manifests
        for pod in _pod_specs(manifest.body)
        for container in _containers(pod)
        if _program(container) == program
    ]


def words(container: dict[str, Any]) -> list[str]:
    """Give what a container starts, as one list."""
    return [str(each) for each in (*container.get("command", ()), *container.get("args", ()))]


def tokenless(manifests: Iterable[Manifest], account: Account) -> bool:
    """Tell whether no pod of *account* gets a token of it."""
    manifests = list(manifests)
    own = [
        each.body
        for each in manifests
        if each.kind == "ServiceAccount" and Account(each.namespace, each.name) == account
    ]
    default = all(each.get("automountServiceAccountToken") is False for each in own) and bool(own)
    return all(
        pod.get("automountServiceAccountToken", not default) is False
        for manifest in manifests
        for pod in _pod_specs(manifest.body)
        if pod.get("serviceAccountName") == account.name
    )


def _role_key(role: Manifest) -> tuple[str, ...]:
    within = (role.namespace,) if role.kind == "Role" else ()
    return (role.kind, role.name, *within)


def _reference_key(binding: Manifest) -> tuple[str, ...]:
    reference = binding.body["roleRef"]
    within = (binding.namespace,) if reference["kind"] == "Role" else ()
    return (str(reference["kind"]), str(reference["name"]), *within)


def _pod_specs(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    spec = body.get("spec") or {}
    if body.get("kind") == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    if body.get("kind") in ("CronJob", "DaemonSet", "Deployment", "Job", "StatefulSet"):
        yield (spec.get("template") or {}).get("spec") or {}


def _started(pod: dict[str, Any]) -> set[str]:
    return {_program(each) for each in _containers(pod)}


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]


def _program(container: dict[str, Any]) -> str:
    """Give the word after ``-m``, else the first."""
    said = words(container)
    run = said[said.index("-m") + 1] if "-m" in said[:-1] else (said or [""])[0]
    return run.removesuffix(".keeper")

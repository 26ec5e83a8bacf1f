"""The Helm chart, made of the kustomize base and its components.

Nothing that is installed is written a second time: :mod:`release.variants` renders what each
component changes, and :mod:`release.template` writes it between conditions. Only what a chart has
and a kustomization has not is in ``deploy/chart``: the values that are no components, their schema,
NOTES and two helpers.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from release.archives import write_tar
from release.manifests import IMAGE, PROXY_IMAGE
from release.template import Condition, camel, switch, write_object
from release.variants import ABSENT, Element, Identity, Leaves, Path_, Variants, read

NAME = "gpu-turnstile"
_KUBE_SCHEDULER = "registry.k8s.io/kube-scheduler"
_DOMAIN = "tencent.com"
_COMPONENT_LABEL = "app.kubernetes.io/component"

CHOSEN: Final[Mapping[str, str]] = {
    "vcuda": '{{ eq .Values.enforcement "vcuda" }}',
    "hami-core": '{{ eq .Values.enforcement "hami-core" }}',
    "envvar": '{{ eq .Values.inject "envvar" }}',
    "cdi": '{{ eq .Values.inject "cdi" }}',
    "scheduler-extender": '{{ ne .Values.scheduling "stock" }}',
    "scheduler-own": '{{ eq .Values.scheduling "own" }}',
    "view-use": "{{ and .Values.components.view .Values.components.use }}",
}
"""Components that exclude or need each other: another value than their own switch decides."""

_DECIDED = ("GPU_TURNSTILE_DOMAIN", "GPU_TURNSTILE_ENFORCEMENT", "GPU_TURNSTILE_INJECT")
"""Variables that the helper refuses in ``env``, as it does references."""

_NAMESPACES = {
    "gpu-turnstile": "{{ .Values.namespaces.system }}",
    "gpu-turnstile-node": "{{ .Values.namespaces.node }}",
}
_IN_TEXT = (
    (r"(system:serviceaccount:){}(?=:)", "gpu-turnstile-node"),
    (r"(system:serviceaccount:){}(?=:)", "gpu-turnstile"),
    (r"(system:serviceaccounts:){}$", "gpu-turnstile"),
    (r"(\.){}(?=\.svc\b)", "gpu-turnstile"),
    (r"(namespace=~?\\*\"){}(?=\\*\")", "gpu-turnstile-node"),
    (r"(namespace=~?\\*\"){}(?=\\*\")", "gpu-turnstile"),
    (r"(job=\\*\"){}(?=/)", "gpu-turnstile-node"),
    (r"(resourceNamespace: ){}$", "gpu-turnstile"),
)
"""Where a namespace is a part of a text: what is before and after it, and which it is."""


def write_chart(  # noqa: PLR0913 - what a release is of, by keyword
    path: Path, deploy: Path, *, version: str, image: str, proxy_image: str, epoch: int
) -> None:
    """Write the chart as ``helm package`` does.

    Args:
        path: of the archive.
        deploy: the folder of the manifests.
        version: of this project and of the chart.
        image: the image to run by default; empty for the one that the manifests name.
        proxy_image: the one that the proxy runs; empty for the same.
        epoch: the time of every file in it.

    Raises:
        NoKubectl: there is no kubectl.
        subprocess.CalledProcessError: it refuses a combination.
    """
    made = files(deploy, version=version, image=image, proxy_image=proxy_image)
    packed = {f"{NAME}/{name}": (text.encode(), False) for name, text in made.items()}
    write_tar(path, packed, epoch=epoch)


def files(deploy: Path, *, version: str, image: str = "", proxy_image: str = "") -> dict[str, str]:
    """Return the files of the chart by name; the arguments are those of :func:`write_chart`."""
    variants = read(deploy)
    workloads = dict(_workloads(variants))
    chart = deploy / "chart"
    made = {
        "Chart.yaml": _chart_yaml(version),
        "values.yaml": _values(deploy, variants, workloads, image, proxy_image),
        "values.schema.json": _schema(deploy, variants, workloads),
        "templates/_components.tpl": _components(variants),
    }
    for each in sorted((chart / "templates").iterdir()):
        made[f"templates/{each.name}"] = each.read_text(encoding="utf-8")
    for component, text in _templates(variants, version).items():
        made[f"templates/{component}.yaml"] = text
    return made


def _chart_yaml(version: str) -> str:
    document = {
        "apiVersion": "v2",
        "name": NAME,
        "description": "Shares GPUs: pods ask for hundredths of a card and blocks of its memory",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.30.0-0",
        "home": "https://github.com/gpu-turnstile/gpu-turnstile",
    }
    return yaml.safe_dump(document, sort_keys=False, width=100)


# --- the objects ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Object:
    """One object, as far as the chart says more of it than the components do."""

    identity: Identity
    leaves: Leaves
    version: str

    def special(  # noqa: PLR0911 - one case a value of the chart
        self, path: Path_, value: Any, indent: int
    ) -> str | None:
        """Return the text at a path where a value of the chart decides."""
        container = _container(path)
        workload = camel(container.name) if container else ""
        match path:
            case (*_, "containers" | "initContainers", Element(), "image"):
                return self._image(str(value))
            case (*_, "containers", Element(), "resources"):
                return f"\n{{{{- toYaml .Values.{workload}.resources | nindent {indent + 2} }}}}"
            case (*_, "env", Element(), "value") if value in _NAMESPACES:
                return f" {_NAMESPACES[value]}"
            case (*_, "env", Element(name), "value") if not _is_fixed(name, value):
                default = json.dumps(value)
                return f' {{{{ dig "{name}" {default} .Values.{workload}.env | quote }}}}'
            case (*_, "env", "..."):
                return self._more_env(workload, value, indent)
            case ("spec", "template", "spec", "..."):
                return self._more_of_pods(indent + 2)
            case ("spec", "replicas") if isinstance(value, int) and value > 1:
                return f" {{{{ .Values.{self._workload()}.replicas }}}}"
            case (*_, "hostPath", "path"):
                return _host_path(str(value))
            case (*_, "namespace"):
                return f" {_NAMESPACES.get(value, value)}"
            case ("metadata", "name") if self.identity.kind == "Namespace":
                return f" {_NAMESPACES[value]}"
            case ("metadata", "annotations", "cert-manager.io/inject-ca-from"):
                return f" {_NAMESPACES['gpu-turnstile']}{str(value).removeprefix('gpu-turnstile')}"
            case (*_, "namespaceSelector", "matchExpressions"):
                return _excluded(value, indent)
        return None

    def _image(self, value: str) -> str:
        name, _, tag = value.rpartition(":")
        found = {IMAGE: "image", PROXY_IMAGE: "proxyImage", _KUBE_SCHEDULER: "kubeSchedulerImage"}
        default = '(include "gpu-turnstile.kubernetes" .)'
        if name != _KUBE_SCHEDULER:
            default = ".Chart.AppVersion"
            if tag != self.version:
                raise ValueError(f"{value}: the chart is of version {self.version}")
        instead = "image" if name == PROXY_IMAGE else found[name]
        given = f'(dict "given" .Values.{found[name]} "instead" .Values.{instead} "tag" {default})'
        return f' {{{{ include "gpu-turnstile.image" {given} }}}}'

    def _more_env(self, workload: str, there: Mapping[str, Condition], indent: int) -> str:
        """Append the variables that people give and the manifests do not have."""
        own = " ".join(f'"{each}"' for each, when in there.items() if when is True)
        others = " ".join(f'"{each}" {when}' for each, when in there.items() if when is not True)
        asked = (
            f'"workload" "{workload}" "given" .Values.{workload}.env '
            f'"own" (list {own}) "when" (dict{others and " "}{others})'
        )
        return (
            f'{{{{- with include "gpu-turnstile.env" (dict {asked}) | trim }}}}'
            f"\n{{{{- . | nindent {indent} }}}}\n{{{{- end }}}}"
        )

    def _more_of_pods(self, indent: int) -> str:
        names = ["imagePullSecrets"]
        if self.identity.kind == "Deployment":
            names += ["nodeSelector", "tolerations"]
        pad = " " * indent
        return "\n".join(
            f"{{{{- with .Values.{each} }}}}\n{pad}{each}:\n"
            f"{{{{- toYaml . | nindent {indent + 2} }}}}\n{{{{- end }}}}"
            for each in names
        )

    def _workload(self) -> str:
        containers = (_container(path) for path in self.leaves)
        return camel(next(each.name for each in containers if each))


_FOLDERS = {"/var/lib/kubelet/": "kubeletDir", "/run/containerd/": "containerdDir"}


def _host_path(path: str) -> str | None:
    """Write a path of the host in one of the folders that differ between distributions."""
    for folder, value in _FOLDERS.items():
        if f"{path}/".startswith(folder):
            return f" {{{{ .Values.{value} }}}}{path[len(folder) - 1 :]}"
    return None


def _container(path: Path_) -> Element | None:
    """Return the container that a path leads into."""
    if "containers" not in path:
        return None
    below = path[path.index("containers") + 1 :]
    return below[0] if below and isinstance(below[0], Element) else None


def _is_fixed(name: str, value: Any) -> bool:
    """Return whether another value of the chart decides a variable."""
    return name in _DECIDED or _replaced(str(value)) != value


def _excluded(value: Any, indent: int) -> str:
    """Write expressions that name our namespaces."""
    text = yaml.safe_dump(value, sort_keys=False, width=10_000).rstrip("\n")
    for name, instead in _NAMESPACES.items():
        text = re.sub(rf"^(\s*- ){name}$", rf"\g<1>{instead}", text, flags=re.MULTILINE)
    return "".join(f"\n{' ' * indent}{line}" for line in text.split("\n"))


def _replaced(text: str) -> str:
    """Put the chart's domain and namespaces into a text."""
    for pattern, name in _IN_TEXT:
        found = re.compile(pattern.format(name), re.MULTILINE)
        text = found.sub(rf"\g<1>{_NAMESPACES[name]}", text)
    return text.replace(_DOMAIN, "{{ .Values.domain }}")


def _templates(variants: Variants, version: str) -> dict[str, str]:
    """Return the text of each component's objects."""
    found: dict[str, list[str]] = {}
    for identity in variants.identities():
        base = variants.base.get(identity, ABSENT)
        changes = variants.changes.get(identity, ())
        leaves = _all_leaves(variants, identity)
        obj = _Object(identity, leaves, version)
        text = write_object(base, changes, obj.special, _replaced)
        if identity.kind == "Namespace":
            name = _NAMESPACES[identity.name].strip("{} ")
            text = f"{{{{- if ne .Release.Namespace {name} }}}}\n{text}{{{{- end }}}}\n"
        component = str(leaves["metadata", "labels", _COMPONENT_LABEL])
        found.setdefault(component, []).append(text)
    head = '{{- $on := include "gpu-turnstile.components" . | fromYaml }}\n'
    return {name: head + "".join(texts) for name, texts in found.items()}


def _all_leaves(variants: Variants, identity: Identity) -> Leaves:
    """Return every leaf that the object may have; of several values the first."""
    leaves = dict(variants.base.get(identity, {}))
    for change in variants.changes.get(identity, ()):
        more = change.leaves if change.leaves is not None else change.comes
        if isinstance(more, dict):
            leaves = {path: each for path, each in more.items() if each != ABSENT} | leaves
    return leaves


# --- the values -----------------------------------------------------------------------------


def _workloads(variants: Variants) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the values of each workload, as the manifests have them."""
    for identity in variants.identities():
        leaves = _all_leaves(variants, identity)
        starts = dict.fromkeys(
            path[: path.index("containers") + 2] for path in leaves if "containers" in path
        )
        for start in starts:
            container = start[-1]
            if identity.kind not in ("Deployment", "DaemonSet") or not isinstance(
                container, Element
            ):
                continue
            inside = {p[len(start) :]: v for p, v in leaves.items() if p[: len(start)] == start}
            values: dict[str, Any] = {}
            if (replicas := leaves.get(("spec", "replicas"), 1)) > 1:
                values["replicas"] = replicas
            if any(path[0] == "env" for path in inside):
                values["env"] = {}
            values["resources"] = {}
            for path, value in inside.items():
                if path[0] == "resources":
                    values["resources"].setdefault(path[1], {})[path[2]] = value
            yield camel(container.name), values


def _switches(variants: Variants) -> list[str]:
    return sorted(each for each in variants.components if each not in CHOSEN)


def _components(variants: Variants) -> str:
    """Return the helper that says which components are on."""
    lines = ['{{- define "gpu-turnstile.components" -}}']
    for each in variants.components:
        chosen = CHOSEN.get(each, f'{{{{ index .Values.components "{each}" }}}}')
        lines.append(f"{switch(each).removeprefix('$on.')}: {chosen}")
    return "\n".join([*lines, "{{- end -}}"]) + "\n"


def _values(
    deploy: Path,
    variants: Variants,
    workloads: Mapping[str, Mapping[str, Any]],
    image: str,
    proxy_image: str,
) -> str:
    text = (deploy / "chart" / "values.yaml").read_text(encoding="utf-8")
    for key, given in (("image", image), ("proxyImage", proxy_image)):
        if given:
            parts = image_parts(given)
            block = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in parts.items())
            text = re.sub(rf"^({key}:\n)(?:  .*\n)+", rf"\g<1>{block}", text, flags=re.MULTILINE)
    lines = ["", "# Components of the manifests, by the names of their folders.", "components:"]
    for each in _switches(variants):
        lines += [f"  # {line}" for line in _about(deploy / "components" / each)]
        lines.append(f"  {each}: false")
    lines += ["", "# Workloads. Every flag of a program is an environment variable: env sets it."]
    for name, values in sorted(workloads.items()):
        lines += ["", yaml.safe_dump({name: dict(values)}, sort_keys=False).rstrip("\n")]
    return text + "\n".join(lines) + "\n"


def image_parts(image: str) -> dict[str, str]:
    """Return repository, tag and digest of an image."""
    name, _, digest = image.partition("@")
    matched = re.fullmatch(r"(.+):([^/:]+)", name)
    repository, tag = (matched[1], matched[2]) if matched else (name, "")
    return {"repository": repository, "tag": tag, "digest": digest}


def _about(component: Path) -> list[str]:
    """Return the comment at the head of a component's kustomization."""
    text = (component / "kustomization.yaml").read_text(encoding="utf-8")
    found = re.search(r"(?:^# .*\n)+", text, re.MULTILINE)
    return [line.removeprefix("# ") for line in found[0].splitlines()] if found else []


def _schema(deploy: Path, variants: Variants, workloads: Mapping[str, Mapping[str, Any]]) -> str:
    text = (deploy / "chart" / "values.schema.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    schema["properties"]["components"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {each: {"type": "boolean"} for each in _switches(variants)},
    }
    for name, values in sorted(workloads.items()):
        schema["properties"][name] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {each: {"$ref": f"#/definitions/{each}"} for each in values},
        }
    return json.dumps(schema, indent=2) + "\n"

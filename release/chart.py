"""Makes the Helm chart from the kustomize base and its components.

No object is defined twice. ``manifests/`` in the chart has the rendered base, and for each
component a file with its changes to the base. The chart's only template combines them by the
values. ``deploy/chart`` has only the parts that a kustomization lacks: that template, the values
that are not components, their schema, and NOTES.
"""

import json
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from contract.other_systems import Dialect
from release.manifests import IMAGE, PROXY_IMAGE, kustomize

Json: TypeAlias = dict[str, Any]
Values: TypeAlias = Mapping[str, Json]
"""The values of workloads, by name."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C, where PyYAML has it: the chart is made of some sixty renderings."""

NAME = "gpu-turnstile"

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "dialects-all": ("dialects",),
    "scheduler-queues": ("scheduler-own",),
    "scheduler-extender-queues": ("scheduler-extender",),
    "mps-host-driver": ("mps",),
    "mps-runtime-class": ("mps",),
    "scheduler-preemption": ("scheduler-own",),
    "scheduler-extender-preemption": ("scheduler-extender",),
    "view-use": ("view",),
}
"""The components that must stand before a component; kustomize refuses it without them."""

CHOSEN: Final[Mapping[str, str]] = {
    "vcuda": 'eq .Values.enforcement "vcuda"',
    "hami-core": 'eq .Values.enforcement "hami-core"',
    "mps": 'eq .Values.enforcement "mps"',
    "mps-host-driver": (
        'and (eq .Values.enforcement "mps") (index .Values.components "host-driver")'
    ),
    "mps-runtime-class": (
        'and (eq .Values.enforcement "mps") (index .Values.components "runtime-class")'
    ),
    "envvar": 'eq .Values.inject "envvar"',
    "envvar-only": 'eq .Values.inject "envvar-only"',
    "cdi": 'eq .Values.inject "cdi"',
    "dialects": ".Values.dialects.accept",
    "dialects-all": 'and .Values.dialects.accept (eq .Values.dialects.namespaces "all")',
    "scheduler-extender": 'eq .Values.scheduling "extender"',
    "scheduler-own": 'eq .Values.scheduling "own"',
    "scheduler-queues": 'and .Values.kueue (eq .Values.scheduling "own")',
    "scheduler-extender-queues": 'and .Values.kueue (eq .Values.scheduling "extender")',
    "scheduler-preemption": 'and .Values.preemption (eq .Values.scheduling "own")',
    "scheduler-extender-preemption": 'and .Values.preemption (eq .Values.scheduling "extender")',
    "view-use": "and .Values.components.view .Values.components.use",
}
"""Components that exclude or need each other: not their own switch but another value decides."""

_COPIED: Final = tuple(
    f"apps DaemonSet gpu-turnstile-node gpu-turnstile-{each}" for each in ("agent", "proxy")
)
"""The objects whose pods the component ``dra`` copies; the copies' names end with ``-dra``."""

_FILLED_IN: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf'(?<="){PROXY_IMAGE}:[^"]+', "@proxyImage@"),
        (rf'(?<="){IMAGE}:[^"]+', "@image@"),
        (r'(?<=")registry\.k8s\.io/kube-scheduler:[^"]+', "@kubeSchedulerImage@"),
        (r'("hostPath": {"path": ")/var/lib/kubelet(?=[/"])', r"\g<1>@kubeletDir@"),
        (r'("hostPath": {"path": ")/run/containerd(?=[/"])', r"\g<1>@containerdDir@"),
        (r"tencent\.com", "@domain@"),
        *(
            (rf"{before}{name}{after}", rf"\g<1>@{value}@")
            for name, value in (("gpu-turnstile-node", "node"), ("gpu-turnstile", "system"))
            for before, after in (
                (r'("namespace": "|"value": "|"kube-system", (?:"@node@", )?")', '(?=")'),
                (r'("kube-system", "gpu-turnstile", ")', '(?=")'),
                (r"(system:serviceaccounts?:)", '(?=[:"])'),
                (r'(inject-ca-from": "|job=\\+")', "(?=/)"),
                (r'(namespace=~?\\+")', r'(?=\\+")'),
                (r"(resourceNamespace: )", r"(?=\\n)"),
                (r"(\.)", r"(?=\.svc\b)"),
            )
        ),
    )
)
"""Texts in the JSON of an object that values replace, each with its placeholder."""


def files(deploy: Path, *, version: str, image: str = "", proxy_image: str = "") -> dict[str, str]:
    """Return the files of the chart by name.

    Args:
        deploy: the folder of the manifests.
        version: version of this project and of the chart.
        image: the default image; empty for the one in the manifests.
        proxy_image: the default image of the proxy; empty for the one in the manifests.

    Raises:
        NoKubectl: kubectl is not installed.
        subprocess.CalledProcessError: kustomize refuses a combination.
    """
    chart = deploy / "chart"
    manifests, workloads = _read(deploy)
    switches = sorted(each for each in components(deploy) if each not in CHOSEN)
    about = {
        "apiVersion": "v2",
        "name": NAME,
        "description": "Shares GPUs: pods request hundredths of a card and blocks of its memory",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.30.0-0",
        "home": "https://github.com/gpu-turnstile/gpu-turnstile",
    }
    values = (chart / "values.yaml").read_text(encoding="utf-8")
    values = values.replace("@dialects@", ", ".join(Dialect))
    for key, given in (("image", image), ("proxyImage", proxy_image)):
        values = _with_image(values, key, given) if given else values
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    schema["properties"] |= _properties(switches, workloads)
    dialects = schema["properties"]["dialects"]["properties"]["accept"]["items"]
    dialects["enum"] = list(Dialect)
    return {
        "Chart.yaml": _yaml(about),
        "values.yaml": values + _more_values(deploy, switches, workloads),
        "values.schema.json": json.dumps(schema, indent=2) + "\n",
        "templates/_components.tpl": _choice(components(deploy)),
        **{
            f"templates/{each.name}": each.read_text(encoding="utf-8")
            for each in sorted((chart / "templates").iterdir())
        },
        **{f"manifests/{name}.yaml": _yaml(changes) for name, changes in manifests.items()},
    }


class _ChartDumper(yaml.SafeDumper):
    """Writes a text of several lines as a YAML block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_ChartDumper.add_representer(str, _text)


def _yaml(value: object) -> str:
    return yaml.dump(value, Dumper=_ChartDumper, sort_keys=False, width=100)


# --- the objects ----------------------------------------------------------------------------


def components(deploy: Path) -> list[str]:
    """Return the names of all components of the chart, in the order in which they are applied.

    ``domain`` is not among them: it replaces text everywhere, for which the chart has a value.
    ``driver-auto`` is after ``vcuda``, because it replaces a folder that that one sets, and ``dra``
    is the last, because it copies the agent. ``host-network`` is the first, because it changes an
    object that ``cert-manager`` removes.
    """
    found = {each.name for each in (deploy / "components").iterdir()} - {"domain"}
    ends = ("host-network", "", "driver-auto", "dra")
    return sorted(found, key=lambda name: (ends.index(name if name in ends else ""), name))


def _read(deploy: Path) -> tuple[dict[str, Json], dict[str, Json]]:
    """Render the base with each component; return their changes, and the workloads' values."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        base = _render(root / "base", deploy, ())
        manifests, workloads = {"base": _changes({}, base)}, _workloads(base)
        for name in components(deploy):
            needs = NEEDS.get(name, ())
            before = _render(root / f"{name}-before", deploy, needs) if needs else base
            after = _render(root / name, deploy, (*needs, name))
            manifests[name] = _changes(before, after)
            changed = [each for each in _COPIED if each in manifests[name] and name != "dra"]
            if changed:
                was, becomes = (
                    _render(root / f"{name}-dra{len(each)}", deploy, (*needs, *each, "dra"))
                    for each in ((), (name,))
                )
                for copy in (f"{each}-dra" for each in changed):
                    manifests[name][copy] = _changes(was[copy], becomes[copy])
            workloads = _workloads(after) | workloads
    return manifests, dict(sorted(workloads.items()))


def _render(folder: Path, deploy: Path, chosen: Collection[str]) -> Json:
    """Render the base with components; return the objects by a unique text."""
    folder.mkdir()
    here = os.path.relpath(deploy.resolve(), folder)
    written: Json = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{here}/base"],
        "components": [f"{here}/components/{each}" for each in chosen],
    }
    if "dialects" in chosen:
        settings = (deploy / "components/dialects/settings.yaml").read_text(encoding="utf-8")
        filled_in = re.sub("(accept: ).+", r"\g<1>'@accept@'", settings)
        (folder / "dialects.yaml").write_text(filled_in, encoding="utf-8")
        written["resources"].append("dialects.yaml")
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    found = {}
    for each in yaml.load_all(kustomize(folder), Loader=_LOADER):
        named = each["metadata"]
        if each["kind"] == "Namespace":
            named["name"] = "@node@" if named["name"].endswith("-node") else "@system@"
        text = json.dumps(each)
        for pattern, instead in _FILLED_IN:
            text = pattern.sub(instead, text)
        group = each["apiVersion"].partition("/")[0]
        found[f"{group} {each['kind']} {named.get('namespace', '')} {named['name']}"] = json.loads(
            text
        )
    return found


def _changes(before: Json, after: Json) -> Json:
    """Return the changes from *before* to *after*.

    ``null`` removes a key. A list of elements with names is merged by name, as in a strategic merge
    patch, and has a "+" after its key. Any other list is replaced.
    """
    changed: Json = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if key in before and old == value:
            continue
        if isinstance(value, dict) and value:
            changed[key] = _changes(old if isinstance(old, dict) else {}, value)
        elif here := by_name(value):
            there = by_name(old)
            changed[f"{key}+"] = [
                {"name": name} | _changes(there.get(name, {}), each)
                for name, each in here.items()
                if each != there.get(name)
            ] + [{"name": name, "$patch": "delete"} for name in there if name not in here]
        else:
            changed[key] = value
    return changed


def by_name(value: Any) -> dict[str, Json]:
    """Return a list's elements by their names; empty if the names are missing or not unique."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        return {}
    found = {each.get("name", ""): each for each in value}
    return found if "" not in found and len(found) == len(value) else {}


# --- the values -----------------------------------------------------------------------------


def _workloads(objects: Json) -> dict[str, Json]:
    """Return the values of each workload in the manifests."""
    found: dict[str, Json] = {}
    for each in objects.values():
        if each["kind"] not in ("Deployment", "DaemonSet"):
            continue
        pod, replicas = each["spec"]["template"]["spec"], each["spec"].get("replicas", 1)
        sidecars = [one for one in pod.get("initContainers", ()) if "restartPolicy" in one]
        for container in (*pod["containers"], *sidecars):
            found[camel(container["name"])] = {
                **({"replicas": replicas} if replicas > 1 else {}),
                **({"env": {}} if "env" in container else {}),
                "resources": container["resources"],
            }
    return found


def camel(name: str) -> str:
    """Return a name without dashes: ``kube-scheduler`` is ``kubeScheduler``."""
    first, *others = name.split("-")
    return first + "".join(each.capitalize() for each in others)


def _choice(names: Iterable[str]) -> str:
    """Return the helper template that lists base and chosen components, in their order.

    ``dra`` comes first here: what the others change in its copy of the agent is in their files.
    """
    lines = ['{{- define "gpu-turnstile.components" -}}', "- base"]
    for each in sorted(names, key=lambda name: name != "dra"):
        when = CHOSEN.get(each, f'index .Values.components "{each}"')
        lines += [f"{{{{- if {when} }}}}", f"- {each}", "{{- end }}"]
    return "\n".join([*lines, "{{- end -}}"]) + "\n"


def _more_values(deploy: Path, switches: Iterable[str], workloads: Values) -> str:
    lines = ["", "# Components of the manifests, by the names of their folders.", "components:"]
    for each in switches:
        text = (deploy / "components" / each / "kustomization.yaml").read_text(encoding="utf-8")
        comment = re.search(r"(?:^# .*\n)+", text, re.MULTILINE)
        lines += [f"  {line}" for line in (comment[0].splitlines() if comment else ())]
        lines.append(f"  {each}: false")
    lines += ["", "# Workloads. Every flag of a program is an environment variable: env sets it."]
    for name, values in workloads.items():
        lines += ["", yaml.safe_dump({name: values}, sort_keys=False).rstrip("\n")]
    return "\n".join(lines) + "\n"


def _with_image(text: str, key: str, image: str) -> str:
    """Replace an image in the values."""
    block = "".join(f"  {name}: {json.dumps(it)}\n" for name, it in image_parts(image).items())
    return re.sub(rf"^({key}:\n)(?:  .*\n)+", rf"\g<1>{block}", text, flags=re.MULTILINE)


def image_parts(image: str) -> dict[str, str]:
    """Return repository, tag and digest of an image."""
    name, _, digest = image.partition("@")
    matched = re.fullmatch(r"(.+):([^/:]+)", name)
    repository, tag = (matched[1], matched[2]) if matched else (name, "")
    return {"repository": repository, "tag": tag, "digest": digest}


def _properties(switches: Iterable[str], workloads: Values) -> Json:
    """Return the schema of the values that :func:`_more_values` writes."""
    found = {
        name: {each: {"$ref": f"#/definitions/{each}"} for each in values}
        for name, values in workloads.items()
    }
    found["components"] = {each: {"type": "boolean"} for each in switches}
    return {
        name: {"type": "object", "additionalProperties": False, "properties": properties}
        for name, properties in found.items()
    }

"""Helm, which renders the chart in tests. Without one they are skipped."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

import release
from contract.other_systems import Dialect
from release.chart import CHOSEN, NAME, components, files
from tests.deploy.kustomize import find_program, kustomize, once
from tests.deploy.manifests import DEPLOY, LOADER, VERSION, Json

ENFORCEMENTS = ("vcuda", "hami-core", "mps")
INJECTIONS = ("envvar", "envvar-only", "cdi")
"""The components that exclude each other, by the names that they have in ``inject``."""
ACCEPTED = [each.value for each in Dialect if each is not Dialect.GPUSHARE_MIB]
"""As the settings of the component dialects have them."""
KUBE_SCHEDULER = "v1.36.2"
"""As the component scheduler-own has it."""


def chart_files() -> Mapping[str, str]:
    """Make the chart, once."""

    def make() -> Mapping[str, str]:
        with mock.patch("release.chart.kustomize", lambda folder: kustomize(folder).stdout):
            return files(DEPLOY, version=VERSION)

    sources = sorted(Path(release.__file__).parent.glob("*.py"))
    templates = sorted(each for each in (DEPLOY / "chart").rglob("*") if each.is_file())
    found: Mapping[str, str] = once(
        "".join(each.read_text(encoding="utf-8") for each in (*sources, *templates)), make
    )
    return found


def write(folder: Path) -> Path:
    """Write the chart as a folder."""
    chart = folder / NAME
    for name, text in chart_files().items():
        (chart / name).parent.mkdir(parents=True, exist_ok=True)
        (chart / name).write_text(text, encoding="utf-8")
    return chart


def run(*arguments: str, within: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run helm."""
    command = [find_program("helm"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=within, check=False)


def template(
    chart: Path, values: Mapping[str, Any], *more: str
) -> subprocess.CompletedProcess[str]:
    """Render the chart, offline."""
    file = chart.parent / "given.yaml"
    file.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
    version = ("--kube-version", KUBE_SCHEDULER)  # helm's own depends on its age
    return run("template", "mine", str(chart), "--values", str(file), *version, *more)


def render(chart: Path, values: Mapping[str, Any], *more: str) -> list[Json]:
    """Render the chart, and read what comes out."""
    done = template(chart, values, *more)
    assert (done.returncode, done.stderr) == (0, "")
    return [each for each in yaml.load_all(done.stdout, Loader=LOADER) if each]


def values_for(taken: set[str]) -> dict[str, Any]:
    """Return the values that take the same components as a kustomization does."""
    scheduling = "extender" if "scheduler-extender" in taken else "stock"
    return {
        "enforcement": next((each for each in ENFORCEMENTS if each in taken), "none"),
        "inject": next((each for each in INJECTIONS if each in taken), "nodes"),
        "dialects": {
            "accept": ACCEPTED if "dialects" in taken else [],
            "namespaces": "all" if "dialects-all" in taken else "labelled",
        },
        "scheduling": "own" if "scheduler-own" in taken else scheduling,
        "kueue": bool(taken & {"scheduler-queues", "scheduler-extender-queues"}),
        "preemption": bool(taken & {"scheduler-preemption", "scheduler-extender-preemption"}),
        "components": {each: each in taken for each in components(DEPLOY) if each not in CHOSEN},
        "proxyImage": {"repository": "ghcr.io/gpu-turnstile/gpu-turnstile-proxy"},
        "kubeSchedulerImage": {"tag": KUBE_SCHEDULER},
    }

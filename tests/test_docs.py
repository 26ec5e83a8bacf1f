"""What README.md, CONTRIBUTING.md and docs/ name exists: links, flags, metrics, Events, tests.

Each check takes all pages together and must find something to check, so that none can pass for
looking at nothing.
"""

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import click
import pytest
import yaml
from prometheus_client import generate_latest

from agent.__main__ import main as agent
from agent.observability.metrics import Metrics as AgentMetrics
from bench.libraries import VARIABLES
from certs.__main__ import cli as certs
from common.apiserver.client import Client
from contract.names import Names
from proxy.__main__ import main as proxy
from proxy.status import Figures
from scheduler.__main__ import cli as scheduler
from scheduler.extender import observe
from scheduler.metrics import Metrics as SchedulerMetrics
from scheduler.state import State
from view.__main__ import cli as view
from view.__main__ import serve
from view.model.state import ClusterState
from view.web.feed import Feed
from view.web.live import Live
from view.web.metrics import Metrics as ViewMetrics
from webhook.__main__ import cli as webhook
from webhook.metrics import Metrics as WebhookMetrics

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / each for each in ("README.md", "CONTRIBUTING.md", "tests/e2e/README.md")),
    ROOT / "deploy/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
PROJECTS = ROOT / "README.md"
PROGRAMS: dict[str, click.Command] = {
    "agent": agent,
    "certs": certs,
    "proxy": proxy,
    "scheduler": scheduler,
    "view": view,
    "webhook": webhook,
}

# The words of Kubernetes, its runtimes and their tools, which docs/ quotes too.
_OTHERS_SAY = {
    "ValidatingAdmissionPolicy 'gpu-turnstile-...' denied request",
    'failed calling webhook "pods.gpu-turnstile.io"',
    "x509: certificate has expired or is not yet valid",
    "connection refused",
    "no endpoints available",
    "context deadline exceeded",
    "Insufficient tencent.com/vcuda-core",
    "no healthy devices present",
    "client connection is closing",
    "Allocate failed due to rpc error",
    "NVML: Driver Not Loaded",
    "rpc client exit with 255",
    "pod ... had been predicated!",
    "hostPath type check failed",
    'is mounted on "/" but it is not a shared or slave mount',
    'RuntimeHandler "nvidia" not supported',
    'The Pod "x" is invalid: spec.containers...vcuda-core...',
}


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def commands(page: Path) -> list[str]:
    """What a page tells to type: continued lines joined, comments left out."""
    blocks = re.findall(
        r"^```console\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    lines = re.sub(r"\\\n\s*", "", "".join(blocks)).splitlines()
    return [re.sub(r"\s+#.*", "", line[2:]) for line in lines if line.startswith("$ ")]


def codes(page: Path) -> list[str]:
    """What stands between backticks."""
    return [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", prose(page))]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as a browser of repositories makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", each.lower()).replace(" ", "-") for each in headings}


def walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Return a command and all below it."""
    yield name, command
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            yield from walk(each, f"{name} {below}")


def flags(command: click.Command) -> set[str]:
    """Return the flags of one command."""
    return {flag for each in command.params for flag in each.opts} | {"--help"}


@functools.cache
def variables() -> set[str]:
    """Every environment variable that a program reads."""
    found = set()
    for name, program in PROGRAMS.items():
        for _, command in walk(program, name):
            for each in command.params:
                names = [each.envvar] if isinstance(each.envvar, str) else each.envvar
                found |= set(names or [f"GPU_TURNSTILE_{(each.name or '').upper()}"])
    return found


def _loaded(path: Path) -> list[Any]:
    """Read a file of YAML with libyaml, ten times as fast as in Python."""
    return list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader))


@functools.cache
def objects() -> set[tuple[str, str]]:
    """Kind, in small letters, and name of everything in deploy/."""
    found = set()
    for path in (ROOT / "deploy").rglob("*.yaml"):
        for body in _loaded(path):
            if isinstance(body, dict) and (body.get("metadata") or {}).get("name"):
                found.add((str(body["kind"]).lower(), str(body["metadata"]["name"])))
        # A rotation makes the Secrets that it is told to keep.
        for name in re.findall(r"_SECRET\n +value: ([-a-z]+)$", path.read_text(), re.MULTILINE):
            found.add(("secret", name))
    return found


@functools.cache
def templates() -> list[list[str]]:
    """The texts of our programs; of those with values in them, what stands between."""
    found: list[list[str]] = []
    for package in (
        "agent",
        "certs",
        "common",
        "contract",
        "placement",
        "proxy",
        "scheduler",
        "view",
        "webhook",
    ):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append([" ".join(node.value.split())])
                elif isinstance(node, ast.JoinedStr):
                    found.append([_static(each) for each in node.values])
    return found


def _static(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "\0"


def is_ours(text: str) -> bool:
    """Return whether a program of ours can say *text*: a whole text, a part, or one with values."""
    return text in _without_values() or any(each.fullmatch(text) for each in _with_values())


@functools.cache
def _without_values() -> str:
    return "\n".join("".join(parts).replace("\0", "") for parts in templates())


@functools.cache
def _with_values() -> list[re.Pattern[str]]:
    """Patterns for the beginnings of texts with values filled in, but not for values alone."""
    return [
        re.compile("".join(".*" if each == "\0" else re.escape(each) for each in parts[:end]))
        for parts in templates()
        for end in range(2, len(parts) + 1)
        if max(len(each) for each in parts[:end]) > 8
    ]


def policies_say() -> str:
    """Return the messages of our policies, pieces of one text put together."""
    said = [
        validation[field]
        for path in sorted((ROOT / "deploy/base/policies").glob("*.yaml"))
        for each in _loaded(path)
        for validation in each.get("spec", {}).get("validations", ())
        for field in ("message", "messageExpression")
        if field in validation
    ]
    return "\n".join(said).replace("' + '", "")


def everywhere(expression: str, text: Callable[[Path], str] = prose) -> list[tuple[Path, str]]:
    """What *expression* finds, with its page; never nothing."""
    found = [(page, each) for page in PAGES for each in re.findall(expression, text(page))]
    assert found, f"{expression}: finds nothing any more"
    return found


def whole(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def typed() -> list[tuple[Path, str]]:
    """Every command and all code in the text, with its page."""
    return [(page, line) for page in PAGES for line in (*commands(page), *codes(page))]


# --- links ----------------------------------------------------------------------------------


def _leads_somewhere(page: Path, target: str) -> bool:
    if "://" in target:  # what is outside may change or go
        return page == PROJECTS
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    return there.exists() and (not anchor or anchor in anchors(there))


def test_every_link_leads_somewhere() -> None:
    found = everywhere(r"\]\(([^)\s]+)\)")
    assert {page for page, _ in found} == set(PAGES)
    assert any("#" in target for _, target in found)
    assert [
        f"{page.name}: {target}" for page, target in found if not _leads_somewhere(page, target)
    ] == []


def test_every_page_that_a_program_names_exists() -> None:
    sources = [each for name in PROGRAMS for each in (ROOT / name).rglob("*.py")]
    text = "".join(ast.unparse(ast.parse(each.read_bytes())) for each in sources)
    named = set(re.findall(r"\bdocs/[a-z-]+\.md(?:#[a-z0-9-]+)?", text))
    assert any("#" in each for each in named)
    assert [each for each in named if not _leads_somewhere(ROOT / "README.md", each)] == []


def test_every_target_of_make_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9]+):", makefile, flags=re.MULTILINE))
    found = everywhere(r"(?m)(?:^\$ |`)make ([a-z0-9]+)", whole)
    in_blocks = {each for page in PAGES for each in commands(page) if each.startswith("make ")}
    assert {"make demo", "make test", "make check"} <= {each.strip() for each in in_blocks}
    assert [each for each in found if each[1] not in targets] == []


# --- programs -------------------------------------------------------------------------------


def test_every_command_of_ours_has_the_flags_it_is_given() -> None:
    checked = set()
    for page, line in typed():
        match = re.search(r"\bpython -m (\w+)(.*)", line)
        if match is None or match[1] not in PROGRAMS:
            continue
        command = PROGRAMS[match[1]]
        for word in match[2].split():
            if word.startswith("--"):
                checked.add(match[1])
                assert word.partition("=")[0] in flags(command), f"{page.name}: {line}"
            elif isinstance(command, click.Group) and word in command.commands:
                command = command.commands[word]
    assert checked == set(PROGRAMS)


def test_every_flag_in_the_text_is_one_of_ours() -> None:
    ours = {
        flag
        for name, program in PROGRAMS.items()
        for _, command in walk(program, name)
        for flag in flags(command)
    }
    found: set[tuple[str, str]] = set()
    foreign: set[tuple[str, str]] = set()
    for page in PAGES:
        for line in prose(page).splitlines():
            # The first column of the tables of migrate.md is about the others' programs.
            text = line.partition(" | ")[2] if page.stem == "migrate" and line[:2] == "| " else line
            for code in re.findall(r"`([^`]+)`", text):
                if re.match(r"(kubectl|docker|python) ", code):
                    continue
                for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code):
                    (found if flag in ours else foreign).add((page.stem, flag))
    assert foreign == _FOREIGN
    assert {"operate", "reference", "install", "migrate"} <= {page for page, _ in found}


_FOREIGN = {
    ("README", "--make-rshared"),
    ("doctor", "--force-conflicts"),
    ("install", "--build-arg"),
    ("install", "--gpu-driver"),
    ("install", "--install-nvidia-plugin"),
    ("install", "--kube-version"),
    ("install", "--make-rshared"),
    ("autoscalers", "--max-node-startup-time"),
    ("autoscalers", "--max-total-unready-percentage"),
    ("autoscalers", "--ok-total-unready-count"),
    ("autoscalers", "--scale-down-utilization-threshold"),
}


def test_every_variable_is_read() -> None:
    settings = (ROOT / "tests/e2e/settings.py").read_text(encoding="utf-8")
    (switch,) = re.findall(r'^SWITCH = "(\w+)"$', settings, flags=re.MULTILINE)
    of_the_suite = {
        f"{switch}_{each}" for each in re.findall(r'(?<!\.)\bget\("(\w+)"', settings)
    } | {switch}
    found = everywhere(r"\bGPU_TURNSTILE_[A-Z0-9_]+\b", whole)
    assert [
        each for each in found if each[1] not in variables() | of_the_suite | VARIABLES.keys()
    ] == []
    assert of_the_suite <= {each for _, each in found}


@pytest.mark.parametrize("program", ["agent", "scheduler", "view", "webhook"])
def test_every_flag_is_told_with_its_default(program: str) -> None:
    text = prose(ROOT / "docs/reference.md")
    _, _, below = text.partition(f"| flag of the {program} |")
    told: dict[str, str] = {}
    for row in re.findall(r"^\| (`--.*)$", below.partition("\n\n")[0], flags=re.MULTILINE):
        cells = row.split(" | ")
        names, defaults = (re.findall(r"`([^`]+)`", each) for each in cells[:2])
        told |= dict(zip(names, defaults or [""] * len(names), strict=True))
    command = serve if program == "view" else PROGRAMS[program]
    options = {each.opts[0]: each for each in command.params}
    assert set(told) == set(options)
    for flag, option in options.items():
        default = option.default if isinstance(option.default, str | int | float) else ""
        if default or not told[flag]:
            assert told[flag] == str(default), flag


def test_every_resource_and_annotation_is_told() -> None:
    rows = [line.split(" | ")[0] for line in _lines("reference") if line.startswith("| `")]
    told = {each.removesuffix("<i>") for row in rows for each in re.findall(r"`([^`]+)`", row)}
    names = Names()
    ours = {
        getattr(names, name)
        for name, value in vars(Names).items()
        if isinstance(value, functools.cached_property) and name not in {"wishes", "resources"}
    }
    assert len(ours) > 10
    assert {
        each for each in ours if each not in told | {f"{names.domain}/{it}" for it in told}
    } == set()


# --- what is seen ---------------------------------------------------------------------------


def exported() -> dict[str, set[str]]:
    """What each program exports, without the prefix of all."""
    extender, page = SchedulerMetrics(), ViewMetrics()
    observe(extender, State(Names()), leads=lambda: True, in_step=lambda: True)
    Live(cast("Client", None), ClusterState(Names()), Feed(1), page, namespace="")
    found = {}
    for program, text in (
        ("agent", AgentMetrics().render().decode()),
        ("proxy", generate_latest(Figures({}, lambda: 0)).decode()),
        ("scheduler", extender.render().decode()),
        ("view", page.render().decode()),
        ("webhook", WebhookMetrics().render().decode()),
    ):
        prefix = f"gpu_turnstile_{program}_"
        found[program] = set(re.findall(rf"^# TYPE {prefix}(\w+) ", text, flags=re.MULTILINE))
        assert found[program]
    return found


def test_every_metric_is_exported() -> None:
    ours = exported()
    found = [
        (program, name)
        for page in PAGES
        for program, name in re.findall(
            r"\bgpu_turnstile_(agent|proxy|scheduler|view|webhook)_([a-z_]+)\b", whole(page)
        )
    ]
    assert {program for program, _ in found} >= {"agent"}
    assert [each for each in found if each[1] not in ours[each[0]]] == []


@pytest.mark.parametrize("program", ["agent", "proxy", "scheduler", "view", "webhook"])
def test_every_metric_is_told(program: str) -> None:
    text = prose(ROOT / "docs/reference.md")
    _, _, below = text.partition(f"| metric of the {program} ")
    rows = re.findall(r"^\| (`[^|]*) \|", below.partition("\n\n")[0], flags=re.MULTILINE)
    told = set(re.findall(r"`([a-z_]+)(?:\{[a-z,]*\})?`", " ".join(rows)))
    assert told == {each for each in exported()[program] if not each.endswith("_created")}


def test_every_alert_leads_to_a_section() -> None:
    text = (ROOT / "deploy/components/monitoring/rules.yaml").read_text(encoding="utf-8")
    (group,) = yaml.safe_load(text)["spec"]["groups"]
    table = [line for line in _lines("operate") if line.startswith("| `GPUTurnstile")]
    listed = re.findall(r"`(GPUTurnstile\w+)`", "".join(table))
    assert sorted(listed) == sorted(each["alert"] for each in group["rules"])


def _lines(page: str) -> list[str]:
    return (ROOT / f"docs/{page}.md").read_text(encoding="utf-8").splitlines()


def test_every_event_is_told() -> None:
    found = everywhere(r"`(GPU(?!-|Turnstile|_)[A-Za-z]+)`")
    assert [each for each in found if not is_ours(each[1])] == []
    text = prose(ROOT / "docs/reference.md").partition("\n## Events\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`GPU[^|]*) \|", text, flags=re.MULTILINE)
    told = set(re.findall(r"`(\w+)`", " ".join(rows)))
    written = {text for (text, *rest) in templates() if not rest and re.fullmatch(_EVENT, text)}
    assert told == written


_EVENT = r"GPUs?[A-Z][a-z]+[A-Za-z]+"


def test_what_operators_are_told_to_look_for_is_what_is_said() -> None:
    text = prose(ROOT / "docs/reference.md").partition("\n### On the node\n")[2].partition("\n#")[0]
    reasons = re.findall(r"^\| (`.*?`) \| ", text, flags=re.MULTILINE)
    of_nodes = re.findall(r"`([^`]+)`", " ".join(reasons))
    quoted = [
        code
        for code in codes(ROOT / "docs/operate.md")
        if " " in code and not re.match(r"(kubectl|python|gpu_turnstile|--|vcuda|\"message)", code)
    ]
    assert len(quoted) > 20
    assert len(of_nodes) > 4
    pieces = {
        piece.strip()
        for code in {*quoted, *of_nodes} - _OTHERS_SAY
        for piece in code.split("...")
        if len(piece.strip()) > 8
    }
    said = policies_say()
    assert [each for each in sorted(pieces) if not is_ours(each) and each not in said] == []


# --- the cluster ----------------------------------------------------------------------------

_KINDS = "deployment|daemonset|cronjob|job|secret|service|mutatingwebhookconfiguration"


_OF_0_2_0 = {("daemonset", "gpu-turnstile-agent-standby")}
"""What docs/upgrade.md tells to delete."""


def test_every_object_of_a_command_is_in_deploy() -> None:
    named = [
        (page, kind, name)
        for page, line in typed()
        for kind, name in re.findall(rf"\b({_KINDS})[/ ](gpu-turnstile[\w-]*)", line)
    ]
    assert len({kind for _, kind, _ in named}) > 2
    for page, kind, name in named:
        assert (kind, name) in objects() | _OF_0_2_0, f"{page.name}: {kind} {name}"
    files = [
        path
        for page in PAGES
        for line in commands(page)
        for path in re.findall(r"\bdeploy/[\w./-]+", line)
    ]
    assert files
    assert [path for path in files if not (ROOT / path).exists()] == []
    namespaces = {each for _, line in typed() for each in re.findall(r"kubectl -n (\S+)", line)}
    assert len(namespaces) > 2
    for each in namespaces - {"kube-system"}:
        assert ("namespace", each) in objects(), each


def test_blocks_of_yaml_are_yaml_and_name_what_is_there() -> None:
    text = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```yaml\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL)
    found, filled_in, kubeadm, own, sidecar, (rbac_proxy,), asked = map(yaml.safe_load, blocks)
    for path in (*found["resources"], *found["components"]):
        assert (ROOT / path.removeprefix("../gpu-turnstile/") / "kustomization.yaml").exists()
    for one in (*found["patches"], *filled_in["patches"]):
        patch = yaml.safe_load(one["patch"])
        assert (patch["kind"].lower(), patch["metadata"]["name"]) in objects()
    ((second,), components) = own["images"], ROOT / "deploy/components"
    deployment = (components / "scheduler-own/deployment.yaml").read_text(encoding="utf-8")
    assert f"image: {second['name']}:{second['newTag']}" in deployment
    # Both proxies lead to the page, and what is asked of the API server is the page's Service.
    (oauth2_proxy,) = sidecar["spec"]["template"]["spec"]["containers"]
    for each_proxy in (oauth2_proxy, rbac_proxy):
        assert "--upstream=http://127.0.0.1:8480" in {
            each.rstrip("/") for each in each_proxy["args"]
        }
    assert ("service", asked["authorization"]["resourceAttributes"]["name"]) in objects()
    # What kube-scheduler reads is what is mounted into its pod.
    (argument,) = kubeadm["scheduler"]["extraArgs"]
    mounted = [each["mountPath"] for each in kubeadm["scheduler"]["extraVolumes"]]
    (fragment,) = _loaded(components / "scheduler-extender/kube-scheduler.yaml")
    authority = fragment["extenders"][0]["tlsConfig"]["caFile"]
    assert mounted == [argument["value"], authority]
    assert all(each in text.partition("```yaml")[2] for each in mounted)

"""What docs/ names exists: links, flags, variables, metrics, Events, messages, objects, tests."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from agent.__main__ import main as agent
from certs.__main__ import cli as certs
from webhook.__main__ import cli as webhook

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PROGRAMS: dict[str, click.Command] = {"agent": agent, "certs": certs, "webhook": webhook}

# The words of Kubernetes, its runtimes and their tools, which docs/ quotes too.
_OTHERS_SAY = {
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
    "pod ... had been predicated!",
    "hostPath type check failed",
    'RuntimeHandler "nvidia" not supported',
}

every_page = pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)


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
    """Give a command and all below it."""
    yield name, command
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            yield from walk(each, f"{name} {below}")


def flags(command: click.Command) -> set[str]:
    """Give the flags of one command."""
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


@functools.cache
def objects() -> set[tuple[str, str]]:
    """Kind, in small letters, and name of everything in deploy/."""
    found = set()
    for path in (ROOT / "deploy").rglob("*.yaml"):
        for body in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if isinstance(body, dict) and (body.get("metadata") or {}).get("name"):
                found.add((str(body["kind"]).lower(), str(body["metadata"]["name"])))
    return found


@functools.cache
def templates() -> list[list[str]]:
    """The texts of our programs; of those with values in them, what stands between."""
    found: list[list[str]] = []
    for package in ("agent", "certs", "common", "contract", "webhook"):
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
    """Tell whether a program of ours can say *text*: a whole text, a part, or one with values."""
    for parts in templates():
        whole = "".join(parts)
        if text in whole.replace("\0", ""):
            return True
        if len(parts) > 1 and any(_ends_after(parts[:n], text) for n in range(2, len(parts) + 1)):
            return True
    return False


def _ends_after(parts: list[str], text: str) -> bool:
    """Tell whether *text* is these parts with values filled in, and not values alone."""
    if max(len(each) for each in parts) <= 8:
        return False
    pattern = "".join(".*" if each == "\0" else re.escape(each) for each in parts)
    return re.fullmatch(pattern, text) is not None


# --- links ----------------------------------------------------------------------------------


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        assert "://" not in target, f"{target}: what is outside may change or go"
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


@every_page
def test_every_test_that_is_named_is_there(page: Path) -> None:
    for path, names in re.findall(r"\(\.\./(tests/[\w/]+\.py)\)((?:: `\w+`)?)", prose(page)):
        for name in re.findall(r"test_\w+", names):
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}: {name}"


# --- programs -------------------------------------------------------------------------------


@every_page
def test_every_command_of_ours_has_the_flags_it_is_given(page: Path) -> None:
    for line in [*commands(page), *codes(page)]:
        match = re.search(r"\bpython -m (\w+)(.*)", line)
        if match is None or match[1] not in PROGRAMS:
            continue
        command = PROGRAMS[match[1]]
        for word in match[2].split():
            if word.startswith("--"):
                assert word.partition("=")[0] in flags(command), line
            elif isinstance(command, click.Group) and word in command.commands:
                command = command.commands[word]


@every_page
def test_every_flag_in_the_text_is_one_of_ours(page: Path) -> None:
    ours = {
        flag
        for name, program in PROGRAMS.items()
        for _, command in walk(program, name)
        for flag in flags(command)
    }
    for line in prose(page).splitlines():
        # The first column of the tables of migrate.md is about the others' programs.
        text = line.partition(" | ")[2] if page.stem == "migrate" and line[:2] == "| " else line
        for code in re.findall(r"`([^`]+)`", text):
            if re.match(r"(kubectl|docker|python) ", code):
                continue
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code):
                known = flag in ours or (page.stem, flag) in _FOREIGN
                assert known, f"{page.name}: {code}"


_FOREIGN = {("install", "--build-arg"), ("migrate", "--node-labels")}


@every_page
def test_every_variable_is_read(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"\bGPU_TURNSTILE_[A-Z_]+\b", text)) <= variables()


# --- what is seen ---------------------------------------------------------------------------


@every_page
def test_every_metric_is_exported(page: Path) -> None:
    sources = {
        program: (ROOT / program / "metrics.py").read_text(encoding="utf-8")
        for program in ("agent", "webhook")
    }
    text = page.read_text(encoding="utf-8")
    for program, name in re.findall(r"\bgpu_turnstile_(agent|webhook)_([a-z_]+)\b", text):
        bare = name.removesuffix("_total")
        assert re.search(rf'["}}_]{bare}"', sources[program]), f"gpu_turnstile_{program}_{name}"


def test_every_alert_leads_to_a_section() -> None:
    text = (ROOT / "deploy/components/monitoring/rules.yaml").read_text(encoding="utf-8")
    (group,) = yaml.safe_load(text)["spec"]["groups"]
    table = [line for line in _lines("operate") if line.startswith("| `GPUTurnstile")]
    listed = re.findall(r"`(GPUTurnstile\w+)`", "".join(table))
    assert sorted(listed) == sorted(each["alert"] for each in group["rules"])


def _lines(page: str) -> list[str]:
    return (ROOT / f"docs/{page}.md").read_text(encoding="utf-8").splitlines()


@every_page
def test_every_event_is_told(page: Path) -> None:
    for reason in re.findall(r"`(GPU(?!-|Turnstile)[A-Za-z]+)`", prose(page)):
        assert is_ours(reason), reason


def test_what_operators_are_told_to_look_for_is_what_is_said() -> None:
    page = ROOT / "docs/operate.md"
    quoted = [
        code
        for code in codes(page)
        if " " in code and not re.match(r"(kubectl|python|gpu_turnstile|--|vcuda|\"message)", code)
    ]
    assert len(quoted) > 20
    pieces = {
        piece.strip()
        for code in quoted
        if code not in _OTHERS_SAY
        for piece in code.split("...")
        if len(piece.strip()) > 8
    }
    assert [each for each in sorted(pieces) if not is_ours(each)] == []


# --- the cluster ----------------------------------------------------------------------------

_KINDS = "deployment|daemonset|cronjob|job|secret|service|mutatingwebhookconfiguration"


@every_page
def test_every_object_of_a_command_is_in_deploy(page: Path) -> None:
    for line in [*commands(page), *codes(page)]:
        for kind, name in re.findall(rf"\b({_KINDS})[/ ](gpu-turnstile[\w-]*)", line):
            assert (kind, name) in objects(), line
        for namespace in re.findall(r"kubectl -n (\S+)", line):
            assert ("namespace", namespace) in objects(), line


@every_page
def test_every_file_of_a_command_is_there(page: Path) -> None:
    for line in commands(page):
        for path in re.findall(r"\bdeploy/[\w./-]+", line):
            assert (ROOT / path).exists(), line


def test_blocks_of_yaml_are_yaml_and_name_what_is_there() -> None:
    text = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(block)
    for path in (*found["resources"], *found["components"]):
        assert (ROOT / path.removeprefix("../gpu-turnstile/") / "kustomization.yaml").exists()
    (patch,) = (yaml.safe_load(each["patch"]) for each in found["patches"])
    assert (patch["kind"].lower(), patch["metadata"]["name"]) in objects()
    (image,) = found["images"]
    deployment = (ROOT / "deploy/base/webhook/deployment.yaml").read_text(encoding="utf-8")
    assert f"image: {image['name']}:" in deployment

"""What README.md, CONTRIBUTING.md and docs/ name exists: links, flags, metrics, Events, log lines.

Each check takes all pages together and must find something to check, so that none can pass for
checking nothing.
"""

import ast
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import pytest
import yaml

from common.logs import FIELDS, TRACE
from contract.names import Names
from tests.deploy.soundness import PROGRAMS, variables
from tests.exported import exported
from tests.runtime.containerd import WHICH
from tests.runtime.test_libraries import LIBRARIES
from view.__main__ import serve
from view.terminal.commands import cli

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / each for each in ("README.md", "CONTRIBUTING.md", "tests/e2e/README.md")),
    ROOT / "deploy/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
PROJECTS = ROOT / "docs/comparison.md"
# The words of Kubernetes, its runtimes and their tools, which docs/ quotes too.
_OTHERS_SAY = {
    "cannot allocate all claims",
    "Failed to initialize NVML: Unknown Error",
    "systemctl daemon-reload",
    "ValidatingAdmissionPolicy 'gpu-turnstile-...' denied request",
    'failed calling webhook "pods.gpu-turnstile.io"',
    "x509: certificate has expired or is not yet valid",
    "connection refused",
    "nvidia-cuda-mps-control: No such file or directory",
    "dial tcp: lookup gpu-turnstile-scheduler...",
    "no endpoints available",
    "context deadline exceeded",
    "Address is not allowed",
    "Insufficient tencent.com/vcuda-core",
    "Insufficient nvidia.com/gpu",
    "no healthy devices present",
    "client connection is closing",
    "Allocate failed due to rpc error",
    "error while loading shared libraries: libcuda.so.1",
    "error while loading shared libraries: libcuda.so.1: cannot open shared object file",
    "NVML: Driver Not Loaded",
    "rpc client exit with 255",
    "pod ... had been predicated!",
    "hostPath type check failed",
    'is mounted on "/" but it is not a shared or slave mount',
    'RuntimeHandler "nvidia" not supported',
    'The Pod "x" is invalid: spec.containers...vcuda-core...',
}


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def commands(page: Path) -> list[str]:
    """Return the commands of a page: continued lines joined, comments left out."""
    blocks = re.findall(
        r"^```console\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    lines = re.sub(r"\\\n\s*", "", "".join(blocks)).splitlines()
    return [re.sub(r"\s+#.*", "", line[2:]) for line in lines if line.startswith("$ ")]


def codes(page: Path) -> list[str]:
    return [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", prose(page))]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as a browser of repositories makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", each.lower()).replace(" ", "-") for each in headings}


def walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            yield from walk(each, f"{name} {below}")


def flags(command: click.Command) -> set[str]:
    return {flag for each in command.params for flag in each.opts} | {"--help"}


@functools.cache
def read_variables() -> set[str]:
    commands = (each for name, program in PROGRAMS.items() for _, each in walk(program, name))
    return {variable for each in commands for variable in variables(each)}


@functools.cache
def objects() -> set[tuple[str, str]]:
    """Kind, in small letters, and name of everything in deploy/."""
    found = {("secret", "gpu-turnstile-webhook-ca")}  # made by a rotation
    for path in (ROOT / "deploy").rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        found |= {
            (kind.lower(), name)
            for kind, name in re.findall(
                r"^kind: (\w+)\nmetadata:\n  name: ([-a-z]+)$", text, flags=re.MULTILINE
            )
        }
        found |= {("secret", name) for name in re.findall(r"_SECRET\n +value: ([-a-z]+)", text)}
    return found


@functools.cache
def templates() -> str:
    """Return the texts of our programs, one a line; in place of a value is a zero character."""
    found = []
    for package in (*PROGRAMS, "common", "contract", "placement"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            no_texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                texts = [each.value if isinstance(each, ast.Constant) else "\0" for each in parts]
                if id(node) not in no_texts and all(isinstance(each, str) for each in texts):
                    found.append(
                        " ".join(re.sub(r"\{\w*\}", "\0", "".join(map(str, texts))).split())
                    )
    return "\n".join(found)


@functools.cache
def constants() -> list[str]:
    """Return the texts of our programs; of those with values in them, what stands between."""
    return [
        " ".join(node.value.split())
        for package in (*PROGRAMS, "common", "contract", "placement")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def everywhere(expression: str, text: Callable[[Path], str] = prose) -> list[tuple[Path, str]]:
    """What *expression* finds, with its page; never nothing."""
    found = [(page, each) for page in PAGES for each in re.findall(expression, text(page))]
    assert found, f"{expression}: finds nothing any more"
    return found


def whole(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def typed() -> list[tuple[Path, str]]:
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


def test_every_page_in_a_program_exists() -> None:
    sources = [each for name in PROGRAMS for each in (ROOT / name).rglob("*.py")]
    text = "".join(ast.unparse(ast.parse(each.read_bytes())) for each in sources)
    named = set(re.findall(r"\bdocs/[a-z-]+\.md(?:#[a-z0-9-]+)?", text))
    assert any("#" in each for each in named)
    assert [each for each in named if not _leads_somewhere(ROOT / "README.md", each)] == []


def test_every_named_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9]+):", makefile, flags=re.MULTILINE))
    found = everywhere(r"(?m)(?:^\$ |`)make ([a-z0-9]+)", whole)
    in_blocks = {each for page in PAGES for each in commands(page) if each.startswith("make ")}
    assert {"make demo", "make test", "make check"} <= {each.strip() for each in in_blocks}
    assert [each for each in found if each[1] not in targets] == []


def test_every_named_test_exists() -> None:
    found = everywhere(r"\]\(\.\./(tests/[\w/]+\.py\): `test_\w+\*?)`")
    named = [(page, each.split("): `")) for page, each in found]
    assert [
        f"{page.name}: {path}: {name}"
        for page, (path, name) in named
        if not re.search(rf"def {name.replace('*', '[a-z0-9_]*')}\(", whole(ROOT / path))
    ] == []


# --- programs -------------------------------------------------------------------------------


def test_every_documented_command_has_its_flags() -> None:
    checked = set()
    for page, line in typed():
        match = re.search(r"\bpython -m ([\w.]+)(.*)", line)
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


def test_every_flag_in_the_text_exists() -> None:
    ours = {
        flag
        for name, program in PROGRAMS.items()
        for _, command in walk(program, name)
        for flag in flags(command)
    }
    # The first column of the tables of migrate.md is about the others' programs.
    text = "".join(re.sub(r"(?m)^\| .*? \| ", "", prose(page)) for page in PAGES)
    found = set(re.findall(r"`(--[a-z][a-z-]*)", text))
    assert len(found) > 20
    assert found - ours == _FOREIGN


_FOREIGN = {
    *("--build-arg", "--dry-run", "--gpu-driver", "--install-nvidia-plugin", "--kube-version"),
    *("--force-conflicts", "--max-node-startup-time", "--max-total-unready-percentage"),
    *("--ok-total-unready-count", "--scale-down-utilization-threshold"),
    *("--enable-dynamic-resource-allocation", "--scheduler-config-file", "--set"),
}


def test_every_variable_is_read() -> None:
    found = everywhere(r"\bGPU_TURNSTILE_(?!E2E)[A-Z0-9_]+\b", whole)
    assert [
        each for each in found if each[1] not in read_variables() | LIBRARIES.keys() | {WHICH}
    ] == []


_NUMBERS = (click.types.IntParamType, click.types.FloatParamType)
_NUMBERED = [
    pytest.param(option, id=f"{name} {option.opts[0]}")
    for program, top in {**PROGRAMS, "kubectl gpu": cli}.items()
    for name, command in walk(top, program)
    for option in command.params
    if isinstance(option.type, _NUMBERS)
]


@pytest.mark.parametrize("option", _NUMBERED)
@pytest.mark.parametrize("text", ["24Gi", "nan"])
def test_a_number_that_cannot_be_read_names_its_unit_with_an_example(
    option: click.Option, text: str
) -> None:
    with pytest.raises(click.BadParameter, match=f"^'{text}' is not a valid .*, such as [0-9]+"):
        option.type.convert(text, option, None)


@pytest.mark.parametrize("program", ["agent", "claims", "gates", "scheduler", "view", "webhook"])
def test_every_flag_is_documented_with_its_default(program: str) -> None:
    text = prose(ROOT / "docs/reference.md")
    _, _, below = text.partition(f"| flag of the {program} ")
    documented: dict[str, str] = {}
    for row in re.findall(r"^\| (`--.*)$", below.partition("\n\n")[0], flags=re.MULTILINE):
        cells = row.split(" | ")
        names, defaults = (re.findall(r"`([^`]+)`", each) for each in cells[:2])
        documented |= dict(zip(names, defaults or [""] * len(names), strict=True))
    command = serve if program == "view" else PROGRAMS[program]
    options = {each.opts[0]: each for each in command.params}
    assert set(documented) == set(options)
    for flag, option in options.items():
        default = option.default if isinstance(option.default, str | int | float) else ""
        if default or not documented[flag]:
            assert documented[flag] == str(default), flag


def test_every_resource_and_annotation_is_documented() -> None:
    rows = [line.split(" | ")[0] for line in _lines("reference") if line.startswith("| `")]
    documented = {
        re.sub("<[a-z]+>$", "", each) for row in rows for each in re.findall(r"`([^`]+)`", row)
    }
    names = Names()
    ours = {
        getattr(names, name)
        for name, value in vars(Names).items()
        if isinstance(value, functools.cached_property) and name not in {"wishes", "resources"}
    }
    assert len(ours) > 10
    assert {
        each
        for each in ours
        if each not in documented | {f"{names.domain}/{it}" for it in documented}
    } == set()


# --- what is seen ---------------------------------------------------------------------------


def metrics(program: str) -> set[str]:
    """Return what a program exports, without the prefix of all."""
    found = re.findall(
        rf"^# TYPE gpu_turnstile_{program}_(\w+) ", exported()[program], re.MULTILINE
    )
    assert found
    return set(found)


def test_every_metric_is_exported() -> None:
    found = [
        (program, name)
        for page in PAGES
        for program, name in re.findall(
            r"\bgpu_turnstile_(agent|claims|gates|proxy|scheduler|view|webhook)_([a-z_]+)\b",
            whole(page),
        )
    ]
    assert {program for program, _ in found} >= {"agent"}
    assert [each for each in found if each[1] not in metrics(each[0])] == []


@pytest.mark.parametrize(
    "program", ["agent", "claims", "gates", "mps", "proxy", "scheduler", "view", "webhook"]
)
def test_every_metric_is_documented(program: str) -> None:
    text = prose(ROOT / "docs/reference.md")
    _, _, below = text.partition(f"(`gpu_turnstile_{program}_...`) | meaning |\n")
    rows = re.findall(r"^\| (`[^|]*) \|", below.partition("\n\n")[0], flags=re.MULTILINE)
    documented = set(re.findall(r"`([a-z_]+)(?:\{[a-z,]*\})?`", " ".join(rows)))
    assert documented == {each for each in metrics(program) if not each.endswith("_created")}


def test_every_alert_has_the_address_of_its_section() -> None:
    """By the link, which the table has too; whether that leads anywhere is tested above."""
    text = (ROOT / "deploy/components/monitoring/rules.yaml").read_text(encoding="utf-8")
    (group,) = yaml.safe_load(text)["spec"]["groups"]
    sections = {
        alert: f"docs/operate.md{target}" if target.startswith("#") else f"docs/{target}"
        for line in _lines("operate")
        if line.startswith("| `GPUTurnstile")
        for target in re.findall(r"\]\(([^)]+)\)", line)[:1]
        for alert in re.findall(r"`(GPUTurnstile\w+)`", line)
    }
    pages = "https://github.com/gpu-turnstile/gpu-turnstile/blob/main/"
    assert {each["alert"]: each["annotations"].get("runbook_url") for each in group["rules"]} == {
        alert: f"{pages}{section}" for alert, section in sections.items()
    }


def _lines(page: str) -> list[str]:
    return (ROOT / f"docs/{page}.md").read_text(encoding="utf-8").splitlines()


def test_every_event_is_documented() -> None:
    found = everywhere(r"`(GPU(?!-|Turnstile|_)[A-Za-z]+)`")
    assert [each for each in found if each[1] not in constants()] == []
    text = prose(ROOT / "docs/reference.md").partition("\n## Events\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`GPU[^|]*) \|", text, flags=re.MULTILINE)
    documented = set(re.findall(r"`(\w+)`", " ".join(rows)))
    written = {text for text in constants() if re.fullmatch(_EVENT, text)}
    assert documented == written


_EVENT = r"GPUs?[A-Z][a-z]+[A-Za-z]+"


def _first_cells(page: str, heading: str) -> list[str]:
    """Return what the first column of the tables of a section quotes."""
    text = prose(ROOT / f"docs/{page}.md").partition(f"\n{heading}\n")[2].partition("\n#")[0]
    cells = re.findall(r"^\| (`.*?) \| ", text, flags=re.MULTILINE)
    return re.findall(r"`([^`]+)`", " ".join(cells))


def test_quoted_messages_exist_in_the_code() -> None:
    of_nodes = [
        *_first_cells("reference", "### On the node"),
        *_first_cells("scheduler", "## Reasons"),
    ]
    quoted = [
        code
        for code in codes(ROOT / "docs/operate.md")
        if " " in code and not re.match(r"(kubectl|python|gpu_turnstile|--|vcuda|\"message)", code)
    ]
    assert len(quoted) > 20
    assert len(of_nodes) > 20
    parts = {part for code in {*quoted, *of_nodes} - _OTHERS_SAY for part in code.split(": ")}
    policies = [
        *(ROOT / "deploy/base/policies").glob("*.yaml"),
        *(ROOT / "deploy/components/dra").glob("*policies.yaml"),
    ]
    written = " ".join("".join(map(whole, policies)).split()).replace("' + '", "")
    lost = {each for each in parts if not re.search(_with_gaps(each), templates())}
    assert {each for each in lost if each not in written} == _OF_SEVERAL_TEXTS


def test_the_message_of_a_rule_is_found_by_its_words() -> None:
    """Five words of it, or all if it has fewer, are in one line of a source file."""
    text = whole(ROOT / "docs/reference.md")
    rows = re.findall(r"\n\| `([a-z-]+)` \| `(?:Invalid|Required) value: (.*)` \|", text)
    packages = (*PROGRAMS, "common", "contract", "placement")
    source = "\n".join(whole(path) for each in packages for path in (ROOT / each).rglob("*.py"))
    lost = []
    for rule, message in rows:
        pieces = re.split(r'\.\.\.|"[^"]*"|\b[NM]\b|[0-9]+|[a-z]+\.com/\S+', message)
        words = max((piece.strip(" ,:;()").split() for piece in pieces), key=len)
        runs = (words[at : at + 5] for at in range(max(len(words) - 4, 1)))
        if not any(" ".join(run) in source for run in runs):
            lost.append(rule)
    assert len(rows) > 30
    assert lost == []


def _with_gaps(quote: str) -> str:
    """Return the pattern of a text that has the words of a quote in this order.

    Amounts, and words that the code chooses by them, may be values in the text.
    """
    pieces = re.split(r"(?:\.\.\.|\b(?:[0-9]+|cards?|cores?|blocks?)\b|\band\b) *", quote)
    return re.sub(r"(?:\.\*)+", ".*", ".*".join(map(re.escape, pieces)))


_OF_SEVERAL_TEXTS = {
    "PreStartContainer ... gpu-turnstile",
    "a share of ... is split over cards",
    "a share of ... must be 50 on each of 2 cards, but is not",
    "cannot make ...",
    "cannot make the directory of a container's limits",
    "fewer than ... healthy cards",
    "no ... cards ... are free",
    "no ... cards ... have ... free",
    "no card fits 30 cores and 8 memory blocks",
    "no card fits 60 cores and 8 memory blocks",
    "no card of type ...",
    "no uncordoned card",
    "the node has no libvgpu.so",
}
"""These are made of several texts."""

# --- the cluster ----------------------------------------------------------------------------

_KINDS = "deployment|daemonset|cronjob|job|secret|service|mutatingwebhookconfiguration"


_OF_0_2_0 = {("daemonset", "gpu-turnstile-agent-standby")}
"""docs/upgrade.md deletes it."""


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


# --- the log --------------------------------------------------------------------------------


def logged(package: str) -> dict[str, list[tuple[str, set[str] | None]]]:
    """Level and fields of what a package logs, by message; ``None`` for fields made elsewhere."""
    found: dict[str, list[tuple[str, set[str] | None]]] = {}
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    ast.Attribute(ast.Name("log" | "_log"), level), [ast.Constant(str(message)), *_]
                ):
                    extra = [each.value for each in node.keywords if each.arg == "extra"]
                    found.setdefault(message, []).append((level, _fields(extra)))
    return found


def _fields(extra: Sequence[ast.expr]) -> set[str] | None:
    keys = [key for each in extra for key in (each.keys if isinstance(each, ast.Dict) else [None])]
    names = {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    return names if len(names) == len(keys) else None


def test_the_table_of_log_lines_has_their_levels_and_fields() -> None:
    section = (
        whole(ROOT / "docs/reference.md").partition("\n## Log lines\n")[2].partition("\n## ")[0]
    )
    rows = [
        (table.split()[0], *row)
        for table in re.split(r"\n\| log line of (?:the )?", section)[1:]
        for row in re.findall(r"^\| `([^`]+)` \| (\w+) \| ([^|]*)\|", table, flags=re.MULTILINE)
    ]
    lines = {each: logged(each) for each in {program for program, *_ in rows}}
    assert lines.keys() == {"agent", "certs", "proxy", "webhook"}
    compared = 0
    for program, message, level, cells in rows:
        if message not in lines[program]:
            assert message in constants()
            continue
        documented = set(re.findall(r"`(\w+)`", cells))
        fields = [fields for written, fields in lines[program][message] if written == level]
        assert documented in fields or None in fields, (program, message, level, documented)
        compared += documented in fields
    assert compared > 25
    assert {*FIELDS, TRACE} <= set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE))
    quoted = {each for _, each in everywhere(r'"message": ?"([a-z ]+)"', whole)}
    assert quoted <= {message for _, message, *_ in rows}

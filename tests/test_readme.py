"""README.md and docs/reference.md match the programs, which can read the examples there."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cards.health import APPLICATION_XIDS, RESET_XIDS, xid_fault
from agent.cards.inventory import parse_inventory
from contract.errors import FieldError
from contract.names import Names
from contract.requests import read_pod_demand
from contract.wishes import read_wishes

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
NAMES = Names()


def _blocks(text: str, beginning: str) -> list[str]:
    found = re.findall(r"^```yaml\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [each for each in found if beginning in each]


def _pod(
    limits: dict[str, str], requests: dict[str, str] | None = None, *before: dict[str, str]
) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": limits, "requests": requests or {}}}
    init = [{"name": "init", "resources": {"limits": each}} for each in before]
    return {"initContainers": init, "containers": [container]}


_CARD, _SHARE = {NAMES.core: "100"}, {NAMES.core: "60", NAMES.memory: "1"}


@pytest.mark.parametrize(
    "spec",
    [
        _pod({NAMES.core: "150"}),
        _pod({NAMES.core: "50"}),
        _pod({NAMES.memory: "8"}),
        _pod({NAMES.core: "many", NAMES.memory: "1"}),
        _pod({NAMES.core: "1500m", NAMES.memory: "1"}),
        _pod({NAMES.core: "-1", NAMES.memory: "1"}),
        _pod({NAMES.core: "50", NAMES.memory: "8Gi"}),
        _pod({NAMES.core: str(2**31), NAMES.memory: "1"}),
        _pod(_CARD, {NAMES.core: "200"}),
        _pod({}, _CARD),
        _pod(_CARD, None, {NAMES.core: "200"}),
        {**_pod({}, None, _CARD), "containers": _pod(_SHARE)["containers"] * 2},
    ],
)
def test_every_refusal_is_in_the_table(spec: dict[str, Any]) -> None:
    """An API server hands counts to the webhook as strings."""
    _, errors = read_pod_demand({"spec": spec}, NAMES)
    assert errors
    for error in errors:
        _check_row(error)


@pytest.mark.parametrize(
    ("cores", "container", "cards"),
    [("100", "main", "17"), ("200", "main", "2"), ("99", "main", "2"), ("100", "other", "2")],
)
def test_every_refusal_of_a_divided_share_is_in_the_table(
    cores: str, container: str, cards: str
) -> None:
    pod = {
        "metadata": {"annotations": {NAMES.gpu_cards_of(container): cards}},
        "spec": _pod({NAMES.core: cores, NAMES.memory: "2"}),
    }
    _, (error,) = read_pod_demand(pod, NAMES)
    _check_row(error)


@pytest.mark.parametrize(
    "wishes",
    [
        {NAMES.gpu_policy: "best"},
        {NAMES.core_limit: "0"},
        {NAMES.gpu_processes: "0"},
        {NAMES.use_gpu_type: 1},
        {NAMES.use_gpu_uuid: "a b"},
        {NAMES.use_gpu_type: "\x00"},
        {NAMES.use_gpu_type: "a100", NAMES.nouse_gpu_type: "a100"},
    ],
)
def test_every_refusal_of_a_wish_is_in_the_table(wishes: dict[str, object]) -> None:
    _, (error,) = read_wishes(wishes, NAMES)
    _check_row(error)


def test_the_table_of_xids_is_the_agents() -> None:
    table = REFERENCE.partition("### Xids")[2].partition("##")[0]
    documented = re.findall(r"(?m)^\| (\d+) \| (.*?) \| (\w+)", table)
    assert {int(xid) for xid, _, what in documented if what == "ignored"} == APPLICATION_XIDS
    until_a_reset = {int(xid) for xid in re.findall(r"(?m)^\| (\d+) .* until a reset", table)}
    assert until_a_reset == RESET_XIDS
    for xid, name, _ in documented:
        assert xid_fault(int(xid)).text == f"Xid {xid} ({name})"


def test_the_table_has_every_rule_and_no_other() -> None:
    found = set()
    rule = (
        r'"((?:not?-|wish|too-|share-|memory-|split-|requests-|negative|misspelt|'
        r'node-named|claim-|static-|selector-)[a-z-]*)"'
    )
    for name in (
        "contract/claims",
        "contract/requests",
        "contract/reusable",
        "contract/wishes",
        "contract/spelling",
        "webhook/admission/validation",
    ):
        found |= set(re.findall(rule, (ROOT / f"{name}.py").read_text(encoding="utf-8")))
    assert set(_messages()) == {*found, "privileged"}


def test_the_rules_of_other_systems_in_the_table_exist() -> None:
    folder = ROOT / "webhook/admission/dialects"
    sources = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    rows = re.findall(_RULE_ROWS, REFERENCE.partition(_OTHER_SYSTEMS)[2], re.MULTILINE)
    assert len(rows) > 2
    assert [name for name, _ in rows if f'"{name}"' not in sources] == []


def _check_row(error: FieldError) -> None:
    """Check that the table has an error's text, but for what was found in an object."""
    text = str(error).removeprefix(f"{error.path}: ")
    # N and M stand for any number, "..." for any text.
    pattern = re.sub(r"\b[NM]\b", "[0-9]+", re.escape(_messages()[error.rule]))
    assert re.fullmatch(pattern.replace(re.escape("..."), ".*"), text), text


def _messages() -> dict[str, str]:
    """Read the message of every rule but those of other systems."""
    return dict(re.findall(_RULE_ROWS, REFERENCE.partition(_OTHER_SYSTEMS)[0], re.MULTILINE))


_RULE_ROWS = r"^\| `([a-z-]+)` \|.* `((?:Invalid|Required) value: .*?)` \|$"
_OTHER_SYSTEMS = "With `--accept` pods of"


def test_the_pod_is_accepted() -> None:
    (block,) = _blocks(README, "kind: Pod")
    demand, errors = read_pod_demand(yaml.safe_load(block), NAMES)
    assert not errors
    (main,) = demand.containers
    assert (main.demand.cores, main.demand.memory) == (50, 8)


def test_the_cards_file_is_one() -> None:
    (block,) = _blocks(REFERENCE, "cards:\n")
    inventory = parse_inventory(yaml.safe_load(block))
    assert len(inventory.cards) == 2
    assert inventory.links


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", index))
    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert "](docs/README.md)" in README


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## Dependencies\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w, -]+) \|", section, flags=re.MULTILINE)
    documented = {name for row in rows for name in row.lower().split(", ")}
    needed = {re.split(r"[<>=;\[ ]", each)[0].lower() for each in project["dependencies"]}
    assert needed
    assert needed - documented == set()

"""README.md says what the programs say, and they read what it shows."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cards import parse_inventory
from contract.demand import read_pod_demand
from contract.names import Names

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
NAMES = Names()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def _said(limits: dict[str, Any], requests: dict[str, Any]) -> list[str]:
    spec = {"containers": [{"name": "main", "resources": {"limits": limits, "requests": requests}}]}
    _, errors = read_pod_demand(spec, NAMES)
    return [str(error).removeprefix(f"{error.path}: ") for error in errors]


@pytest.mark.parametrize(
    ("limits", "requests"),
    [
        pytest.param({NAMES.core: "150"}, {}, id="whole cards"),
        pytest.param({NAMES.core: "50"}, {}, id="share without memory"),
        pytest.param({NAMES.memory: "8"}, {}, id="memory without cores"),
        pytest.param({NAMES.core: "many", NAMES.memory: "1"}, {}, id="text"),
        pytest.param({NAMES.core: "1500m", NAMES.memory: "1"}, {}, id="fraction"),
        pytest.param({NAMES.core: "0", NAMES.memory: "1"}, {}, id="zero"),
        pytest.param({NAMES.core: str(2**31), NAMES.memory: "1"}, {}, id="too large"),
        pytest.param({NAMES.core: "100"}, {NAMES.core: "200"}, id="requests differ"),
        pytest.param({}, {NAMES.core: "100"}, id="requests without limits"),
    ],
)
def test_every_refusal_is_in_the_table(limits: dict[str, Any], requests: dict[str, Any]) -> None:
    # The API server hands counts to the webhook as strings.
    said = _said(limits, requests)
    assert said
    for text in said:
        # In the table N and M stand for what was found where any number can be.
        assert any(
            re.fullmatch(re.sub(r"\b[NM]\b", "[0-9]+", re.escape(each)), text)
            for each in _messages()
        ), text


def test_the_refusal_of_what_would_be_split_is_in_the_table() -> None:
    def ask(cores: str) -> dict[str, Any]:
        return {"resources": {"limits": {NAMES.core: cores}}}

    spec = {"initContainers": [ask("200")], "containers": [ask("100")]}
    (error,) = read_pod_demand(spec, NAMES)[1]
    text = str(error).removeprefix(f"{error.path}: ")
    assert any(re.fullmatch(re.sub(r"\bN\b", "200", re.escape(each)), text) for each in _messages())


def _messages() -> list[str]:
    return re.findall(r"`((?:Invalid|Required) value: .*?)` \|$", README, flags=re.MULTILINE)


def test_the_cards_file_is_one() -> None:
    (block,) = (each for each in BLOCKS if each.startswith("cards:"))
    inventory = parse_inventory(yaml.safe_load(block))
    assert len(inventory.cards) == 2
    assert inventory.links


def test_the_kustomization_names_what_is_there() -> None:
    root = Path(__file__).parents[1]
    (block,) = (each for each in BLOCKS if "kind: Kustomization" in each)
    found = yaml.safe_load(block)
    for path in found["resources"]:
        assert (root / path.removeprefix("../gpu-turnstile/") / "kustomization.yaml").exists()
    (image,) = found["images"]
    deployment = (root / "deploy/base/webhook/deployment.yaml").read_text(encoding="utf-8")
    assert f"image: {image['name']}:" in deployment


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert "://" in target or (Path(__file__).parents[1] / target).exists(), target


def test_every_command_of_the_makefile_that_readme_names_exists() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:\\$ |`)make ([a-z0-9]+)", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target

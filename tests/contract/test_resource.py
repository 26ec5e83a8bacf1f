"""The order of the resources, their units, and manifests that list all of them."""

import re
from pathlib import Path

import pytest

from contract.demand import Demand
from contract.names import Names
from contract.resource import Resource

DEPLOY = Path(__file__).parents[2] / "deploy"
LISTING = [
    path
    for path in sorted(DEPLOY.rglob("*.yaml"))
    if "examples" not in path.parts and "/vcuda-core'" in path.read_text(encoding="utf-8")
]


def test_names_and_counts_are_in_the_order_of_the_resources() -> None:
    assert list(Names("example.org").resources) == [
        "example.org/vcuda-core",
        "example.org/vcuda-memory",
    ]
    assert [each.count_in(Demand(50, 8)) for each in Resource] == [50, 8]


@pytest.mark.parametrize("path", LISTING, ids=lambda path: path.name)
def test_a_manifest_that_names_one_resource_names_all(path: Path) -> None:
    found = re.findall(r"'/vcuda-(\w+)'", path.read_text(encoding="utf-8"))
    assert {found.count(each) for each in Resource} == {found.count("core")}, path


def test_the_manifests_are_found() -> None:
    assert {path.name for path in LISTING} >= {"configurations.yaml", "requests.yaml"}

"""A class name exists once among the packages, so that a name says which class is meant."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "agent", "bench", "certs", "claims", "common", "contract", "gates", "placement", "proxy",
    "release", "scheduler", "simulator", "view", "webhook",
)  # fmt: skip
EXCEPTIONS = {
    "Metrics",  # one class in each program, with the metrics that it exports
    "Settings",  # one class in each program, with its flags
}


def test_a_class_name_exists_once() -> None:
    modules = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not path.stem.endswith(("_pb2", "_grpc")):
                    modules[node.name].append(str(path.relative_to(ROOT)))
    repeated = {name: found for name, found in modules.items() if len(found) > 1}
    assert repeated.keys() == EXCEPTIONS, repeated

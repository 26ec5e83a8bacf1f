import pytest

from simulator.api.resources import (
    NAMESPACES,
    NODES,
    PODS,
    Target,
    parse_path,
    resource_of_kind,
)

GOOD = {
    "/api/v1/pods": Target(PODS),
    "/api/v1/namespaces/a/pods": Target(PODS, "a"),
    "/api/v1/namespaces/a/pods/": Target(PODS, "a"),
    "/api/v1/namespaces/a/pods/p": Target(PODS, "a", "p"),
    "/api/v1/namespaces/a/pods/p/binding": Target(PODS, "a", "p", "binding"),
    "/api/v1/nodes/n/status": Target(NODES, "", "n", "status"),
    "/api/v1/namespaces": Target(NAMESPACES),
    "/api/v1/namespaces/a": Target(NAMESPACES, "", "a"),
    "/api/v1/namespaces/a/status": Target(NAMESPACES, "", "a", "status"),
}


@pytest.mark.parametrize(("path", "target"), GOOD.items())
def test_a_path_names_its_target(path: str, target: Target) -> None:
    assert parse_path(path) == target


def test_a_group_is_part_of_the_path() -> None:
    target = parse_path("/apis/apps/v1/namespaces/a/deployments/d")
    assert target is not None
    assert (target.resource.kind, target.resource.qualified) == ("Deployment", "deployments.apps")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/api/v1",
        "/api/v2/pods",
        "/api/v1/gadgets",
        "/api/v1/pods/p",  # a pod has a namespace
        "/api/v1/namespaces/a/nodes",  # a node has none
        "/api/v1/namespaces/a/pods/p/status/more",
        "/api/v1/namespaces/a/pods//status",
        "/apis/apps/v1",
        "/openapi/v2",
    ],
)
def test_a_path_that_names_nothing_is_none(path: str) -> None:
    assert parse_path(path) is None


def test_a_resource_is_found_by_its_kind() -> None:
    assert resource_of_kind("v1", "Pod") is PODS
    assert resource_of_kind("v2", "Pod") is None

"""Reading pods."""

from contract.demand import ContainerKind
from simulator.kubelet.podmanager import PodManager
from simulator.kubelet.pods import MIRROR, parse_pod
from simulator.kubelet.staticpods import mirror_of, static_pod
from tests.simulator.kubelet_helpers import CORE, container, pod


def test_containers_come_in_the_order_of_admission_with_their_kinds() -> None:
    read = parse_pod(
        pod("p", container("c", 1), init=(container("i", 2), container("s", 3, restart="Always")))
    )
    assert [(each.name, each.kind, each.limits[CORE]) for each in read.containers] == [
        ("i", ContainerKind.INIT, 2),
        ("s", ContainerKind.SIDECAR, 3),
        ("c", ContainerKind.MAIN, 1),
    ]


def test_a_static_pod_is_named_after_its_node_and_keeps_its_uid_over_restarts() -> None:
    manifest = {"metadata": {"name": "s"}, "spec": {"containers": [container("c", 1)]}}
    first, again = static_pod(manifest, "n1"), static_pod(manifest, "n1")
    assert (first.full_name, first.uid) == ("default/s-n1", again.uid)
    assert first.static
    assert static_pod(manifest, "n2").uid != first.uid
    assert manifest["metadata"] == {"name": "s"}


def test_a_mirror_is_kept_apart_and_is_what_the_api_server_is_told_about() -> None:
    static = static_pod(
        {"metadata": {"name": "s"}, "spec": {"containers": [container("c", 1)]}}, "n1"
    )
    shown = mirror_of(static)
    assert shown["metadata"]["annotations"][MIRROR] == static.uid
    shown["metadata"]["uid"] = "api-1"
    mirror = parse_pod(shown)
    pods = PodManager()
    pods.put(static)
    assert pods.shadow(static) is None
    pods.put(mirror)
    assert pods.all() == (static,)
    assert (pods.shadow(static), pods.static_of(mirror)) == (mirror, static)
    pods.drop(mirror)
    assert pods.shadow(static) is None
    pods.drop(static)
    assert pods.all() == ()

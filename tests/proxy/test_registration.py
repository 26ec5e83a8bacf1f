"""What a plugin may not register with, and the words that it is told."""

import os
import socket
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.kubelet_api import deviceplugin_pb2 as pb
from proxy import registration
from proxy.errors import BadRegistration
from proxy.registration import check_endpoint
from tests.proxy.conftest import MakePlugin
from tests.proxy.plugin import register, register_bytes
from tests.proxy.site import Site

RULE = "must be the file name of the plugin's socket, without a path"


@pytest.fixture
def plugins(folder: Path) -> Path:
    """A folder with a socket of root's, one of another user's, a file, and a link."""
    for name in ("good.sock", "other.sock"):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(folder / name))
    if os.geteuid() == 0:
        os.chown(folder / "other.sock", 1234, 1234)
    (folder / "file").touch()
    (folder / "link.sock").symlink_to(folder / "good.sock")
    return folder


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("", f"endpoint: Invalid value: '': {RULE}"),
        ("kubelet.sock", f"endpoint: Invalid value: 'kubelet.sock': {RULE}"),
        ("../k/x.sock", f"endpoint: Invalid value: '../k/x.sock': {RULE}"),
        ("a\0b", f"endpoint: Invalid value: 'a\\x00b': {RULE}"),
        ("x" * 300, f"endpoint: Not found: '{'x' * 64}...': File name too long"),
        ("none.sock", "endpoint: Not found: 'none.sock': No such file or directory"),
        ("file", "endpoint: Invalid value: 'file': must be a socket"),
        ("link.sock", "endpoint: Invalid value: 'link.sock': must be a socket"),
    ],
)
def test_any_other_endpoint_is_refused_with_a_reason(
    plugins: Path, endpoint: str, message: str
) -> None:
    with pytest.raises(BadRegistration) as raised:
        check_endpoint(plugins, endpoint)

    assert raised.value.text == message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file another's")
def test_a_socket_of_another_user_is_refused(plugins: Path) -> None:
    with pytest.raises(BadRegistration) as raised:
        check_endpoint(plugins, "other.sock")

    assert raised.value.text == (
        "endpoint: Forbidden: 'other.sock': must belong to root, but belongs to user 1234"
    )


@given(endpoint=st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_leads_out_of_the_folder(plugins: Path, endpoint: str) -> None:
    try:
        check_endpoint(plugins, endpoint)
    except BadRegistration as refused:
        assert refused.text.startswith("endpoint: ")  # noqa: PT017 -- most are refused
    else:
        assert (plugins / endpoint).parent == plugins


@pytest.mark.slow
class TestAsAPlugin:
    """Over the socket, as plugins see it."""

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            (
                pb.RegisterRequest(version="v1alpha1", endpoint="x", resource_name="a/b"),
                "version: Unsupported value: 'v1alpha1': must be v1beta1",
            ),
            (
                pb.RegisterRequest(version="v1beta1", endpoint="x.sock"),
                "resource_name: Required value: the resource that is served",
            ),
        ],
        ids=["version", "resource"],
    )
    def test_a_bad_registration_is_refused_and_counted(
        self, running: Site, request_: pb.RegisterRequest, message: str
    ) -> None:
        with pytest.raises(grpc.RpcError) as raised:
            register_bytes(running.plugin_dir, request_.SerializeToString())

        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert raised.value.details() == message
        assert running.proxy.registration.refused == 1

    def test_bytes_that_are_no_registration_are_refused_and_disturb_nobody(
        self, running: Site, plugin: MakePlugin
    ) -> None:
        plugin("a").register()
        for each in (b"\xff", b"\x0a\xff\xff", b"\x00" * 1000, os.urandom(64) + b"\xff\xff"):
            with pytest.raises(grpc.RpcError) as raised:
                register_bytes(running.plugin_dir, each)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        for name in ("p/kubelet.sock", f"k/{next(running.kubelet_dir.glob('proxy-*')).name}"):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(str(running.kubelet_dir.parent / name))
                raw.sendall(os.urandom(4096))

        assert running.allocate("d0").envs["BY"] == "a"
        assert running.connections == 1

    def test_a_plugin_that_nobody_listens_for_is_refused(self, running: Site) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(running.plugin_dir / "deaf.sock"))
            made.listen()
            with pytest.raises(grpc.RpcError) as raised:
                register(running.plugin_dir, "deaf.sock")

        assert raised.value.details() == "the plugin at deaf.sock does not respond within 3 s"

    def test_no_more_resources_are_served_than_a_bound(
        self, running: Site, plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("proxy.program.MOST_RESOURCES", 1)
        plugin("a").register()

        with pytest.raises(grpc.RpcError) as raised:
            plugin("b").register(resource="example.com/other")

        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        text = f"{registration.MOST_RESOURCES} resources are registered already"
        assert raised.value.details() == text

    def test_refused_registrations_take_no_room(
        self, running: Site, plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("proxy.program.MOST_RESOURCES", 2)
        bad = plugin("bad")
        bad.options = b"\x0a\xff"
        for number in range(4):
            with pytest.raises(grpc.RpcError, match="its options cannot be read"):
                bad.register(resource=f"example.com/bad-{number}")

        plugin("good").register()

"""Registrations that are refused, and the messages that plugins get."""

import os
import socket
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kubelet_api import deviceplugin_pb2 as pb
from proxy import registration
from proxy.errors import BadRegistration
from proxy.registration import check_endpoint
from tests.proxy.plugin import RESOURCE, register, register_bytes
from tests.proxy.site import Site

RULE = "must be the file name of the plugin's socket, without a path"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a socket of root's, one of another user's, a file, and a link."""
    folder = tmp_path_factory.mktemp("p")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # a short path
        for name in ("good.sock", "other.sock"):
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(name)
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
def test_an_endpoint_that_is_not_a_socket_of_the_folder_is_refused(
    plugins: Path, endpoint: str, message: str
) -> None:
    with pytest.raises(BadRegistration) as raised:
        check_endpoint(plugins, endpoint)
    assert raised.value.text == message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file another's")
def test_a_socket_of_another_user_is_refused(plugins: Path) -> None:
    text = "endpoint: Forbidden: 'other.sock': must belong to root, but belongs to user 1234$"
    with pytest.raises(BadRegistration, match=text):
        check_endpoint(plugins, "other.sock")


@given(endpoint=st.text())
def test_no_name_leads_out_of_the_folder(plugins: Path, endpoint: str) -> None:
    try:
        check_endpoint(plugins, endpoint)
    except BadRegistration as refused:
        assert refused.text.startswith("endpoint: ")  # noqa: PT017 -- most are refused
    else:
        assert (plugins / endpoint).parent == plugins


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
    running: Site, request_: pb.RegisterRequest, message: str
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        register_bytes(running.plugin_dir, request_.SerializeToString())
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == message
    assert running.proxy.registration.refused == 1


def test_bytes_that_are_not_a_registration_are_refused_and_disturb_no_plugin(running: Site) -> None:
    running.serve("a")
    for each in (b"\xff", b"\x0a\xff\xff", b"\x00" * 1000, os.urandom(64) + b"\xff\xff"):
        with pytest.raises(grpc.RpcError) as raised:
            register_bytes(running.plugin_dir, each)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for name in ("p/kubelet.sock", f"k/{next(running.kubelet_dir.glob('proxy-*')).name}"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(running.kubelet_dir.parent / name))
            raw.sendall(os.urandom(4096))
    assert running.allocate() == "a"
    assert running.connections == 1


def test_a_plugin_that_does_not_respond_is_refused(running: Site) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(running.plugin_dir / "silent.sock"))
        made.listen()
        registering = running.begin(lambda: register(running.plugin_dir, "silent.sock"))
        running.advance_until("the plugin gets its response", registering.done)
    error = registering.exception()
    assert isinstance(error, grpc.RpcError)
    assert error.details() == "the plugin at silent.sock does not respond within 3 s"


def test_the_kubelets_refusal_reaches_the_plugin(running: Site) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        running.plugin("a").register(resource="no-domain")
    assert raised.value.code() is grpc.StatusCode.UNKNOWN
    assert 'the ResourceName "no-domain" is invalid' in str(raised.value.details())


_RESOURCES = f"{registration.MOST_RESOURCES} resources are registered already"
_PLUGINS = f"1 plugins of {RESOURCE} are registered already"


@pytest.mark.parametrize(
    ("bound", "resource", "message"),
    [
        ("proxy.program.MOST_RESOURCES", "example.com/other", _RESOURCES),
        ("proxy.resource.MOST_PLUGINS", RESOURCE, _PLUGINS),
    ],
)
def test_resources_and_their_plugins_are_bounded(
    running: Site, monkeypatch: pytest.MonkeyPatch, bound: str, resource: str, message: str
) -> None:
    monkeypatch.setattr(bound, 1)
    running.plugin("a").register()
    with pytest.raises(grpc.RpcError) as raised:
        running.plugin("b").register(resource=resource)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert raised.value.details() == message


def test_refused_registrations_do_not_count_as_resources(
    running: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.program.MOST_RESOURCES", 1)
    bad = running.plugin("bad")
    bad.options = b"\x0a\xff"
    for number in range(2):
        with pytest.raises(grpc.RpcError, match="its options cannot be read"):
            bad.register(resource=f"example.com/bad-{number}")
    running.plugin("good").register()

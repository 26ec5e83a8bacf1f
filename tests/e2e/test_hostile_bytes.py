"""Malformed bytes on the proxy's sockets: it keeps running, and the kubelet never gets them."""

import os
import random
import socket
from collections import Counter
from collections.abc import Callable

import grpc
import pytest

from common.kubelet_api import deviceplugin_pb2 as pb
from tests.e2e.stage import Stage
from tests.proxy.plugin import Plugin

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

REGISTRATIONS, CALLS, LISTS, CONNECTIONS = 4_000, 4_000, 1_000, 1_000
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
_METHODS = ("GetPreferredAllocation", "Allocate", "PreStartContainer")


def test_malformed_registrations_calls_and_lists_fail_no_pod(stage: Stage) -> None:
    dice = random.Random(1)
    before = len(stage.proxy.events("registered"))
    staying = stage.run(*stage.make.burst(10, seed=9))
    codes: Counter[str] = Counter()
    with grpc.insecure_channel(f"unix:{stage.plugins / 'kubelet.sock'}", _OPTIONS) as channel:
        register = channel.unary_unary("/v1beta1.Registration/Register", None, None)
        for _ in range(REGISTRATIONS):
            codes[_code(register, _registration(dice))] += 1
        fake = Plugin(stage.plugins, "fake")
        for _ in range(LISTS):
            fake.lists = [_bytes(dice)]
            codes[_code(register, _of(fake.endpoint))] += 1
        fake.end()
    kubelets = sorted(stage.settings.plugin_dir.glob("proxy-*.sock"))
    assert len(kubelets) == 2
    for path in kubelets:
        with grpc.insecure_channel(f"unix:{path}", _OPTIONS) as channel:
            for _ in range(CALLS // 2):
                call = channel.unary_unary(
                    f"/v1beta1.DevicePlugin/{dice.choice(_METHODS)}", None, None
                )
                codes[_code(call, _bytes(dice))] += 1
    for number in range(CONNECTIONS):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(dice.choice([stage.plugins / "kubelet.sock", *kubelets])))
            raw.sendall(os.urandom(number))
    pods = stage.run(*(stage.make.single(f"after-{each}", 5, 4) for each in range(10)))
    stage.report(f"malformed bytes: {dict(codes)}, and {CONNECTIONS} connections")
    assert codes.total() == REGISTRATIONS + LISTS + CALLS
    assert codes["OK"] == 0
    assert stage.proxy.alive
    assert len(stage.proxy.events("registered")) == before
    assert stage.refused(pods) == {}
    stage.audit("after malformed bytes", staying | pods)


def _bytes(dice: random.Random) -> bytes:
    """Make bytes that are no message: field 1 is longer than the rest."""
    return b"\x0a\xff\xff\xff\xff\x07" + dice.randbytes(dice.choice([0, 1, 8, 64, 1024, 65536]))


def _of(endpoint: str, version: str = "v1beta1", resource: str = "example.com/fake") -> bytes:
    return pb.RegisterRequest(
        version=version, endpoint=endpoint, resource_name=resource
    ).SerializeToString()


def _registration(dice: random.Random) -> bytes:
    """Make a registration that is no message, or breaks a rule."""
    kind = dice.randrange(4)
    if kind == 0:
        return _bytes(dice)
    if kind == 1:
        return _of("fake.sock", version=dice.choice(["", "v1", "v1alpha1", "v1beta1 "]))
    if kind == 2:
        return _of(
            dice.choice(["", "..", "/etc/passwd", "../x.sock", "a/b", "none.sock", "x" * 500])
        )
    return _of("fake.sock", resource="")


def _code(call: Callable[..., bytes], request: bytes) -> str:
    try:
        call(request, timeout=30, wait_for_ready=True)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"

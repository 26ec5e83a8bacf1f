"""What gunicorn is told."""

import pytest

from common.serving.master import Serving


@pytest.mark.parametrize(("host", "address"), [("0.0.0.0", "0.0.0.0:8443"), ("::1", "[::1]:8443")])
def test_an_ipv6_host_stands_in_brackets(host: str, address: str) -> None:
    assert Serving("test", host, 8443).address == address

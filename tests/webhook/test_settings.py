from pathlib import Path

import pytest

from contract.names import Names
from webhook.settings import Settings


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "0.0.0.0:8443"), ("localhost", "localhost:8443"), ("::", "[::]:8443")],
)
def test_an_address_is_host_and_port(host: str, address: str) -> None:
    settings = Settings(host, 8443, Path("c"), Path("k"), Names(), workers=1, threads=1)
    assert settings.address == address

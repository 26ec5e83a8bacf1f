from pathlib import Path

import pytest

from contract.names import Names
from webhook.settings import Files, Settings


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "0.0.0.0:8443"), ("localhost", "localhost:8443"), ("::", "[::]:8443")],
)
def test_an_address_is_host_and_port(host: str, address: str) -> None:
    settings = Settings(host, 8443, Files(Path("c"), Path("k")), Names())
    assert settings.address == address

"""The settings of the claims program: each field with its flag."""

from dataclasses import dataclass
from pathlib import Path

from common import shared_settings as shared
from common.commandline import Seconds, WholeNumber, setting
from contract.names import DEFAULT_DOMAIN, Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one replica."""

    kubeconfig: Path | None = shared.kubeconfig()
    names: Names = shared.domain(DEFAULT_DOMAIN, Names)
    most_templates: int = setting(
        default=500,
        type=WholeNumber("number of templates, such as 500", 1, 100_000),
        help="Most templates in a namespace; pods of further shapes wait.",
    )
    unused: float = setting(
        default=3600.0,
        type=Seconds("3600", 60),
        help="Seconds after which a template that no pod names is deleted.",
    )
    http_host: str = shared.http_host()
    http_port: int = shared.http_port(9442)

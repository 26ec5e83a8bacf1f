"""``kubectl-gpu`` as one file: a Python ZIP application for any Python from 3.11.

It has this project's packages and their dependencies as installed here, in pure Python. So one file
works for every processor, system and version of Python; those of shiv and pex do not if a
dependency is compiled. The compiled parts are accelerators that their packages do not need (PyYAML,
charset-normalizer), with one exception: the Kubernetes client imports names of pydantic for API
models, which ``kubectl gpu`` never makes. The file has stand-ins for these names.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from release.archives import write_zip

NEEDED = ("click", "kubernetes", "prometheus-client", "PyYAML", "rich", "urllib3")
"""Distributions that the packages below import."""

PACKAGES = ("common", "contract", "placement", "view")
_LEFT_OUT = re.compile(
    r"common/serving/|view/web/|kubernetes/(aio|client/(api|models))/(?!__init__\.py$)"
    r"|.*\b(tests?|__pycache__)/|.*\.(so|pyd|pyi|pyc|c|h|pyx)$"
)
_COMPILED = frozenset({"pydantic", "aiohttp", "aiohttp-retry"})
"""Distributions without a pure Python form; the second and third are needed only for asyncio."""

_MAIN = """\
import sys

if sys.version_info < (3, 11):
    sys.exit("kubectl-gpu needs Python 3.11 or newer, this is " + sys.version.split()[0])
if sys.argv[0].endswith("kubectl_complete-gpu"):
    from view.kubectl import complete as main
else:
    from view.kubectl import main
sys.exit(main())
"""
_PYDANTIC = '''\
"""The names that kubernetes.client.api_client and api_response import; see release/onefile.py."""

StrictInt, StrictBytes = int, bytes


class BaseModel:
    """A model of the API, none of which is made here."""


class SecretStr(str):
    """A secret in such a model."""


def Field(*_args, **_kwargs):
    """Stand for a field of such a model."""
'''


def write_onefile(path: Path, root: Path, *, epoch: int) -> None:
    """Write the program.

    Args:
        path: path of the program.
        root: root of the sources.
        epoch: the time of every file in it.

    Raises:
        PackageNotFoundError: a needed package is not installed here.
    """
    files = {"__main__.py": _MAIN.encode(), "pydantic.py": _PYDANTIC.encode()}
    for package in PACKAGES:
        for each in sorted((root / package).rglob("*")):
            name = each.relative_to(root).as_posix()
            if each.is_file() and not _LEFT_OUT.match(name):
                files[name] = each.read_bytes()
    own = distribution("gpu-turnstile")
    files[f"gpu_turnstile-{own.version}.dist-info/METADATA"] = _metadata(own)
    for found in _closure():
        files |= _content(found)
    write_zip(path, files, epoch=epoch, before=b"#!/usr/bin/env python3\n")


def _closure() -> Iterator[Distribution]:
    """Yield the needed distributions and, in turn, their dependencies."""
    waiting, seen = list(NEEDED), set(_COMPILED)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError as error:
            raise PackageNotFoundError(f"{name} is not installed: make release") from error
        yield found
        for text in found.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)


def _content(found: Distribution) -> Mapping[str, bytes]:
    """Return a distribution's files, including metadata and licences."""
    files: dict[str, bytes] = {}
    for each in found.files or ():
        name = each.as_posix()
        if name.startswith("..") or _LEFT_OUT.match(name):
            continue
        is_info = ".dist-info/" in name
        if is_info and not re.search(
            r"/(METADATA|entry_points\.txt)$|(?i:licen[sc]e|notice)", name
        ):
            continue
        files[name] = each.read_binary()
    return files


def _metadata(own: Distribution) -> bytes:
    """Return metadata with name, version and licence; the wheel has the rest."""
    text = f"Metadata-Version: 2.1\nName: gpu-turnstile\nVersion: {own.version}\n"
    return f"{text}License: Apache-2.0\n".encode()

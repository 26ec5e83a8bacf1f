"""What a program asked for beside what deploy/ grants it, as lines that say what to edit."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from tests.rbac.manifests import Manifest, accounts, granted
from tests.rbac.rules import Permission, Request, missing, superfluous


def rights(program: str, manifests: Iterable[Manifest]) -> list[Permission]:
    """Give everything that is granted to *program*, under whatever account it runs."""
    manifests = list(manifests)
    return [
        right
        for account in sorted(accounts(manifests, program), key=str)
        for right in granted(manifests, account)
    ]


def too_little(
    program: str, requests: Collection[Request], manifests: Iterable[Manifest]
) -> list[str]:
    """Say what *program* asked for and may not."""
    manifests = list(manifests)
    granted_now = rights(program, manifests)
    files = sorted({right.file for right in granted_now})
    names = sorted(map(str, accounts(manifests, program))) or ["no account that deploy/ has"]
    where = ", ".join(files) if files else "deploy/ (nothing is bound to its account)"
    return [
        f"{where}: python -m {program} ({', '.join(names)}) needs {request}: add it"
        for request in missing(requests, granted_now)
    ]


def too_much(
    program: str, requests: Collection[Request], manifests: Iterable[Manifest]
) -> list[str]:
    """Say what *program* may and never asked for."""
    return [
        f"{right.file}: {right.role}: {right}: python -m {program} does not need that: {advice}"
        for right, advice in superfluous(requests, rights(program, manifests))
    ]


def never_granted(
    program: str, requests: Collection[Request], manifests: Iterable[Manifest]
) -> list[str]:
    """Say what *program* may not do to any object anywhere: tests make up names and namespaces."""
    rights_anywhere = [
        replace(right, name="", namespace="") for right in rights(program, manifests)
    ]
    return [
        f"deploy/ lets python -m {program} do no such thing: {request}"
        for request in missing(requests, rights_anywhere)
    ]

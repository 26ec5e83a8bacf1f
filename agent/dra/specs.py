"""The CDI spec of each prepared claim: what its containers get, and the driver's only memory.

A spec has one device for each request of the claim, and what the claim allocates as an annotation.
The folder is usually emptied by a reboot, after which the kubelet prepares all claims again.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.dra.claims import ClaimAllocation, ClaimRef, ClaimShare
from agent.errors import ClaimError, EnforcementError
from agent.holdings.edits import ContainerEdits
from agent.host import directories
from agent.host.disk_errors import explain
from agent.injection.cdi import claim_document
from contract.errors import InvalidRecord
from contract.inventory import Amounts
from contract.text import read_json
from placement.pods import PodId

log = logging.getLogger(__name__)

_PREFIX, _SUFFIX = "gpu-turnstile-claim-", ".json"
_ANNOTATION = "gpu-turnstile.io/claim"
_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,62}\Z", re.ASCII)  # part of a file's name
_MOST_BYTES = 1 << 19


class ClaimSpecs:
    """The specs in one folder, which the container runtime reads."""

    def __init__(self, folder: Path, driver: str, locate: Callable[[str], str] = str) -> None:
        """Prepare; nothing is read or written yet.

        *locate* returns the path on the host of a device node, by its path in containers.
        """
        self._folder = folder
        self._kind = f"{driver}/claim"
        self._locate = locate

    def load(self) -> dict[str, ClaimAllocation]:
        """Return the prepared claims by UID; log specs that cannot be read, and leave them.

        Raises:
            EnforcementError: the folder cannot be read.
        """
        found = {}
        with self._opened("read") as folder:
            for name in directories.names(folder):
                if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
                    continue
                try:
                    claim = _decode(directories.read(folder, name, _MOST_BYTES) or b"")
                    if name != _file_of(claim.ref):
                        raise InvalidRecord(f"it is the spec of {claim.ref}, by another name")
                except (InvalidRecord, ClaimError) as error:
                    more = {"path": str(self._folder / name), "reason": str(error)}
                    log.warning("CDI spec of a claim cannot be read", extra=more)
                else:
                    found[claim.ref.uid] = claim
        return found

    def write(
        self, claim: ClaimAllocation, edits: Mapping[str, ContainerEdits]
    ) -> Mapping[str, tuple[str, ...]]:
        """Write the spec of a claim, with the edits of each request; return their CDI names.

        Raises:
            ClaimError: the claim's UID cannot be the name of a file.
            EnforcementError: the spec cannot be written.
        """
        names = {request: f"{claim.ref.uid}-{at}" for at, request in enumerate(edits)}
        document = claim_document(
            self._kind,
            {names[request]: each for request, each in edits.items()},
            {_ANNOTATION: _encode(claim)},
            self._locate,
        )
        data = (json.dumps(document, indent=2) + "\n").encode()
        with self._opened("write") as folder:
            directories.replace(folder, {_file_of(claim.ref): data})
        return {
            request: (f"{self._kind}={names[request]}", *each.cdi)
            for request, each in edits.items()
        }

    def remove(self, ref: ClaimRef) -> None:
        """Remove the spec of a claim, if there is one.

        Raises:
            ClaimError: the claim's UID cannot be the name of a file.
            EnforcementError: the spec cannot be removed.
        """
        with self._opened("remove") as folder:
            directories.remove(folder, _file_of(ref))

    @contextmanager
    def _opened(self, doing: str) -> Iterator[int]:
        """Open the folder; the pod's author does not see its path."""
        try:
            with directories.opened_path(self._folder) as folder:
                yield folder
        except OSError as error:
            path = {"path": str(self._folder), "reason": str(error)}
            log.error("CDI specs of claims cannot be used", extra=path)
            raise EnforcementError(
                f"cdi-dir: cannot {doing} the CDI spec of a claim: {explain(error)}"
            ) from error


def _file_of(ref: ClaimRef) -> str:
    if not _UID.match(ref.uid):
        raise ClaimError(f"{ref}: its UID has other characters than letters, digits and dashes")
    return f"{_PREFIX}{ref.uid}{_SUFFIX}"


def _encode(claim: ClaimAllocation) -> str:
    shares = [
        [each.request, each.device, each.card, *each.amounts, each.share_id]
        for each in claim.shares
    ]
    return json.dumps({"claim": claim.ref, "pod": claim.pod, "shares": shares})


def _decode(data: bytes) -> ClaimAllocation:
    """Read a claim from its spec.

    Raises:
        InvalidRecord: it is not what :func:`_encode` writes.
    """
    try:
        document: Any = read_json(data.decode(), "spec")
        found: Any = read_json(document["annotations"][_ANNOTATION], _ANNOTATION)
        return ClaimAllocation(
            ClaimRef(*found["claim"]),
            PodId(*found["pod"]),
            tuple(
                ClaimShare(request, device, card, Amounts(int(cores), int(memory)), share_id)
                for request, device, card, cores, memory, share_id in found["shares"]
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRecord(f"{_ANNOTATION}: not a claim: {error}") from error

"""``kubectl gpu cordon`` and ``uncordon``: keep new containers off single cards."""

from collections.abc import Sequence

from common.apiserver.client import Client, Json, quoted
from common.apiserver.errors import Rejected
from contract.cordon import read_cordon, write_cordon
from contract.errors import ContractError
from contract.inventory import Card, decode_inventory
from contract.names import Names
from view.terminal.faults import CommandError, not_found

_SECONDS = 10.0
_TRIES = 5
_CONFLICT = 409


def change_cordon(
    client: Client, names: Names, node: str, cards: Sequence[str], *, cordon: bool
) -> list[str]:
    """Cordon or uncordon cards of a node; return a line for each of them.

    Raises:
        CommandError: there is no such node or card.
        Rejected: the API server rejects the change.
        Unavailable: the API server is unreachable.
    """
    path = f"/api/v1/nodes/{quoted(node)}"
    for attempt in range(_TRIES):
        obj = client.find(path, timeout=_SECONDS)
        if obj is None:
            raise not_found("nodes", node)
        metadata = obj["metadata"]
        annotations = metadata.get("annotations") or {}
        chosen = _choose(annotations, names, node, cards)
        before = read_cordon(annotations, names)
        uuids = {card.uuid for card in chosen}
        after = before | uuids if cordon else before - uuids
        patch: Json = {
            "metadata": {
                "resourceVersion": metadata["resourceVersion"],
                "annotations": {names.gpu_cordoned: write_cordon(after)},
            }
        }
        try:
            if after != before:
                client.call("PATCH", path, patch, timeout=_SECONDS)
        except Rejected as error:
            if error.status != _CONFLICT or attempt == _TRIES - 1:
                raise
            continue
        break
    word = "cordoned" if cordon else "uncordoned"
    return [
        f"node/{node} card {card.index} ({card.uuid}) "
        + (word if (card.uuid in before) != cordon else f"already {word}")
        for card in chosen
    ]


def _choose(annotations: Json, names: Names, node: str, cards: Sequence[str]) -> list[Card]:
    """Return the cards with these indices or UUIDs.

    Raises:
        CommandError: the node has no inventory, or not all of these cards.
    """
    try:
        known = decode_inventory(annotations[names.gpu_cards]).cards
    except (KeyError, ContractError) as error:
        text = f"error: node {node}: no agent has written its inventory of cards"
        raise CommandError(text) from error
    found = []
    for text in cards:
        matching = [card for card in known if text in (str(card.index), card.uuid)]
        if not matching:
            existing = ", ".join(f"{card.index} ({card.uuid})" for card in known) or "none"
            raise CommandError(f"error: node {node}: no card {text!r}; its cards: {existing}")
        found += matching
    return found

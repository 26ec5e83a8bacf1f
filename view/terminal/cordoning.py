"""``kubectl gpu cordon`` and ``uncordon``: keep new containers off single cards."""

from collections.abc import Sequence

from common.apiserver.client import Client, Json, quoted
from common.apiserver.errors import Rejected
from contract.cordon import describe_unknown, find_cordoned, read_cordon, write_cordon
from contract.errors import ContractError, quote
from contract.inventory import Card, decode_inventory
from contract.names import Names
from contract.text import fold_uuid
from view.model.words import uncordon_command
from view.terminal.faults import CommandError, not_found

_SECONDS = 10.0
_TRIES = 5
_CONFLICT = 409


def change_cordon(
    client: Client, names: Names, node: str, cards: Sequence[str], *, cordon: bool
) -> tuple[list[str], str]:
    """Cordon or uncordon cards of a node.

    Args:
        client: sends the requests.
        names: of annotations.
        node: the node's name.
        cards: indices or UUIDs; to uncordon, also entries of the annotation that name no card.
        cordon: whether the cards get no new containers.

    Returns:
        A line for each of *cards*, and what is wrong with the rest of the annotation.

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
        known = _cards(annotations, names, node)
        entries = read_cordon(annotations, names)
        before = find_cordoned(entries, (card.uuid for card in known))
        removed = [each for each in cards if not cordon and each in before.unknown]
        chosen = _choose(known, node, [each for each in cards if each not in removed])
        uuids = {card.uuid for card in chosen}
        after = before.uuids | uuids if cordon else before.uuids - uuids
        unknown = [each for each in before.unknown if each not in removed]
        patch: Json = {
            "metadata": {
                "resourceVersion": metadata["resourceVersion"],
                "annotations": {names.gpu_cordoned: write_cordon([*after, *unknown])},
            }
        }
        try:
            if removed or after != before.uuids:
                client.call("PATCH", path, patch, timeout=_SECONDS)
        except Rejected as error:
            if error.status != _CONFLICT or attempt == _TRIES - 1:
                raise
            continue
        break
    word = "cordoned" if cordon else "uncordoned"
    lines = [
        f"node/{node} card {card.index} ({card.uuid}) "
        + (word if (card.uuid in before.uuids) != cordon else f"already {word}")
        for card in chosen
    ]
    lines += [f"node/{node} entry {quote(each)}, which is no card, removed" for each in removed]
    if not unknown:
        return lines, ""
    run = uncordon_command(node, unknown, names.gpu_cordoned)
    return lines, f"{describe_unknown(unknown, names)}. To remove it: {run}"


def _cards(annotations: Json, names: Names, node: str) -> Sequence[Card]:
    """Return the cards of a node.

    Raises:
        CommandError: the node has no inventory.
    """
    try:
        return decode_inventory(annotations[names.gpu_cards]).cards
    except (KeyError, ContractError) as error:
        text = f"error: node {node}: no agent has written its inventory of cards"
        raise CommandError(text) from error


def _choose(known: Sequence[Card], node: str, cards: Sequence[str]) -> list[Card]:
    """Return the cards with these indices or UUIDs.

    Raises:
        CommandError: the node has not all of these cards.
    """
    found = []
    for text in cards:
        key = fold_uuid(text)
        matching = [card for card in known if key in (str(card.index), fold_uuid(card.uuid))]
        if not matching:
            existing = ", ".join(f"{card.index} ({card.uuid})" for card in known) or "none"
            raise CommandError(f"error: node {node}: no card {text!r}; its cards: {existing}")
        found += matching
    return found

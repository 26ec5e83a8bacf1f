"""The cards of simulated nodes."""

from simulator.manifests import Json

CARDS = 4


def cards_file(count: int = CARDS, memory: str = "24Gi") -> Json:
    """Return the content of a cards file: equal cards, two on each PCIe switch and NUMA node."""
    return {
        "cards": [
            {
                "uuid": f"GPU-{index}{index}{index}{index}0000-5eed-4a2d-8c1f-00000000000{index}",
                "index": index,
                "minor": index,
                "model": "Simulated A30",
                "memory": memory,
                "numa": index // 2,
                "busId": f"00000000:{0x3B + index:02X}:00.0",
            }
            for index in range(count)
        ],
        "links": [
            {"cards": [one, other], "kind": "PIX" if one // 2 == other // 2 else "SYS"}
            for one in range(count)
            for other in range(one + 1, count)
        ],
    }


def cards_of(node: int) -> Json:
    """Return the cards file of one of several nodes, with UUIDs that no other node has."""
    found = cards_file()
    for card in found["cards"]:
        card["uuid"] = card["uuid"].replace("-5eed-", f"-{node:04d}-")
    return found

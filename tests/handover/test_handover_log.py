"""docs/operate.md tells admins what an upgrade looks like in the log: two agents write it so."""

import re
from pathlib import Path

from tests.agent.fakes import eventually
from tests.handover.stage import Stage, stage

OPERATE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")


def _rows() -> list[tuple[str, str]]:
    """Read who writes what, from the page's table of a handover."""
    section = OPERATE.partition("\n## An agent is replaced\n")[2].partition("\n## ")[0]
    table = section.partition("| agent | message | meaning |\n")[2].partition("\n\n")[0]
    return re.findall(r"^\| (old|new) \| `([^`]+)` \|", table, flags=re.MULTILINE)


def _written(node: Stage, name: str) -> list[str]:
    """List what an agent wrote of what the page tells of it."""
    told = {message for who, message in _rows() if who == name}
    return [each["message"] for each in node.log(name) if each["message"] in told]


def _time(node: Stage, name: str, message: str) -> str:
    (found,) = (each["time"] for each in node.log(name) if each["message"] == message)
    return str(found)


def test_a_handover_writes_the_lines_that_the_page_tells_in_their_order() -> None:
    rows = _rows()
    assert len(rows) == 7
    with stage() as node:
        node.serving("old")
        node.standing_by("new")
        eventually(lambda: node.said("old", "another agent stands by"), "the old one hears it")
        node.terminate("old")
        assert node.await_end("old") == 0
        eventually(lambda: node.said("new", "the predecessor has ended"), "it is over")

        # Lines of the two within a millisecond may change places.
        for name in ("old", "new"):
            assert _written(node, name) == [message for who, message in rows if who == name]
        assert _time(node, "new", "standing by") <= _time(node, "new", "taking over")
        assert _time(node, "new", "registered") <= _time(node, "old", "handed over")
        (served,) = (each for each in node.log("new") if each["message"] == "serving this node")
        assert served["by"] == "handover"


def test_an_agent_that_is_killed_is_followed_as_the_page_tells() -> None:
    assert "`serving this node` with `by` `death`, then `registered`" in OPERATE
    with stage() as node:
        node.serving("old")
        (served,) = (each for each in node.log("old") if each["message"] == "serving this node")
        assert served["by"] == "start"
        node.standing_by("new")
        node.kill("old")
        eventually(lambda: node.said("new", "registered"), "it registers")

        told = node.log("new")
        messages = [each["message"] for each in told]
        assert messages.index("serving this node") < messages.index("registered")
        assert told[messages.index("serving this node")]["by"] == "death"

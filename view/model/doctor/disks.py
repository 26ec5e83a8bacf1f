"""Check of the disks that agents write to."""

from collections.abc import Iterator

from view.model.doctor.facts import Facts, Finding, Level, UnreadSource, ok, value

_PAGE = "docs/operate.md#the-disk-is-full-or-read-only"
_EFFECTS = {
    "state-dir": (Level.ERROR, "new GPU pods may be refused"),
    "plugin-dir": (Level.WARNING, "unhealthy cards and the current pod are not saved"),
}
"""What a folder that cannot be written means, by its flag."""


def check_disks(facts: Facts) -> Iterator[Finding]:
    """Report folders that agents cannot write to; agents without this metric are passed over."""
    found, seen = list[Finding](), False
    for folder, (level, effect) in _EFFECTS.items():
        values = {
            node: value(samples, "gpu_turnstile_agent_folder_writable", folder=folder)
            for node, samples in facts.agents.items()
            if not isinstance(samples, UnreadSource)
        }
        seen = seen or any(each is not None for each in values.values())
        nodes = tuple(sorted(node for node, writable in values.items() if writable == 0))
        if nodes:
            text = f"--{folder} is full, read-only or missing: {effect}"
            found.append(Finding("", level, text, _PAGE, nodes))
    if seen and not found:
        found.append(ok("the folders that agents write to have space"))
    yield from found

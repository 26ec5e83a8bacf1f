"""``python -m tests.adversary``: run more nodes than the tests, or trace one node."""

import logging
import sys
from collections import Counter

import click

from tests.adversary.moves import FAULTS
from tests.adversary.run import FORMS, Outcome, run


@click.command(context_settings={"show_default": True})
@click.option("--first", default=0, help="The first seed.")
@click.option("--seeds", type=click.IntRange(1), default=100, help="How many seeds.")
@click.option("--rounds", type=click.IntRange(1), default=80, help="Bursts on each node.")
@click.option("--trace", is_flag=True, help="Print all events of the first seed.")
def main(*, first: int, seeds: int, rounds: int, trace: bool) -> None:
    """Run nodes with each form of ``List``; exit with 1 if there are findings.

    On nodes with odd seeds, shares may be divided over several cards.
    """
    logging.disable(logging.CRITICAL)
    total = Outcome()
    for seed in range(first, first + (1 if trace else seeds)):
        for name, active_only in FORMS.items():
            on_event = click.echo if trace else lambda _line: None
            outcome = run(seed, active_only=active_only, rounds=rounds, trace=on_event)
            total += outcome
            for each in outcome.findings:
                click.echo(f"seed {seed}, {name}, step {each.step}: {each.kind}: {each.text}")
    kinds = Counter(each.kind for each in total.findings)
    never = [each for each in FAULTS if not total.faults[each]]
    click.echo(f"verdicts: {dict(total.verdicts)}")
    click.echo(f"excused: {dict(total.excused)}")
    click.echo(f"never happened: {', '.join(never) or 'nothing'}")
    click.echo(f"findings: {dict(kinds) or 'none'}")
    sys.exit(bool(kinds))


if __name__ == "__main__":
    main()

"""``python -m bench.adversary``: more nodes than the soak has, or all that happens on one."""

import logging
import sys
from collections import Counter

import click

from bench.adversary.run import Outcome, run
from bench.adversary.soak import FORMS, nodes


@click.command(context_settings={"show_default": True})
@click.option("--first", default=0, help="The first seed.")
@click.option("--seeds", type=click.IntRange(1), default=500, help="How many seeds.")
@click.option("--rounds", type=click.IntRange(1), default=80, help="Bursts on each node.")
@click.option("--list", "form", type=click.Choice([*FORMS, "both"]), default="both")
@click.option("--processes", type=click.IntRange(1), default=1, help="How many run at once.")
@click.option("--trace", is_flag=True, help="Print all that happens with the first seed.")
def main(  # noqa: PLR0913 -- one argument per flag
    *, first: int, seeds: int, rounds: int, form: str, processes: int, trace: bool
) -> None:
    """Look for findings; exit with 1 when there are any."""
    forms = [name for name in FORMS if form in (name, "both")]
    if trace:
        logging.disable(logging.CRITICAL)
        for name in forms:
            run(first, active_only=FORMS[name], rounds=rounds, trace=click.echo)
        return
    total, count = Outcome(), 0
    numbers = range(first, first + seeds)
    for seed, name, outcome in nodes(numbers, forms, rounds=rounds, processes=processes):
        total, count = total + outcome, count + 1
        for each in outcome.findings:
            click.echo(f"seed {seed}, {name}, step {each.step}: {each.kind}: {each.text}")
    kinds = Counter(each.kind for each in total.findings)
    click.echo(f"verdicts: {dict(total.verdicts)}")
    click.echo(f"excused: {dict(total.excused)}")
    click.echo(f"{count} nodes: {dict(kinds) or 'no findings'}")
    sys.exit(bool(kinds))


if __name__ == "__main__":
    main()

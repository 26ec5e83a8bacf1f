"""Many nodes in many processes: what became of them, as tables and counts."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from typing import Any

from bench.adversary.faults import FAULTS
from bench.adversary.run import Outcome, run
from bench.result import Cell, Table

FORMS: Mapping[str, bool] = {"new List": True, "old List": False}
"""By name, whether ``List`` shows active pods only (K8)."""

KINDS = (
    ("wrong", "another container named"),
    ("bystander", "a container named that asks for no GPU"),
    ("witness", "a guess called witness"),
    ("twice", "places given twice"),
    ("split", "a container on cards that do not go together"),
    ("refused", "refused though it fits"),
    ("cornered", "refused though it fitted when it was first asked for"),
    ("failed", "calls and threads ended by an exception"),
    ("veto", "starts vetoed without reason"),
    ("unproven", "started without proof"),
    ("wish", "started against its author's wish"),
    ("record", "records that differ"),
    ("free", "free places told wrongly on a quiet node"),
    ("unknown", "running containers not known on a quiet node"),
)
"""Kinds of findings, and what they are called in tables."""

_NOTES = (
    "guessed wrongly: List could not be had, or the pod's spec could not; evidence is order.",
    "rightly refused: an exact search over cards finds no place. excused: see the JSON.",
)


def soak(
    *, seeds: int = 50, rounds: int = 40, processes: int = 2
) -> tuple[Sequence[Table], dict[str, int], dict[str, Any]]:
    """Run so many nodes with each form of ``List``.

    Returns:
        Tables, what must be 0, and figures for the JSON.
    """
    totals = dict.fromkeys(FORMS, Outcome())
    for _, form, outcome in nodes(range(seeds), FORMS, rounds=rounds, processes=processes):
        totals[form] += outcome
    return tables(totals, seeds), counted(totals), figures(totals)


def nodes(
    seeds: Iterable[int], forms: Iterable[str], *, rounds: int, processes: int
) -> Iterator[tuple[int, str, Outcome]]:
    """Run nodes in processes that log nothing; yield seed, form of ``List`` and outcome of each."""
    with ProcessPoolExecutor(processes, get_context("spawn"), logging.disable) as pool:
        tasks = {
            (seed, form): pool.submit(run, seed, active_only=FORMS[form], rounds=rounds)
            for seed in seeds
            for form in forms
        }
        for (seed, form), task in tasks.items():
            yield seed, form, task.result()


def tables(totals: Mapping[str, Outcome], seeds: int) -> list[Table]:
    """Write what became of the nodes."""
    words = ("calls", "right", "wrong", "guessed wrongly", "corrected", "unproven", "refused")
    rows: list[tuple[Cell, ...]] = [
        (
            form,
            *(total.verdicts[word] for word in words),
            total.verdicts["rightly refused"],
            total.excused.total(),
            len(total.findings),
        )
        for form, total in totals.items()
    ]
    columns = ("List", *words, "rightly refused", "excused", "findings")
    happened: list[tuple[Cell, ...]] = [
        (fault, *(total.faults[fault] for total in totals.values())) for fault in FAULTS
    ]
    return [
        Table(f"Adversary: {seeds} nodes each, a seed each", columns, rows, _NOTES),
        Table("Adversary: what happened to them", ("fault", *totals), happened),
    ]


def counted(totals: Mapping[str, Outcome]) -> dict[str, int]:
    """Count what must be 0: no finding of any kind, and no fault that never happened."""
    found = Counter(each.kind for total in totals.values() for each in total.findings)
    happened = sum((total.faults for total in totals.values()), Counter[str]())
    never = [fault for fault in FAULTS if not happened[fault]]
    kinds = {f"adversary: {text}": found[kind] for kind, text in KINDS}
    return kinds | {"adversary: kinds of fault that never happened": len(never)}


def figures(totals: Mapping[str, Outcome]) -> dict[str, Any]:
    """Return everything, for the JSON."""
    return {
        f"adversary, {form}": {
            "verdicts": dict(total.verdicts),
            "evidence": dict(total.evidence),
            "excused": dict(total.excused),
            "faults": dict(sorted(total.faults.items())),
            "findings": [asdict(each) for each in total.findings[:200]],
        }
        for form, total in totals.items()
    }

"""The demo: examples, refusals and a burst on one node, then a burst on four; real processes."""

import os
import socket
import time
from pathlib import Path

from agent.cards.inventory import parse_inventory
from simulator.burst import burst_pods
from simulator.cards import CARDS, cards_of
from simulator.cluster import NAMES, SimulatedCluster, free_port
from simulator.errors import ProcessDied
from simulator.report import Report
from simulator.scheduler_comparison import (
    LOAD,
    NODES,
    SEED,
    SchedulerComparison,
    mixed_pods,
)
from simulator.story import Story
from simulator.viewer import ClusterViewer


def run_demo(examples: Path, *, seed: int, pods: int, clients: int, verbose: bool) -> bool:
    """Run the demo; examples with ``invalid`` in their file's name are to be refused.

    Returns:
        Whether everything was right.

    Raises:
        ClusterError: a process did not come up or died.
        ValueError: an example cannot be read.
        OSError: an example cannot be read, or a process cannot be started.
    """
    began = time.monotonic()
    report = Report(verbose=verbose)
    files = sorted(examples.glob("*.yaml"))
    if not files:
        raise ValueError(f"{examples}: no *.yaml files there")
    report.say(
        f"Starting API server, scheduler, kubelet, webhook (TLS) and agent, {CARDS} cards of 24 GiB"
    )
    first, *others = NODES
    with SimulatedCluster(seed=seed) as cluster:
        cluster.start_nodes(first)
        cluster.wait_for_nodes()
        story = Story(cluster, parse_inventory(cards_of(0)), report)
        story.good_examples([each for each in files if "invalid" not in each.name])
        story.bad_examples([each for each in files if "invalid" in each.name])
        story.burst(
            burst_pods(pods, seed=seed, names=NAMES),
            clients,
            node=first,
            meanwhile=lambda: cluster.start_nodes(*others),
        )
        cluster.clear()
        cluster.wait_for_nodes()
        two = SchedulerComparison(cluster, report)
        two.run(mixed_pods(LOAD, seed=SEED))
        people = ClusterViewer(cluster, report)
        people.look()
    right = story.right and two.right and people.right
    report.say(
        f"\n{'Nothing was wrong' if right else 'SOMETHING WAS WRONG'}; "
        f"{time.monotonic() - began:.0f} s, no process or file left behind."
    )
    if not verbose:
        report.say("Everything that was done, and what came of it: make demo V=1")
    report.say("Nodes like these on a page, in a browser: make page")
    return right


def run_page(port: int) -> None:
    """Fill four simulated nodes, and serve their page until a signal ends the program.

    Raises:
        ClusterError: the port is in use; a process did not come up or died.
        OSError: a process cannot be started.
    """
    _claim(port)
    report = Report(verbose=True)
    report.say(f"Starting {len(NODES)} simulated nodes, webhook (TLS), agents and extender")
    with SimulatedCluster() as cluster:
        cluster.start_nodes(*NODES)
        cluster.wait_for_nodes()
        cluster.let_the_scheduler_see_cards()
        SchedulerComparison(cluster, report).burst(mixed_pods(LOAD, seed=SEED))
        people = ClusterViewer(cluster, report)
        people.look()
        people.serve(port)


def _claim(port: int) -> None:
    """Refuse a port that the page cannot have: another page there would be taken for ours."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise ProcessDied(
            f"port {port}: {os.strerror(error.errno or 0)}: end what uses it, or choose another: "
            f".venv/bin/python -m simulator page --port {free_port()}"
        ) from error

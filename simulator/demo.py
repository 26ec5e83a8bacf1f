"""The demo: examples, denials and a burst on one node, then a burst on four; real processes."""

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
from simulator.single_node import SingleNodeDemo
from simulator.viewer import ClusterViewer


def run_demo(examples: Path, *, seed: int, pods: int, clients: int, verbose: bool) -> bool:
    """Run the demo; the webhook must deny examples with ``invalid`` in their file name.

    Returns:
        Whether all checks passed.

    Raises:
        ProcessDied: a process did not become ready, or died.
        ValueError: an example cannot be read.
        OSError: an example cannot be read, or a process cannot be started.
    """
    began = time.monotonic()
    report = Report(verbose=verbose)
    files = sorted(examples.glob("*.yaml"))
    if not files:
        raise ValueError(f"{examples}: no *.yaml files there")
    report.print_line(
        f"Starting API server, scheduler, kubelet, webhook (TLS) and agent, {CARDS} cards of 24 GiB"
    )
    first, *others = NODES
    with SimulatedCluster(seed=seed) as cluster:
        cluster.start_nodes(first)
        cluster.wait_for_nodes()
        single = SingleNodeDemo(cluster, parse_inventory(cards_of(0)), report)
        single.good_examples([each for each in files if "invalid" not in each.name])
        single.bad_examples([each for each in files if "invalid" in each.name])
        single.burst(
            burst_pods(pods, seed=seed, names=NAMES),
            clients,
            node=first,
            meanwhile=lambda: cluster.start_nodes(*others),
        )
        cluster.clear()
        cluster.wait_for_nodes()
        comparison = SchedulerComparison(cluster, report)
        comparison.run(mixed_pods(LOAD, seed=SEED))
        viewer = ClusterViewer(cluster, report)
        viewer.explain_pending()
    right = single.right and comparison.right and viewer.right
    report.print_line(
        f"\n{'All checks passed' if right else 'A CHECK FAILED'}; "
        f"{time.monotonic() - began:.0f} s, no process or file is left."
    )
    if not verbose:
        report.print_line("Every step: make demo V=1")
    report.print_line("A web page of such nodes: make page")
    return right


def run_page(port: int) -> None:
    """Serve the page of four simulated nodes with pods until a signal ends the program.

    Raises:
        ProcessDied: the port is in use; a process did not become ready, or died.
        OSError: a process cannot be started.
    """
    _claim(port)
    report = Report(verbose=True)
    report.print_line(f"Starting {len(NODES)} simulated nodes, webhook (TLS), agents and extender")
    with SimulatedCluster() as cluster:
        cluster.start_nodes(*NODES)
        cluster.wait_for_nodes()
        cluster.enable_extender()
        SchedulerComparison(cluster, report).burst(mixed_pods(LOAD, seed=SEED))
        viewer = ClusterViewer(cluster, report)
        viewer.explain_pending()
        viewer.serve(port)


def _claim(port: int) -> None:
    """Check that the port is free: otherwise users would see another program's page."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise ProcessDied(
            f"port {port}: {os.strerror(error.errno or 0)}: stop the program that uses it, "
            f"or choose another: .venv/bin/python -m simulator page --port {free_port()}"
        ) from error

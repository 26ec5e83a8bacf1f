"""The metrics of each program, as it exports them before its first event."""

import functools
from typing import cast

from prometheus_client import generate_latest

from agent.enforcement.mps.files import DaemonStatus
from agent.enforcement.mps.program import render as render_mps
from agent.observability.metrics import Metrics as AgentMetrics
from claims.metrics import Metrics as ClaimsMetrics
from claims.program import export_gauges as export_claims
from claims.state import TemplateState
from common.apiserver.client import Client
from contract.names import Names
from gates.metrics import Metrics as GatesMetrics
from gates.program import export_gauges as export_gates
from gates.state import GateState
from proxy.metrics import ProxyMetrics
from scheduler.extender import export_gauges
from scheduler.metrics import Metrics as SchedulerMetrics
from scheduler.state import State
from view.model.state import ClusterState
from view.web.feed import Feed
from view.web.live import Live
from view.web.metrics import Metrics as ViewMetrics
from webhook.metrics import Metrics as WebhookMetrics


@functools.cache
def exported() -> dict[str, str]:
    """Return the text that Prometheus reads, by program."""
    extender, claims, page = SchedulerMetrics(), ClaimsMetrics(), ViewMetrics()
    export_gauges(extender, State(Names()), leads=lambda: True, in_step=lambda: True)
    export_claims(claims, TemplateState(Names()), in_step=lambda: True)
    gates = GatesMetrics()
    export_gates(gates, GateState(Names()), leads=lambda: True, in_step=lambda: True)
    Live(cast("Client", None), ClusterState(Names()), Feed(1), page, namespace="")
    return {
        "agent": AgentMetrics().render().decode(),
        "claims": claims.render().decode(),
        "gates": gates.render().decode(),
        "mps": render_mps([DaemonStatus(("GPU-0",))]).decode(),
        "proxy": generate_latest(ProxyMetrics({}, {}, lambda: 0)).decode(),
        "scheduler": extender.render().decode(),
        "view": page.render().decode(),
        "webhook": WebhookMetrics().render().decode(),
    }

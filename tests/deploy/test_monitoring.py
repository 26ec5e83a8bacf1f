"""Dashboard and alerts speak of metrics that there are."""

import functools
import json
import re
from collections.abc import Iterator

import prometheus_client.parser
import pytest

from tests.deploy.kustomize import build_components
from tests.deploy.manifests import DEPLOY, containers, find, read_yaml, selects
from tests.exported import exported

FOLDER = DEPLOY / "components" / "monitoring"
DASHBOARD = json.loads((FOLDER / "gpu-turnstile.json").read_text(encoding="utf-8"))
(RULES,) = read_yaml(FOLDER / "rules.yaml")
_NAME = re.compile(r"gpu_turnstile_[a-z_]+")


def _dashboard() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def _expressions() -> Iterator[str]:
    yield from _dashboard()
    for group in RULES["spec"]["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


@functools.cache
def _types() -> dict[str, str]:
    """Give every metric's name as queries have it, and its type."""
    found: dict[str, str] = {}
    for text in exported().values():
        for family in prometheus_client.parser.text_string_to_metric_families(text):
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
            for suffix in suffixes.get(family.type, ("",)):
                found[f"{family.name}{suffix}"] = family.type
    return found


# An agent registers soon after its start: a rate would begin after it.
_ONCE = {"gpu_turnstile_agent_unregistered_seconds_sum"}


@pytest.mark.parametrize("expression", sorted(set(_expressions())))
def test_queries_use_exported_metrics_and_rates_of_counters(expression: str) -> None:
    types = _types()
    names = _NAME.findall(expression)
    assert names or re.search(r"\b(up|kube_\w+)\b", expression)  # Prometheus' and the cluster's own
    for name in names:
        assert name in types
        if types[name] != "gauge" and name not in _ONCE:
            assert re.search(rf"(rate|increase)\({name}", expression)


def test_counters_of_alerts_exist_before_their_first_event() -> None:
    """``increase`` sees nothing of a series that begins after 137 refusals within a scrape."""
    lines = [line for text in exported().values() for line in text.splitlines()]
    there = {line.split("{")[0].split()[0] for line in lines if not line.startswith("#")}
    alerts = " ".join(each["expr"] for each in RULES["spec"]["groups"][0]["rules"])
    assert set(re.findall(r"increase\((gpu_turnstile_\w+)", alerts)) <= there


def test_tables_show_all_rows_of_one_moment() -> None:
    """Else Grafana shows the points of one series, and a list from which to choose others."""
    targets = [
        each
        for panel in DASHBOARD["panels"]
        if panel["type"] == "table"
        for each in panel["targets"]
    ]
    assert {(each.get("format"), each.get("instant"), each.get("range")) for each in targets} == {
        ("table", True, False)
    }


def test_cordoned_cards_are_listed_beside_unhealthy_ones() -> None:
    (expression,) = (each for each in _dashboard() if "card_healthy" in each)
    assert 'card_cordoned) == 1, "state", "cordoned"' in expression


def test_monitors_select_existing_services_and_pods() -> None:
    objects = build_components("dra", "scheduler-own", "scheduler-queues", "mps")
    scrapes = read_yaml(FOLDER / "scrape.yaml")
    monitor = find(scrapes, "ServiceMonitor", "gpu-turnstile-webhook")
    services = [
        each
        for each in objects
        if each["kind"] == "Service"
        and monitor["spec"]["selector"]["matchLabels"].items()
        <= each["metadata"].get("labels", {}).items()
    ]
    (service,) = services
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [each["name"] for each in service["spec"]["ports"]]
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert endpoint["tlsConfig"]["serverName"] == f"{name}.{namespace}.svc"
    for program, kind, sets in (
        ("agent", "DaemonSet", ("agent", "agent-dra")),
        ("proxy", "DaemonSet", ("proxy", "proxy-dra")),
        ("mps", "DaemonSet", ("mps",)),
        ("claims", "Deployment", ("claims",)),
        ("gates", "Deployment", ("gates",)),
    ):
        monitor = find(scrapes, "PodMonitor", f"gpu-turnstile-{program}")
        (scrape,) = monitor["spec"]["podMetricsEndpoints"]
        for each in sets:
            found = find(objects, kind, f"gpu-turnstile-{each}")
            assert monitor["metadata"]["namespace"] == found["metadata"]["namespace"]
            pod = found["spec"]["template"]
            assert selects(monitor["spec"]["selector"], pod["metadata"]["labels"])
            assert scrape["port"] in [it["name"] for it in pod["spec"]["containers"][0]["ports"]]
        labels = [it["targetLabel"] for it in scrape.get("relabelings", ())]
        assert labels == (["node"] if kind == "DaemonSet" else [])
        # Gauges of containers have labels that Prometheus sets as well.
        assert scrape.get("honorLabels", False) == (program == "agent")


@pytest.mark.parametrize(
    ("component", "name", "scheme"),
    [
        ("scheduler-extender", "gpu-turnstile-scheduler", "https"),
        ("scheduler-own", "gpu-turnstile-kube-scheduler", "http"),
    ],
)
def test_the_extender_is_scraped_by_its_name(component: str, name: str, scheme: str) -> None:
    monitor = find(read_yaml(FOLDER / "scrape.yaml"), "PodMonitor", name)["spec"]
    pod = find(build_components(component), "Deployment", name)["spec"]["template"]
    assert selects(monitor["selector"], pod["metadata"]["labels"])
    (scraped,), (extender, *_) = monitor["podMetricsEndpoints"], containers(pod["spec"])
    assert scraped["port"] in [each["name"] for each in extender["ports"]]
    assert scraped.get("scheme", "http") == scheme
    server = scraped.get("tlsConfig", {}).get("serverName")
    assert server == ("gpu-turnstile-scheduler.gpu-turnstile.svc" if scheme == "https" else None)


def test_alerts_look_for_the_agent_by_the_names_that_it_is_scraped_and_counted_by() -> None:
    # The operator names the job of a PodMonitor so, kube-state-metrics a DaemonSet.
    monitor = find(read_yaml(FOLDER / "scrape.yaml"), "PodMonitor", "gpu-turnstile-agent")
    objects = build_components("dra")
    agents = find(objects, "DaemonSet", "gpu-turnstile-agent")
    rules = {each["alert"]: each["expr"] for each in RULES["spec"]["groups"][0]["rules"]}
    namespace, name = monitor["metadata"]["namespace"], monitor["metadata"]["name"]
    assert f'{{job="{namespace}/{name}"}}' in rules["GPUTurnstileAgentDown"]
    namespace = agents["metadata"]["namespace"]
    sets = [each["metadata"] for each in objects if each["kind"] == "DaemonSet"]
    assert {each["namespace"] for each in sets} == {namespace}
    rolled = {
        each["metadata"]["name"]
        for each in objects
        if each["kind"] == "DaemonSet" and each["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    }
    for alert, counted in (
        ("GPUTurnstileAgentMissing", {each["name"] for each in sets}),
        ("GPUTurnstileAgentUpdateHangs", rolled),
    ):
        chosen = set(re.findall(r'{namespace="([^"]+)",daemonset=~"([^"]+)"}', rules[alert]))
        ((where, names),) = chosen
        assert where == namespace
        assert {each["name"] for each in sets if re.fullmatch(names, each["name"])} == counted
    claims = find(objects, "Deployment", "gpu-turnstile-claims")["metadata"]
    for where, kind, name in (
        (namespace, "daemonset", "gpu-turnstile-agent-dra"),
        (claims["namespace"], "deployment", claims["name"]),
    ):
        assert f'{{namespace="{where}",{kind}="{name}"}}' in rules["GPUTurnstileClaimsDown"]
    for alert, folder, name in (
        ("GPUTurnstileSchedulerDown", "scheduler-extender", "gpu-turnstile-scheduler"),
        ("GPUTurnstileKubeSchedulerDown", "scheduler-own", "gpu-turnstile-kube-scheduler"),
        ("GPUTurnstileGatesDown", "scheduler-queues/controller", "gpu-turnstile-gates"),
    ):
        (deployment,) = (
            each
            for each in read_yaml(DEPLOY / "components" / folder / "deployment.yaml")
            if each["kind"] == "Deployment"
        )
        assert deployment["metadata"]["name"] == name
        namespace = deployment["metadata"]["namespace"]
        assert f'{{namespace="{namespace}",deployment="{name}"}} == 0' in rules[alert]


def test_the_dashboard_shows_the_cards_of_the_alert() -> None:
    rules = {each["alert"]: each["expr"] for each in RULES["spec"]["groups"][0]["rules"]}
    assert rules["GPUTurnstileCardFullAndIdle"] in set(_dashboard())

"""The routes: what they show equals the model, is escaped, and comes with strict headers."""

import gzip
import re
from html import unescape
from html.parser import HTMLParser

import pytest

from contract.inventory import Card
from tests.placement.cluster.builders import BLOCK, NAMES, bare_node, make_node, make_pod, record
from tests.view import scenes
from tests.view.web.conftest import Shown
from tests.view.web.sample import cluster, waiting_pod
from view.model.reports import Gap
from view.model.usage import CardUsage, ContainerUsage, NodeUsage
from view.model.usage_history import History, PastUsage
from view.model.words import evidence_text
from view.web.app import INTERNAL, create_app
from view.web.feed import Feed
from view.web.filters import PAGE
from view.web.hosts import Hosts
from view.web.links import Dashboard
from view.web.metrics import Metrics

EVIL = """"'><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}"""

SHORT = EVIL[: EVIL.index("<script")]


class Elements(HTMLParser):
    """All elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(key, value or "") for key, value in attrs]


def rows_of(page: str) -> list[str]:
    return re.findall(r'<li class="node[^"]*" id="n-([^"]+)"', page)


def marks_of(page: str) -> list[str]:
    return re.findall(r'<li data-key="[0-9]+/([^"]+)"', page)


def text_of(markup: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", markup)).split())


# --- what is shown --------------------------------------------------------------------


def test_every_card_and_holder_of_the_model_is_on_the_page(shown: Shown) -> None:
    shown.fill(*cluster())
    page = shown.text()
    rows = re.findall(
        r'<li class="node[^"]*" id="n-([^"]+)"(.*?)(?=<li class="node|</section>)',
        page,
        flags=re.DOTALL,
    )
    report = shown.edition.report
    assert [name for name, _ in rows] == [each.name for each in report.nodes]
    for (_, row), node in zip(rows, report.nodes, strict=True):
        labels = re.findall(r'aria-label="([^"]+) cores held"', row)
        assert labels == [f"{card.cores_held} of {card.cores}" for card in node.cards]
        holders = re.findall(r'title="([^"]+)" href="\./pods/([^"]+)"', row)
        assert [a for a, b in holders if a == b] == [
            f"{each.namespace}/{each.pod}" for card in node.cards for each in card.holders
        ]
        assert node.problem in text_of(row)
    text = text_of(page)
    for pod in report.pods:
        if pod.why:
            assert f"{pod.namespace}/ {pod.name}" in text
            assert pod.why in text
    assert report.denied[0].message in text
    assert "unhealthy: Xid 79" in text


def test_a_pods_page_has_its_explanation(shown: Shown) -> None:
    shown.fill(*cluster(), scenes.claimed(waiting_pod("llm", "waits-for-claim", 20, 4)))
    for path in (
        *("llm/pretrain-13b", "vision/augment-xl", "llm/waits-for-claim"),
        *("llm/finetune-70b", "vision/detect-canary"),
    ):
        found = shown.state.explain(*path.split("/"))
        assert found is not None
        texts = [found.summary, *(each.text for each in found.steps), *found.limits]
        for change in found.changes:
            texts += [change.text, change.manifest, change.needs]
        for node in found.nodes:
            texts += [node.node, *(each.why_not for each in node.cards if not found.cards)]
        for each in found.pod.containers:
            texts += [evidence_text(each), *(part.uuid for part in each.parts)]
        for card in found.cards:
            texts += [f"{each.namespace}/{each.pod} {each.container}" for each in card.holders]
        texts += [each.message for each in found.pod.events]
        text = text_of(shown.text(f"/pods/{path}"))
        assert [each for each in texts if each not in text] == []


def test_a_pod_with_cards_shows_the_pods_that_share_them(shown: Shown) -> None:
    """Not its own cards as free for it, as if it looked for some."""
    shown.fill(*cluster())
    for path in ("/", "/pods/llm/pretrain-13b"):
        text = text_of(shown.text(path))
        assert "100 cores are one card. 1 block is 256 MiB of GPU memory." in text
        assert "512 blocks (128 GiB)" in text
    for name, has in (("train-resnet-0", True), ("augment-xl", False)):
        text = text_of(shown.text(f"/pods/vision/{name}"))
        assert ("Cards Card Model" in text, "Candidate cards" in text) == (has, not has)
    assert "none yet" not in shown.text("/pods/vision/augment-xl"), "it was refused"
    text = text_of(shown.text("/pods/vision/detect-canary"))
    assert "vision/label-preview main 30 cores, 16 GiB" in text
    assert "vision/detect-canary c0 40 cores, 16 GiB chosen" in text


def test_a_node_that_does_not_exist_is_said_to_be_missing(shown: Shown) -> None:
    shown.fill(make_node("n1", 1), scenes.running("runs", (30, 4), "ghost", 0))
    text = shown.text("/pods/default/runs")
    assert "It is bound to ghost and fails: node ghost does not exist" in text_of(text)
    assert "Node ghost (missing)" in text_of(text)
    assert "missing card: 30 cores" in text_of(text)
    assert "?node=ghost" not in text
    assert "node ghost does not exist" in shown.text()
    assert "Node ghost does not exist, or has no GPUs." in text_of(shown.text("/?node=ghost"))


def test_a_deleted_pod_keeps_its_page(shown: Shown) -> None:
    shown.fill(*cluster())
    shown.state.drop_pod("u-llm-finetune-70b")
    text = shown.text("/pods/llm/finetune-70b")
    assert "Deleted at <time" in text
    assert "card 3: 100 cores, 320 blocks" in text
    assert "evidence witness: no other container matched the call" in text


def test_unknown_values_are_shown_as_unknown(shown: Shown) -> None:
    shown.waiting_for = "not ready yet: pods are being listed"
    assert shown.waiting_for in shown.text()
    assert shown.waiting_for in shown.text("/pods/a/b")
    shown.state.set_gaps([Gap("pods", "", "403 <forbidden>")])
    shown.fill(make_node("n1"))
    assert "Missing permission: list pods (403 &lt;forbidden&gt;)" in shown.text()
    assert shown.waiting_for in shown.text()
    shown.waiting_for = ""
    assert shown.text("/readyz") == "ok\n"


def test_pods_of_other_namespaces_are_faint(shown: Shown) -> None:
    shown.fill(*cluster())
    page = shown.text("/?namespace=llm")
    assert rows_of(page) == ["a100-1", "a100-2"]
    assert 'Pending, failing or refused pods <span class="count">1</span>' in page
    assert 'class="holder other"' in page
    assert "<option selected>llm</option>" in page


def test_more_nodes_than_a_page_holds_are_on_the_next(shown: Shown) -> None:
    shown.fill(*(bare_node(f"n{number:04}", "{}") for number in range(PAGE + 1)))
    first, second = shown.text("/?search=n"), shown.text(f"/?search=n&from={PAGE}")
    assert (len(rows_of(first)), len(marks_of(first))) == (PAGE, PAGE + 1)
    assert f'href="./?search=n&amp;from={PAGE}"' in first
    assert rows_of(second) == [f"n{PAGE}"]
    assert 'href="./?search=n"' in second


def test_a_browser_gets_the_changes_since_its_edition(shown: Shown) -> None:
    shown.fill(make_node("n1"), make_node("n2"), make_node("n3"))
    first = shown.edition.number
    assert shown.text(f"/rows?since={first}").count("data-node") == 0
    shown.state.drop_node("n3")
    shown.fill(make_pod("p", (10, 1), node="n2", annotations=record(c0=(["GPU-n2-0"], 10, 1))))
    changes = shown.text(f"/rows?since={first}")
    assert (rows_of(changes), marks_of(changes)) == (["n2"], ["n2"])
    assert 'data-order="n1 n2"' in changes
    assert 'data-order="0/n1 0/n2"' in changes
    assert f'data-edition="{shown.edition.number}"' in changes
    for unknown in ("", "x", "-1", "9" * 20, str(first + 9)):
        assert "data-reload" in shown.text(f"/rows?since={unknown}")


def test_measured_usage_is_shown_beside_held_amounts(shown: Shown) -> None:
    shown.fill(*cluster())
    use = NodeUsage(
        "a100-1",
        measured=True,
        cards=(CardUsage("GPU-a100-1-0", 85, 15, 0, 0, 31.0, 10.0 * 2**30),),
        containers=(
            ContainerUsage("vision", "train-resnet-0", "main", (), 60, 0, 30.0, 9.0 * 2**30),
        ),
    )
    shown.uses = {"a100-1": use}
    shown.publish()
    page = shown.text()
    assert 'aria-label="85 of 100 cores held, 35 used"' in page
    assert 'aria-label="60 GiB of 80 GiB memory held, 10 GiB used"' in page
    assert page.count('class="used"') == 2
    assert "35 cores" not in shown.text("/pods/vision/train-resnet-1")
    assert "<td>30 cores, 9 GiB</td>" in shown.text("/pods/vision/train-resnet-0")


def test_usage_is_a_page_and_a_table_with_its_period(shown: Shown) -> None:
    shown.fill(*cluster())
    uses = ContainerUsage("vision", "train-resnet-0", "main", (), 60, 0, 15.0, None)
    shown.uses = {"a100-1": NodeUsage("a100-1", measured=True, containers=(uses,))}
    shown.publish()
    path = "by=pod&namespace=vision"
    page = text_of(shown.text(f"/use?{path}"))
    assert "Only current usage is shown. For the last day, set --prometheus URL" in page
    assert "vision/ train-resnet-0 0.6 0.15 0 vision/" in page
    assert "Idle %" not in page

    shown.history = History("Prometheus responded with 401 <b>")
    page = text_of(shown.text(f"/use?{path}"))
    assert "Usage of the last day: unknown. Prometheus responded with 401 <b>" in page
    assert "vision/ train-resnet-0 0.6 0.15 0 unknown unknown unknown" in page

    past = (
        PastUsage("vision", "train-resnet-0", 0.006, 0.006, 0.0045),
        PastUsage("vision", "train-resnet-1", 0.006, None, None),
        PastUsage("vision", "deleted", 0.25, 0.25, 0.0),
        PastUsage("vision", "odd", None, None, None),
        PastUsage("llm", "finetune-70b", 9.0, None, None),
    )
    shown.history = History("", 90_400.0, 7_200.0, past)
    page = text_of(shown.text(f"/use?{path}"))
    assert "until 1970-01-02 01:06:40 UTC (2.0 hours observed), from Prometheus" in page
    assert "vision/ train-resnet-0 0.6 0.15 0 0.01 < 0.01 75 %" in page
    assert "vision/ train-resnet-1 0.6 unknown 0 0.01 unknown unknown" in page
    assert "vision/ deleted 0 - 0 0.25 0 0 %" in page
    assert "vision/ odd 0 - 0 unknown unknown unknown" in page
    assert "vision/ detect-canary 0.4 unknown 0 0 - -" in page
    assert "finetune-70b" not in page
    table = shown.client.get(f"/use.csv?{path}")
    assert table.headers["Content-Disposition"] == 'attachment; filename="gpus-by-pod.csv"'
    rows = table.text.splitlines()
    assert rows[1].startswith("vision,,train-resnet-0,0.6,0.15,0.0,0.006,0.006,0.004")
    assert rows[3].startswith("vision,,train-resnet-1,0.6,,0.0,0.006,,,1970-01-01T01:06:40Z,")
    assert rows[3].endswith("1970-01-02T01:06:40Z,7200")


# --- hostile cluster ------------------------------------------------------------------


def test_texts_of_pods_and_nodes_are_never_markup(shown: Shown) -> None:
    card = Card("GPU-1", 0, EVIL, 32 * BLOCK, None, EVIL)
    node = scenes.node_with("n1", card)
    pod = make_pod("p", (10, 1), annotations={NAMES.use_gpu_type: EVIL, NAMES.bind_order: EVIL})
    pod["spec"]["schedulerName"] = pod["status"]["phase"] = EVIL
    pod["spec"]["containers"][0]["name"] = EVIL
    pod["status"]["conditions"] = [scenes.unschedulable(EVIL, EVIL)]
    owner = {"kind": EVIL, "metadata": {"name": EVIL, "namespace": EVIL}}
    denied = scenes.event(owner, "FailedCreate", f"gpu-turnstile {EVIL}", EVIL)
    annotations = record(c0=(["GPU-1"], 10, 1))
    holder = make_pod(EVIL, (10, 1), node="n1", annotations=annotations, namespace=EVIL)
    shown.state.set_gaps([Gap(EVIL, EVIL, EVIL)])
    scenes.claimed(pod, EVIL)
    shown.fill(node, pod, holder, denied, scenes.event(pod, EVIL, EVIL, EVIL))
    rows = f"/rows?since={shown.edition.number}"
    for path in (
        *("/", rows, f"/?namespace={EVIL}&node={EVIL}&model={EVIL}"),
        *("/pods/default/p", f"/pods/{SHORT}/x", "/pods/default/unknown"),
    ):
        page = shown.text(path)
        found = Elements(page)
        assert not found.tags & {"img", "iframe", "object"}
        assert "unknown" in path or SHORT in text_of(page)
        scripts = [value for key, value in found.attributes if key == "src"]
        assert all(each.rpartition("/")[2] in {"page.js", "theme.js"} for each in scripts)
        assert not {key for key, _ in found.attributes if key.startswith("on") or key == "style"}
        assert "49" not in text_of(page).split()


def test_texts_of_pods_cannot_reverse_the_text_direction_and_are_truncated(shown: Shown) -> None:
    hostile = f"{scenes.HOSTILE}{'x' * 5000}"
    pod = scenes.waiting("p", (10, 1), message=hostile, annotations={NAMES.use_gpu_type: hostile})
    denied = {**scenes.denied(), "message": f"gpu-turnstile {hostile}"}
    shown.fill(make_node("n1", 1), pod, denied, scenes.event(pod, "Odd", hostile, hostile))
    for path in ("/", "/pods/default/p"):
        text = unescape(shown.text(path))
        assert r"\x1b[31m[red]evil\x1b]0;title\x07\u202e" in text
        assert all(char.isprintable() or char == "\n" for char in text)
        assert "x" * 1001 not in text


@pytest.mark.parametrize(
    "card", [Card("GPU-1", 0, "\ud800", 32 * BLOCK), Card("GPU-1", 0, "A100", 10**400)]
)
def test_an_invalid_node_annotation_does_not_break_the_page(shown: Shown, card: Card) -> None:
    shown.fill(scenes.node_with("n1", card), make_node("n2", 1), make_pod("p", (10, 1)))
    for path in ("/", f"/rows?since={shown.edition.number}", "/pods/default/p"):
        assert shown.client.get(path).status_code == 200
    assert "the inventory of cards cannot be read: gpu-cards.cards[0].m" in text_of(shown.text())


def test_every_url_is_relative_and_nothing_is_inline(shown: Shown) -> None:
    """So that the page works below any prefix, and the policy can forbid all that is inline."""
    shown.fill(*cluster())
    for path, up in (("/", "./"), ("/pods/llm/pretrain-13b", "../../"), ("/pods/a/b", "../../")):
        page = shown.text(path)
        urls = [
            value
            for key, value in Elements(page).attributes
            if key in {"href", "src", "action", "data-root"} and not value.startswith("#")
        ]
        assert len(urls) > 4
        assert [each for each in urls if not each.startswith(up)] == []
        assert re.findall(r"<(?:script|style)[^>]*>[^<]", page) == []


# --- headers and methods --------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/rows", "/pods/a/b", "/static/page.js", "/healthz", "/metrics", "/no/such"]
)
def test_strict_headers_are_everywhere(shown: Shown, path: str) -> None:
    with shown.client.get(path) as response:  # a file is closed with it
        headers = response.headers
    policy = dict(each.split(" ", 1) for each in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == ("no-cache" if "static" in path else "no-store")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/static/page.js", "/no/such"])
def test_only_read_methods_are_served(shown: Shown, path: str, method: str) -> None:
    response = shown.client.open(path, method=method)
    assert (response.status_code, response.headers["Allow"]) == (405, "GET, HEAD")


def test_a_page_of_another_name_is_not_served(shown: Shown) -> None:
    response = shown.client.get("/", headers={"Host": "evil.example:8480"})
    assert response.status_code == 421
    assert response.text == (
        'host "evil.example:8480" is not allowed; '
        'to allow it, start the page with --allowed-host "evil.example"\n'
    )


def test_long_pages_are_compressed_for_clients_that_support_it(shown: Shown) -> None:
    shown.fill(*cluster())
    plain = shown.client.get("/")
    packed = shown.client.get("/", headers={"Accept-Encoding": "gzip, br"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == plain.data
    assert "Accept-Encoding" in plain.headers["Vary"]
    assert "Content-Encoding" not in shown.client.get("/healthz").headers


def test_requests_are_counted_and_internal_errors_are_not_exposed(
    shown: Shown, caplog: pytest.LogCaptureFixture
) -> None:
    shown.waiting_for = "shutting down"
    assert [shown.client.get(each).status_code for each in ("/healthz", "/readyz")] == [200, 503]
    assert shown.text("/no/such") == "no such page\n"
    shown.broken = True
    response = shown.client.get("/pods/a/b")
    assert (response.status_code, response.text) == (500, f"{INTERNAL}\n")
    assert "a mistake of ours" in caplog.text
    text = shown.text("/metrics")
    for route, status in (("healthz", 200), ("readyz", 503), ("pod", 500), ("", 404)):
        labels = f'route="{route}",status="{status}"'
        assert f"gpu_turnstile_view_requests_total{{{labels}}} 1.0" in text


def test_a_pods_page_leads_to_the_dashboard_of_the_operator(shown: Shown) -> None:
    link = Dashboard("https://grafana.example/d/x?pod={pod}&node={node}")
    app = create_app(shown, Feed(1), hosts=Hosts(), metrics=Metrics(), dashboard=link)
    shown.fill(*cluster())
    page = app.test_client().get("/pods/vision/train-resnet-0").text
    assert 'href="https://grafana.example/d/x?pod=train-resnet-0&amp;node=a100-1"' in page

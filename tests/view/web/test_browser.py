"""The page in Chromium: equal to the model, live, safe from what pods say, and for keyboards."""

import contextlib
import http.client
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from contract.inventory import NodeCard, NodeCards, encode_inventory
from simulator.api.server import ApiServer
from simulator.api.server import Settings as ApiSettings
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import BLOCK, NAMES, Json, bare_node, make_pod, record
from tests.view.conftest import populate
from tests.view.gate import gate_to
from tests.view.web.browsing import Page, chromium, console, look, serving
from tests.view.web.sample import cluster, gpu_node
from view.model.state import ClusterState

pytestmark = pytest.mark.slow

EVIL = """<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>"""
PREFIX = "/api/v1/namespaces/gpu-turnstile/services/gpu-turnstile-view:http/proxy/"

ROWS = """
return [...document.querySelectorAll("#nodes > li")].map((row) => ({
  name: row.dataset.node,
  cards: [...row.querySelectorAll(".card")].map((card) => ({
    bars: [...card.querySelectorAll("svg.bar")].map((bar) => bar.getAttribute("aria-label")),
    holders: [...card.querySelectorAll(".holder a")].map((each) => each.textContent),
  })),
}));
"""


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with ApiServer(ApiSettings(bookmark_s=0.2)) as running:
        evil = NodeCards(BLOCK, (NodeCard("GPU-evil", 0, EVIL, 32 * BLOCK, None, EVIL, 100, 32),))
        pod = make_pod("evil", (10, 1), annotations={NAMES.use_gpu_type: EVIL})
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": EVIL, "message": EVIL}
        ]
        populate(running, [*cluster(), bare_node("evil", encode_inventory(evil)), pod])
        yield running


@pytest.fixture(scope="module")
def page(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with serving(api.url, tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    with contextlib.ExitStack() as stack:
        try:
            driver = stack.enter_context(chromium())
        except LookupError as error:
            pytest.skip(str(error))
        look(driver, width=1200, height=900)
        yield driver


@pytest.fixture
def driver(browser: WebDriver) -> Iterator[WebDriver]:
    console(browser)
    yield browser
    # Whatever the policy refuses, and every error of the script, is said there.
    assert console(browser) == []


def ask(driver: WebDriver, script: str) -> Any:
    return driver.execute_script(script)


def show(driver: WebDriver, url: str) -> None:
    driver.get(url)
    is_live = "return document.getElementById('live').textContent === 'Live'"
    eventually(lambda: ask(driver, is_live), "the page is live")


def seen(api: ApiServer) -> ClusterState:
    """The model of what the API server has."""
    state = ClusterState(NAMES)
    with ApiClient(api.url) as admin:
        for put, path in ((state.put_node, "nodes"), (state.put_pod, "pods")):
            for each in admin.list(f"/api/v1/{path}")["items"]:
                put(each)
    return state


def modelled(api: ApiServer) -> list[Json]:
    return [
        {
            "name": node.name,
            "cards": [
                {
                    "bars": [
                        f"{card.cores_held} of {card.cores} cores held",
                        f"{_gib(card.blocks_held)} of {_gib(card.blocks)} memory held",
                    ],
                    "holders": [f"{each.namespace}/{each.pod}" for each in card.holders],
                }
                for card in node.cards
            ],
        }
        for node in seen(api).report().nodes
    ]


def _gib(blocks: int) -> str:
    return f"{blocks / 4:g} GiB" if blocks else "0"


def test_it_shows_what_the_model_has_and_goes_on_doing_so(
    api: ApiServer, page: Page, driver: WebDriver
) -> None:
    show(driver, page.url)
    assert ask(driver, ROWS) == modelled(api)
    ask(driver, "document.getElementById('n-a100-2').kept = window.kept = true")
    ask(driver, "document.querySelector('#n-l40s-1 a').focus()")
    pod = make_pod(
        "fresh", (10, 4), node="l40s-1", annotations=record(c0=(["GPU-l40s-1-0"], 10, 4)), uid=""
    )
    api.apply(pod, gpu_node("b200-1", "NVIDIA B200", 1))
    with ApiClient(api.url) as admin:
        admin.delete("/api/v1/nodes/l40s-2")
    eventually(lambda: ask(driver, ROWS) == modelled(api), "the page follows")
    # Neither the page was loaded again, nor a row that has not changed, nor was the focus lost.
    assert ask(driver, "return window.kept && document.getElementById('n-a100-2').kept")
    assert ask(driver, "return document.activeElement.closest('li').id") == "n-l40s-1"


def test_a_choice_is_kept_in_the_address_and_needs_no_new_page(
    page: Page, driver: WebDriver
) -> None:
    show(driver, page.url)
    ask(driver, "window.kept = true")
    driver.find_element("css selector", "select[name=namespace]").send_keys("llm")
    names = "return [...document.querySelectorAll('#nodes > li')].map((row) => row.dataset.node)"
    eventually(lambda: ask(driver, names) == ["a100-1", "a100-2"], "two nodes are left")
    assert driver.current_url == f"{page.url}?namespace=llm"
    assert ask(driver, "return window.kept")
    driver.find_element("link text", "llm/finetune-70b").click()
    eventually(lambda: "llm/finetune-70b" in driver.title, "the pod's page")
    text = driver.find_element("tag name", "main").text
    assert "card 2: 100 cores, 320 blocks (80 GiB)" in text


def test_what_pods_say_stays_text_also_when_it_comes_later(
    api: ApiServer, page: Page, driver: WebDriver
) -> None:
    for url in (page.url, f"{page.url}pods/default/evil"):
        show(driver, url)
        assert EVIL in ask(driver, "return document.querySelector('main').textContent")
    show(driver, page.url)
    ask(driver, "document.querySelector('#n-evil').remove()")
    evil = NodeCards(BLOCK, (NodeCard("GPU-e", 0, f"{EVIL}2", BLOCK, None, f"{EVIL}3", 100, 1),))
    api.apply(bare_node("evil", encode_inventory(evil)))
    text = "return (document.querySelector('#n-evil') || {}).textContent || ''"
    eventually(lambda: f"{EVIL}3" in ask(driver, text), "it comes as a change")
    assert ask(driver, "return [window.pwned || 0, document.images.length]") == [0, 0]
    refused = "try { document.body.innerHTML = '<b>'; return 0 } catch (e) { return e.name }"
    assert ask(driver, refused) == "TypeError"
    said = console(driver)
    assert len(said) == 1
    assert "TrustedHTML" in said[0]


def test_it_can_be_used_by_keyboard_in_light_and_dark(page: Page, driver: WebDriver) -> None:
    backgrounds = set()
    for dark in (False, True):
        look(driver, width=1200, height=900, dark=dark)
        show(driver, page.url)
        backgrounds.add(ask(driver, "return getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2
    look(driver, width=1200, height=900)
    focus = """
        const it = document.activeElement, style = getComputedStyle(it);
        const box = it.getBoundingClientRect();
        const visible = style.outlineStyle !== "none" && box.left >= 0 && box.width > 0;
        return [it.name || it.textContent.trim(), visible];
    """
    ActionChains(driver).send_keys(Keys.TAB).perform()
    assert ask(driver, focus) == ["Skip to content", True]
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    eventually(lambda: ask(driver, "return document.activeElement.id") == "main", "skipped")
    ActionChains(driver).send_keys(Keys.TAB).perform()
    assert ask(driver, focus) == ["namespace", True]
    unnamed = """
        return [...document.querySelectorAll("a, button, select, input, summary, [role]")]
          .filter((it) => !(it.textContent.trim() || it.getAttribute("aria-label") ||
                            it.labels?.length || it.getAttribute("aria-labelledby")))
          .map((it) => it.outerHTML);
    """
    assert ask(driver, unnamed) == []


@pytest.mark.parametrize("who", ["the API server", "the page's server"])
def test_it_says_that_it_is_stale_and_its_age_goes_on_counting(
    api: ApiServer, tmp_path: Path, driver: WebDriver, who: str
) -> None:
    state = "const it = document.getElementById('live'); return [it.dataset.state, it.textContent]"
    age = "return Number(/, ([0-9]+) s ago/.exec(document.getElementById('age').textContent)[1])"
    with gate_to(api.url) as gate, serving(gate.url, tmp_path) as own:
        show(driver, own.url)
        if who == "the API server":
            gate.freeze()
            said = "Stale: the API server is not heard (no answer in time)"
        else:
            os.killpg(own.process.pid, signal.SIGSTOP)
            said = "Stale: the page's server is not heard"
        eventually(lambda: ask(driver, state) == ["stale", said], "it is said to be stale")
        red = "return getComputedStyle(document.getElementById('live')).color"
        assert ask(driver, red) == "rgb(164, 22, 26)"
        seconds = ask(driver, age)
        assert seconds >= 10
        eventually(lambda: ask(driver, age) >= seconds + 2, "the age goes on")
        gate.thaw()
        os.killpg(own.process.pid, signal.SIGCONT)
        eventually(lambda: ask(driver, state) == ["on", "Live"], "it is live again")
        driver.get("about:blank")


@pytest.mark.parametrize("width", [420, 1400])
def test_cards_fill_their_row_and_names_are_not_cut(
    page: Page, driver: WebDriver, width: int
) -> None:
    look(driver, width=width, height=4000)
    show(driver, page.url)
    cut = """
        return [...document.querySelectorAll(".holder a")]
          .filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.textContent);
    """
    narrow = """
        const right = (it) => it.getBoundingClientRect().right;
        return [...document.querySelectorAll(".cards")]
          .filter((row) => Math.max(...[...row.children].map(right)) < right(row) - 1).length;
    """
    assert ask(driver, cut) == []
    assert ask(driver, narrow) == 0


class _Prefixed(BaseHTTPRequestHandler):
    """What ``kubectl proxy`` does with a Service: a prefix is taken off, answers are handed on."""

    port = 0

    def do_GET(self) -> None:
        if not self.path.startswith(PREFIX):
            self.send_error(404)
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            headers = {"Accept-Encoding": self.headers.get("Accept-Encoding", "")}
            connection.request("GET", "/" + self.path.removeprefix(PREFIX), headers=headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for key, value in answer.getheaders():
                if key.lower() not in {"connection", "transfer-encoding", "date", "server"}:
                    self.send_header(key, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                while part := answer.read1(65536):
                    self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


def test_it_works_below_a_prefix_as_behind_kubectl_proxy(
    api: ApiServer, page: Page, driver: WebDriver
) -> None:
    handler = type("Handler", (_Prefixed,), {"port": page.port})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://localhost:{server.server_port}{PREFIX}"
        show(driver, url)
        assert ask(driver, ROWS) == modelled(api)
        api.apply(gpu_node("h100-1", "NVIDIA H100", 1))
        eventually(lambda: ask(driver, ROWS) == modelled(api), "the page follows")
        driver.find_element("link text", "llm/pretrain-13b").click()
        eventually(lambda: "llm/pretrain-13b" in driver.title, "the pod's page")
        assert driver.current_url == f"{url}pods/llm/pretrain-13b"
        show(driver, driver.current_url)
        driver.find_element("link text", "All nodes").click()
        eventually(lambda: driver.current_url == url, "the way back")
    finally:
        driver.get("about:blank")
        server.shutdown()
        server.server_close()


def test_the_pictures_of_the_documents_are_small() -> None:
    for each in sorted((Path(__file__).parents[3] / "docs" / "images").glob("p*.png")):
        assert each.stat().st_size < 150 * 1024, each.name

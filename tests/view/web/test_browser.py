"""The page in Chromium: equal to the model, live, safe from what pods say, and for keyboards."""

import contextlib
import http.client
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

from contract.inventory import Amounts, Card, PublishedInventory, encode_inventory
from simulator.api.faults import SILENCE
from simulator.api.server import ApiServer
from simulator.api.server import Settings as ApiSettings
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import BLOCK, NAMES, Json, bare_node, make_pod, record
from tests.view.conftest import populate
from tests.view.web import axe
from tests.view.web.browsing import DEADLINE, Page, chromium, console, look, serving
from tests.view.web.sample import cluster, gpu_node, held_pod
from view.model.state import ClusterState

pytestmark = pytest.mark.slow

EVIL = """<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>"""
PREFIX = "/api/v1/namespaces/gpu-turnstile/services/gpu-turnstile-view:http/proxy/"

ROWS = """
return [...document.querySelectorAll("#nodes > li")].map((row) => ({
  name: row.dataset.key,
  cards: [...row.querySelectorAll(".card")].map((card) => ({
    bars: [...card.querySelectorAll("svg.bar")].map((bar) => bar.getAttribute("aria-label")),
    holders: [...card.querySelectorAll(".holder a")].map((each) => each.textContent),
  })),
}));
"""


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with ApiServer(ApiSettings(bookmark_s=0.2)) as running:
        evil = PublishedInventory(
            BLOCK,
            (Card("GPU-evil", 0, EVIL, 32 * BLOCK, None, EVIL),),
            free=(Amounts(100, 32),),
        )
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
    names = "return [...document.querySelectorAll('#nodes > li')].map((row) => row.dataset.key)"
    eventually(lambda: ask(driver, names) == ["a100-1", "a100-2"], "two nodes are left")
    assert driver.current_url == f"{page.url}?namespace=llm"
    assert ask(driver, "return window.kept")
    driver.find_element("link text", "llm/finetune-70b").click()
    eventually(lambda: "llm/finetune-70b" in driver.title, "the pod's page")
    text = driver.find_element("tag name", "main").text
    assert "card 2: 100 cores, 320 blocks (80 GiB)" in text


def test_texts_of_pods_are_never_markup_in_updates(
    api: ApiServer, page: Page, driver: WebDriver
) -> None:
    for url in (page.url, f"{page.url}pods/default/evil"):
        show(driver, url)
        assert EVIL in ask(driver, "return document.querySelector('main').textContent")
    show(driver, page.url)
    ask(driver, "document.querySelector('#n-evil').remove()")
    evil = PublishedInventory(
        BLOCK,
        (Card("GPU-e", 0, f"{EVIL}2", BLOCK, None, f"{EVIL}3"),),
        free=(Amounts(100, 1),),
    )
    api.apply(bare_node("evil", encode_inventory(evil)))
    text = "return (document.querySelector('#n-evil') || {}).textContent || ''"
    eventually(lambda: f"{EVIL}3" in ask(driver, text), "it comes as a change")
    assert ask(driver, "return [window.pwned || 0, document.images.length]") == [0, 0]
    refused = "try { document.body.innerHTML = '<b>'; return 0 } catch (e) { return e.name }"
    assert ask(driver, refused) == "TypeError"
    texts = console(driver)
    assert len(texts) == 1
    assert "TrustedHTML" in texts[0]


def test_it_can_be_used_by_keyboard(page: Page, driver: WebDriver) -> None:
    show(driver, page.url)
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
    assert ask(driver, focus)[1]
    assert ask(driver, "return document.activeElement.closest('section').ariaLabel") == "Problems"
    ActionChains(driver).send_keys("/").perform()
    assert ask(driver, focus) == ["search", True]


def test_the_map_is_one_stop_of_the_keyboard_and_arrows_go_from_node_to_node(
    page: Page, driver: WebDriver
) -> None:
    show(driver, f"{page.url}?group=model")
    stops = "return document.querySelectorAll('#map a[tabindex=\"0\"]').length"
    at = "return document.activeElement.closest('li').dataset.key"
    ask(driver, "document.querySelector('#map a').focus()")
    keys = ask(driver, "return document.querySelector('#map').dataset.order").split()
    first = ask(driver, at)
    texts = []
    for key in (Keys.ARROW_RIGHT, Keys.END, Keys.ARROW_UP, Keys.HOME):
        ActionChains(driver).send_keys(key).perform()
        texts.append(ask(driver, at))
        assert ask(driver, stops) == 1
    # By model: those of one stand below those of another.
    nodes = [each for each in keys if not each.startswith("=")]
    assert [first, texts[0]] == nodes[:2]
    assert texts[1] == nodes[-1]
    assert texts[1].split("/")[0] > texts[2].split("/")[0]
    assert texts[3] == first
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    node = first.split("/")[1]
    eventually(lambda: f"node={node}" in driver.current_url, "the node's page")


def test_what_is_searched_and_new_namespaces_are_there_without_a_new_page(
    api: ApiServer, page: Page, driver: WebDriver
) -> None:
    show(driver, page.url)
    ask(driver, "window.kept = true")
    ActionChains(driver).send_keys("/").send_keys("NOTEBOOK-ben").send_keys(Keys.ENTER).perform()
    names = "return [...document.querySelectorAll('#nodes > li')].map((row) => row.dataset.key)"
    eventually(lambda: ask(driver, names) == ["a100-2"], "one node is left")
    total = driver.find_element("css selector", ".totals dd").text
    assert total.startswith("1 of ")
    driver.find_element("link text", "Show all")
    api.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "brand-new"}},
        held_pod("brand-new", "notebook-benno", ("a100-2", 2, 5, 4)),
    )
    options = "return [...document.querySelector('#namespaces').options].map((each) => each.value)"
    eventually(lambda: "brand-new" in ask(driver, options), "the new namespace")
    eventually(lambda: total_of(driver).startswith("2 of "), "its card is counted")
    assert ask(driver, "return window.kept")
    assert driver.current_url == f"{page.url}?search=NOTEBOOK-ben"


def total_of(driver: WebDriver) -> str:
    return str(ask(driver, "return document.querySelector('.totals dd').textContent"))


def test_nodes_keep_the_chosen_order_while_they_change(
    api: ApiServer, page: Page, driver: WebDriver
) -> None:
    show(driver, f"{page.url}?sort=free&search=order-")
    api.apply(_unborn("order-1", 2), _unborn("order-2", 3))
    names = "return [...document.querySelectorAll('#nodes > li')].map((row) => row.dataset.key)"
    eventually(lambda: ask(driver, names) == ["order-2", "order-1"], "the most free first")
    ask(driver, "document.querySelector('#n-order-2').kept = true")
    api.apply(_unborn("order-1", 4))
    eventually(lambda: ask(driver, names) == ["order-1", "order-2"], "the order has changed")
    assert ask(driver, "return document.querySelector('#n-order-2').kept")
    with ApiClient(api.url) as admin:
        for name in ("order-1", "order-2"):
            admin.delete(f"/api/v1/nodes/{name}")
    eventually(lambda: ask(driver, names) == [], "they have gone")


def _unborn(name: str, cards: int) -> Json:
    node = gpu_node(name, cards=cards)
    del node["metadata"]["uid"]  # as somebody else's who changes it later
    return node


def test_colours_can_be_chosen_and_stay(page: Page, driver: WebDriver) -> None:
    back = "return getComputedStyle(document.body).backgroundColor"
    look(driver, width=1200, height=900, dark=True)
    show(driver, page.url)
    of_the_system = ask(driver, back)
    look(driver, width=1200, height=900)
    show(driver, page.url)
    light = ask(driver, back)
    Select(driver.find_element("id", "theme")).select_by_visible_text("dark")
    dark = ask(driver, back)
    show(driver, f"{page.url}pods/llm/finetune-70b")
    assert ask(driver, back) == dark == of_the_system != light
    Select(driver.find_element("id", "theme")).select_by_visible_text("system colors")
    assert ask(driver, back) == light


def _shows(button: WebElement, text: str) -> bool:
    return button.text == text


def test_names_and_uuids_can_be_copied(page: Page, driver: WebDriver) -> None:
    driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": page.url},
    )
    show(driver, f"{page.url}pods/vision/train-resnet-0")
    buttons = driver.find_elements("css selector", "button.copy")
    copied = []
    for each in buttons:
        text = each.text
        each.click()
        eventually(partial(_shows, each, "Copied"), "it is copied")
        copied.append(
            (
                text,
                driver.execute_async_script(
                    "navigator.clipboard.readText().then(arguments[0], arguments[0])"
                ),
            )
        )
    assert copied == [
        ("Copy name", "vision/train-resnet-0"),
        ("Copy kubectl command", "kubectl gpu explain -n vision train-resnet-0"),
        ("Copy UUID", "GPU-a100-1-0"),
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_that_keeps_people_from_using_a_page(
    page: Page, driver: WebDriver, *, dark: bool
) -> None:
    """WCAG 2.2, levels A and AA, at the width of a telephone and of a desk."""
    try:
        axe.script()
    except LookupError as error:
        pytest.skip(str(error))
    driver.set_script_timeout(DEADLINE)
    found = {}
    for width, path in itertools.product((360, 1440), PAGES):
        look(driver, width=width, height=5000, dark=dark)  # rows out of sight are not looked at
        show(driver, page.url + path)
        found[width, path] = axe.violations(driver)
    look(driver, width=1200, height=900)
    assert {key: each for key, each in found.items() if each} == {}


PAGES = (
    "",
    "?namespace=llm&show=room&paint=use&group=model&sort=held",
    "?search=no-such",
    "pods/llm/pretrain-13b",
    "pods/vision/train-resnet-0",
    "pods/vision/augment-xl",
    "use?by=pod",
)


@pytest.mark.parametrize("who", ["the API server", "the page's server"])
def test_it_shows_that_it_is_stale_and_its_age_counts_on(
    api: ApiServer, tmp_path: Path, driver: WebDriver, who: str
) -> None:
    state = "const it = document.getElementById('live'); return [it.dataset.state, it.textContent]"
    age = "return Number(/\\(([0-9]+)s ago/.exec(document.getElementById('age').textContent)[1])"
    with serving(api.url, tmp_path) as own:
        show(driver, own.url)
        if who == "the API server":
            api.fail(SILENCE)
            text = "Stale: the API server is unreachable (no response in time)"
        else:
            os.killpg(own.process.pid, signal.SIGSTOP)
            text = "Stale: no connection to the server of the page"
        eventually(lambda: ask(driver, state) == ["stale", text], "it is said to be stale")
        red = "return getComputedStyle(document.getElementById('live')).color"
        assert ask(driver, red) == "rgb(164, 22, 26)"
        seconds = ask(driver, age)
        assert seconds >= 10
        eventually(lambda: ask(driver, age) >= seconds + 2, "the age goes on")
        api.restore()
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
            response = connection.getresponse()
            self.send_response(response.status)
            for key, value in response.getheaders():
                if key.lower() not in {"connection", "transfer-encoding", "date", "server"}:
                    self.send_header(key, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                while part := response.read1(65536):
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
        driver.find_element("link text", "Cards").click()
        eventually(lambda: driver.current_url == url, "the way back")
    finally:
        driver.get("about:blank")
        server.shutdown()
        server.server_close()

"""The page in Chromium: follows the model, shows no markup of pods, can be used by keyboard."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from contract.inventory import Card
from simulator.api.faults import SILENCE
from simulator.api.server import ApiServer
from simulator.api.server import Settings as ApiSettings
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import BLOCK, NAMES, Json, make_pod, record
from tests.view import scenes
from tests.view.conftest import populate
from tests.view.model.test_state import state_of
from tests.view.web import axe
from tests.view.web.browsing import DEADLINE, chromium, console, open_page, resize
from tests.view.web.in_process import PageInProcess, PageSocket, browsable, page_in_process
from tests.view.web.sample import cluster, gpu_node, held_pod

pytestmark = pytest.mark.slow

EVIL = """<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>"""
PREFIX = "/api/v1/namespaces/gpu-turnstile/services/gpu-turnstile-view:http/proxy/"

ROWS = """
return [...document.querySelectorAll("#nodes > li")].map((row) => [
  row.dataset.key,
  ...[...row.querySelectorAll(".card")].map((card) => [
    ...[...card.querySelectorAll("svg.bar")].map((bar) => bar.getAttribute("aria-label")),
    ...[...card.querySelectorAll(".holder a")].map((each) => each.textContent),
  ]),
]);
"""


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with ApiServer(ApiSettings(bookmark_s=0.2)) as running:
        pod = make_pod("evil", (10, 1), annotations={NAMES.use_gpu_type: EVIL})
        pod["status"]["conditions"] = [scenes.unschedulable(EVIL, EVIL)]
        node = scenes.node_with("evil", Card("GPU-evil", 0, EVIL, 32 * BLOCK, None, EVIL))
        populate(running, [*cluster(), node, pod])
        yield running


@pytest.fixture(scope="module")
def running(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageInProcess]:
    with page_in_process(api.url, tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture(scope="module")
def page(running: PageInProcess) -> Iterator[PageSocket]:
    with browsable(running) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    with contextlib.ExitStack() as stack:
        try:
            driver = stack.enter_context(chromium())
        except LookupError as error:
            pytest.skip(str(error))
        yield driver


@pytest.fixture
def driver(browser: WebDriver) -> Iterator[WebDriver]:
    console(browser)
    resize(browser, width=1200, height=900)
    yield browser
    # The browser reports there what the policy refuses, and every error of the script.
    assert console(browser) == []


NAMES_OF_ROWS = "return [...document.querySelectorAll('#nodes > li')].map((it) => it.dataset.key)"
STATUS = "const it = document.getElementById('live'); return [it.dataset.state, it.textContent]"
AGE = "return Number(/\\(([0-9]+)s ago/.exec(document.getElementById('age').textContent)[1])"


def run(driver: WebDriver, script: str) -> Any:
    """Run JavaScript; return what it returns."""
    return driver.execute_script(script)


def rows_of_model(api: ApiServer) -> list[list[Any]]:
    """The rows of a model of what the API server has."""
    with ApiClient(api.url) as admin:
        nodes, pods = (admin.list(f"/api/v1/{each}")["items"] for each in ("nodes", "pods"))
    return [
        [
            node.name,
            *(
                [
                    f"{card.cores_held} of {card.cores} cores held",
                    f"{_gib(card.blocks_held)} of {_gib(card.blocks)} memory held",
                    *(f"{each.namespace}/{each.pod}" for each in card.holders),
                ]
                for card in node.cards
            ),
        ]
        for node in state_of(nodes, pods).report().nodes
    ]


def _gib(blocks: int) -> str:
    return f"{blocks / 4:g} GiB" if blocks else "0"


def test_a_page_shows_the_model_and_follows_its_changes(
    api: ApiServer, page: PageSocket, driver: WebDriver
) -> None:
    open_page(driver, page.url)
    assert run(driver, ROWS) == rows_of_model(api)
    run(driver, "document.getElementById('n-a100-2').kept = window.kept = true")
    run(driver, "document.querySelector('#n-l40s-1 a').focus()")
    pod = make_pod(
        "fresh", (10, 4), node="l40s-1", annotations=record(c0=(["GPU-l40s-1-0"], 10, 4)), uid=""
    )
    api.apply(pod, gpu_node("b200-1", "NVIDIA B200", 1))
    with ApiClient(api.url) as admin:
        admin.delete("/api/v1/nodes/l40s-2")
    eventually(lambda: run(driver, ROWS) == rows_of_model(api), "the page follows")
    # Neither the page was loaded again, nor a row that has not changed, nor was the focus lost.
    assert run(driver, "return window.kept && document.getElementById('n-a100-2').kept")
    assert run(driver, "return document.activeElement.closest('li').id") == "n-l40s-1"


def test_texts_of_pods_are_never_markup_in_updates(
    api: ApiServer, page: PageSocket, driver: WebDriver
) -> None:
    for url in (page.url, f"{page.url}pods/default/evil"):
        open_page(driver, url)
        assert EVIL in run(driver, "return document.querySelector('main').textContent")
    open_page(driver, page.url)
    run(driver, "document.querySelector('#n-evil').remove()")
    card = Card("GPU-e", 0, f"{EVIL}2", 32 * BLOCK, None, f"{EVIL}3")
    api.apply(scenes.node_with("evil", card))
    text = "return (document.querySelector('#n-evil') || {}).textContent || ''"
    eventually(lambda: f"{EVIL}3" in run(driver, text), "it comes as a change")
    assert run(driver, "return [window.pwned || 0, document.images.length]") == [0, 0]
    refused = "try { document.body.innerHTML = '<b>'; return 0 } catch (e) { return e.name }"
    assert run(driver, refused) == "TypeError"
    texts = console(driver)
    assert len(texts) == 1
    assert "TrustedHTML" in texts[0]


def test_a_page_can_be_used_by_keyboard(page: PageSocket, driver: WebDriver) -> None:
    open_page(driver, page.url)
    focus = """
        const it = document.activeElement, style = getComputedStyle(it);
        const box = it.getBoundingClientRect();
        const visible = style.outlineStyle !== "none" && box.left >= 0 && box.width > 0;
        return [it.name || it.textContent.trim(), visible];
    """
    ActionChains(driver).send_keys(Keys.TAB).perform()
    assert run(driver, focus) == ["Skip to content", True]
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    eventually(lambda: run(driver, "return document.activeElement.id") == "main", "skipped")
    ActionChains(driver).send_keys(Keys.TAB).perform()
    assert run(driver, focus)[1]
    assert run(driver, "return document.activeElement.closest('section').ariaLabel") == "Problems"
    ActionChains(driver).send_keys("/").perform()
    assert run(driver, focus) == ["search", True]


def test_the_map_is_one_stop_of_the_keyboard_and_arrows_go_from_node_to_node(
    page: PageSocket, driver: WebDriver
) -> None:
    open_page(driver, f"{page.url}?group=model")
    stops = "return document.querySelectorAll('#map a[tabindex=\"0\"]').length"
    at = "return document.activeElement.closest('li').dataset.key"
    run(driver, "document.querySelector('#map a').focus()")
    keys = run(driver, "return document.querySelector('#map').dataset.order").split()
    first = run(driver, at)
    texts = []
    for key in (Keys.ARROW_RIGHT, Keys.END, Keys.ARROW_UP, Keys.HOME):
        ActionChains(driver).send_keys(key).perform()
        texts.append(run(driver, at))
        assert run(driver, stops) == 1
    # By model: those of one stand below those of another.
    nodes = [each for each in keys if not each.startswith("=")]
    assert [first, texts[0]] == nodes[:2]
    assert texts[1] == nodes[-1]
    assert texts[1].split("/")[0] > texts[2].split("/")[0]
    assert texts[3] == first
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    node = first.split("/")[1]
    eventually(lambda: f"node={node}" in driver.current_url, "the node's page")


def test_choices_are_kept_in_the_address_and_need_no_new_page(
    api: ApiServer, page: PageSocket, driver: WebDriver
) -> None:
    open_page(driver, page.url)
    run(driver, "window.kept = true")
    Select(driver.find_element("id", "namespaces")).select_by_visible_text("llm")
    eventually(lambda: run(driver, NAMES_OF_ROWS) == ["a100-1", "a100-2"], "two nodes are shown")
    assert driver.current_url == f"{page.url}?namespace=llm"
    Select(driver.find_element("id", "namespaces")).select_by_index(0)
    eventually(lambda: driver.current_url == page.url, "nothing is chosen")
    search = driver.find_element("css selector", "input[type=search]")
    search.send_keys("NOTEBOOK-ben", Keys.ENTER)
    eventually(lambda: run(driver, NAMES_OF_ROWS) == ["a100-2"], "one node is shown")
    assert total_of(driver).startswith("1 of ")
    driver.find_element("link text", "Show all")
    api.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "brand-new"}},
        held_pod("brand-new", "notebook-benno", ("a100-2", 2, 5, 4)),
    )
    options = "return [...document.querySelector('#namespaces').options].map((each) => each.value)"
    eventually(lambda: "brand-new" in run(driver, options), "the new namespace can be chosen")
    eventually(lambda: total_of(driver).startswith("2 of "), "its card is counted")
    assert run(driver, "return window.kept")
    assert driver.current_url == f"{page.url}?search=NOTEBOOK-ben"


def total_of(driver: WebDriver) -> str:
    return str(run(driver, "return document.querySelector('.totals dd').textContent"))


def test_nodes_keep_the_chosen_order_while_they_change(
    api: ApiServer, page: PageSocket, driver: WebDriver
) -> None:
    open_page(driver, f"{page.url}?sort=free&search=order-")
    api.apply(_unborn("order-1", 2), _unborn("order-2", 3))
    eventually(lambda: run(driver, NAMES_OF_ROWS) == ["order-2", "order-1"], "the most free first")
    run(driver, "document.querySelector('#n-order-2').kept = true")
    api.apply(_unborn("order-1", 4))
    eventually(lambda: run(driver, NAMES_OF_ROWS) == ["order-1", "order-2"], "the order changes")
    assert run(driver, "return document.querySelector('#n-order-2').kept")
    with ApiClient(api.url) as admin:
        for name in ("order-1", "order-2"):
            admin.delete(f"/api/v1/nodes/{name}")
    eventually(lambda: run(driver, NAMES_OF_ROWS) == [], "the deleted nodes are not shown")


def _unborn(name: str, cards: int) -> Json:
    node = gpu_node(name, cards=cards)
    del node["metadata"]["uid"]  # the API server keeps that of the first one
    return node


def test_a_chosen_color_scheme_is_kept(page: PageSocket, driver: WebDriver) -> None:
    back = "return getComputedStyle(document.body).backgroundColor"
    resize(driver, width=1200, height=900, dark=True)
    open_page(driver, page.url)
    of_the_system = run(driver, back)
    resize(driver, width=1200, height=900)
    open_page(driver, page.url)
    light = run(driver, back)
    Select(driver.find_element("id", "theme")).select_by_visible_text("dark")
    dark = run(driver, back)
    open_page(driver, f"{page.url}pods/llm/finetune-70b")
    assert run(driver, back) == dark == of_the_system != light
    Select(driver.find_element("id", "theme")).select_by_visible_text("system colors")
    assert run(driver, back) == light


def test_names_and_uuids_can_be_copied(page: PageSocket, driver: WebDriver) -> None:
    driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": page.url},
    )
    open_page(driver, f"{page.url}pods/vision/train-resnet-0")
    copied = {}
    for each in driver.find_elements("css selector", "button.copy"):
        text = each.text
        each.click()
        eventually(lambda: each.text == "Copied", "it is copied")  # noqa: B023 -- at once
        read = "navigator.clipboard.readText().then(arguments[0], arguments[0])"
        copied[text] = driver.execute_async_script(read)
    assert copied == {
        "Copy name": "vision/train-resnet-0",
        "Copy kubectl command": "kubectl gpu explain -n vision train-resnet-0",
        "Copy UUID": "GPU-a100-1-0",
    }


@pytest.mark.parametrize("width", [360, 1440], ids=["telephone", "desk"])
def test_axe_finds_no_violation_of_wcag(page: PageSocket, driver: WebDriver, width: int) -> None:
    """WCAG 2.2, levels A and AA. Between light and dark only colors differ."""
    try:
        axe.script()
    except LookupError as error:
        pytest.skip(str(error))
    driver.set_script_timeout(DEADLINE)
    found = {}
    for path in PAGES:
        resize(driver, width=width, height=5000)  # rows out of sight would not be checked
        open_page(driver, page.url + path)
        found[path] = axe.violations(driver)
        resize(driver, width=width, height=5000, dark=True)
        found[f"{path} dark"] = axe.violations(driver, only="color-contrast")
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


def test_a_page_shows_that_the_api_server_is_unreachable(
    api: ApiServer, running: PageInProcess, page: PageSocket, driver: WebDriver
) -> None:
    open_page(driver, page.url)
    try:
        api.fail(SILENCE)
        running.time.now += 60
        why = "Stale: the API server is unreachable (no response in time)"
        eventually(lambda: run(driver, STATUS) == ["stale", why], "the page is stale")
        eventually(lambda: run(driver, AGE) >= 60, "the page shows its age")
        color = "return getComputedStyle(document.getElementById('live')).color"
        assert run(driver, color) == "rgb(164, 22, 26)"
    finally:
        api.restore()
    eventually(lambda: run(driver, STATUS) == ["on", "Live"], "the page is live again")


def test_a_page_without_connection_becomes_stale_and_its_age_increases(
    page: PageSocket, driver: WebDriver
) -> None:
    open_page(driver, page.url)
    clock = """
        const real = performance.now.bind(performance);
        window.skipped = 0;
        performance.now = () => real() + window.skipped;
    """
    run(driver, clock)
    page.responds.clear()

    def is_stale_later() -> bool:
        run(driver, "window.skipped += 16000")  # data that was on its way restarts the 15 s
        why = "Stale: no connection to the server of the page"
        return bool(run(driver, STATUS) == ["stale", why])

    try:
        eventually(is_stale_later, "the page is stale")
        age = run(driver, AGE)
        assert age > 15
        run(driver, "window.skipped += 2000")
        eventually(lambda: run(driver, AGE) >= age + 2, "the age increases")
    finally:
        page.responds.set()
    eventually(lambda: run(driver, STATUS) == ["on", "Live"], "the page is live again")


@pytest.mark.parametrize("width", [420, 1400])
def test_cards_fill_their_row_and_names_are_not_cut(
    page: PageSocket, driver: WebDriver, width: int
) -> None:
    resize(driver, width=width, height=4000)
    open_page(driver, page.url)
    cut = """
        return [...document.querySelectorAll(".holder a")]
          .filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.textContent);
    """
    narrow = """
        const right = (it) => it.getBoundingClientRect().right;
        return [...document.querySelectorAll(".cards")]
          .filter((row) => Math.max(...[...row.children].map(right)) < right(row) - 1).length;
    """
    assert run(driver, cut) == []
    assert run(driver, narrow) == 0


def test_a_page_works_below_a_prefix_as_behind_kubectl_proxy(
    api: ApiServer, running: PageInProcess, driver: WebDriver
) -> None:
    with browsable(running, PREFIX) as proxy:
        open_page(driver, proxy.url)
        assert run(driver, ROWS) == rows_of_model(api)
        api.apply(gpu_node("h100-1", "NVIDIA H100", 1))
        eventually(lambda: run(driver, ROWS) == rows_of_model(api), "the page follows")
        driver.find_element("link text", "llm/pretrain-13b").click()
        eventually(lambda: "llm/pretrain-13b" in driver.title, "the pod's page")
        assert driver.current_url == f"{proxy.url}pods/llm/pretrain-13b"
        open_page(driver, driver.current_url)
        driver.find_element("link text", "Cards").click()
        eventually(lambda: driver.current_url == proxy.url, "the first page again")
        driver.get("about:blank")

"""Usage beside held amounts, and the page and table of usage."""

from tests.view.web.conftest import Shown
from tests.view.web.sample import cluster
from tests.view.web.test_app import text_of
from view.model.usage import CardUsage, ContainerUsage, NodeUsage
from view.model.usage_history import History, PastUsage


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

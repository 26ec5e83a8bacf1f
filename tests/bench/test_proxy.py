"""The proxy in a tiny configuration: real processes, the same calls by both ways."""

from bench import proxy


def test_a_plugin_is_called_directly_and_through_the_proxy() -> None:
    calls, process, renewed = proxy.run(containers=2, idle_seconds=0.1, kubelets=1).tables
    assert [row[1] for row in calls.rows] == ["direct", "proxy"] * 3
    assert [row[-1] for row in calls.rows if row[1] == "direct"] == [1.0] * 3
    assert all(float(each) > 0 for row in calls.rows for each in row[2:])
    assert float(process.rows[0][1]) > 10  # MiB
    assert float(renewed.rows[0][1]) > 0

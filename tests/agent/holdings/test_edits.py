from agent.holdings.edits import ContainerEdits, Mount

ONE = ContainerEdits({"A": "1"}, ("/dev/a", "/dev/b"), (Mount("/x", "/h/x"),), ("v/c=1",))


def test_two_merged_container_edits_keep_all_entries_in_order() -> None:
    two = ContainerEdits(
        {"B": "2"}, ("/dev/b", "/dev/c"), (Mount("/y", "/h/y"),), ("v/c=1", "v/c=2")
    )
    assert ONE.merged_with(two) == ContainerEdits(
        {"A": "1", "B": "2"},
        ("/dev/a", "/dev/b", "/dev/c"),
        (Mount("/x", "/h/x"), Mount("/y", "/h/y")),
        ("v/c=1", "v/c=2"),
    )
    assert ONE.merged_with(ContainerEdits()) == ONE == ContainerEdits().merged_with(ONE)


def test_for_equal_keys_the_other_container_edits_win() -> None:
    one = ContainerEdits({"A": "1"}, mounts=(Mount("/x", "/h/1"), Mount("/y", "/h/y")))
    two = ContainerEdits({"A": "2"}, mounts=(Mount("/x", "/h/2", read_only=False),))
    together = one.merged_with(two)
    assert together.envs == {"A": "2"}
    assert together.mounts == (Mount("/x", "/h/2", read_only=False), Mount("/y", "/h/y"))

from agent.holdings.edits import ContainerEdits, Mount


def test_merged_container_edits_keep_all_entries_in_order_and_the_other_wins() -> None:
    one = ContainerEdits(
        {"A": "1", "C": "1"},
        ("/dev/a", "/dev/b"),
        (Mount("/x", "/h/1"), Mount("/y", "/h/y")),
        ("v/c=1",),
    )
    two = ContainerEdits(
        {"A": "2", "B": "2"},
        ("/dev/b", "/dev/c"),
        (Mount("/x", "/h/2", read_only=False), Mount("/z", "/h/z")),
        ("v/c=1", "v/c=2"),
    )
    assert one.merged_with(two) == ContainerEdits(
        {"A": "2", "B": "2", "C": "1"},
        ("/dev/a", "/dev/b", "/dev/c"),
        (Mount("/x", "/h/2", read_only=False), Mount("/y", "/h/y"), Mount("/z", "/h/z")),
        ("v/c=1", "v/c=2"),
    )
    assert one.merged_with(ContainerEdits()) == one == ContainerEdits().merged_with(one)

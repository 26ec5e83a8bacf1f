import pytest

from simulator.api.quantities import NOT_A_QUANTITY, InvalidQuantity, canonical


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        (50, "50"),
        ("50", "50"),
        ("+50", "50"),
        (1000, "1k"),
        ("1500", "1500"),
        ("1000000", "1M"),
        ("1.5", "1500m"),
        (0.5, "500m"),
        ("500m", "500m"),
        ("1000m", "1"),
        ("0", "0"),
        ("0Gi", "0"),
        (None, "0"),
        ("-5", "-5"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("5e0", "5"),
        ("1Ki", "1Ki"),
        ("1024Ki", "1Mi"),
        ("0.5Gi", "512Mi"),
        ("0.5Ki", "512"),
        ("1536Mi", "1536Mi"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("1E", "1E"),
    ],
)
def test_a_quantity_is_written_back_in_canonical_form(written: object, stored: str) -> None:
    assert canonical(written) == stored


@pytest.mark.parametrize("written", ["", "many", "1 Gi", "0x10", True, [], {}, "1ki"])
def test_what_is_no_quantity_is_refused(written: object) -> None:
    with pytest.raises(InvalidQuantity) as raised:
        canonical(written)
    assert str(raised.value) == NOT_A_QUANTITY

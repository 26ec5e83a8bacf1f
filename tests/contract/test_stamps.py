import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from string import ascii_lowercase, digits

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract import stamps as module
from contract.errors import InvalidStamp
from contract.stamps import OrderStamp, Stamper, decode_time, writer_name

TIME = 1_700_000_000_000_000_000
LATEST = 2**63 - 1

_writers = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=48)
_stamps = st.builds(
    OrderStamp,
    st.integers(1, LATEST) | st.integers(TIME, TIME + 3),
    _writers | st.sampled_from(["a", "ab", "a0", "b"]),
    st.integers(0, 99_999_999) | st.integers(0, 3),
)


def _clock(times: Iterable[int]) -> Callable[[], int]:
    left = iter(times)
    return lambda: next(left)


def test_a_stamp_is_20_digits_a_writer_and_8_digits() -> None:
    assert OrderStamp(TIME, "web1", 42).encode() == "01700000000000000000-web1-00000042"


@given(_stamps, _stamps)
def test_the_text_has_the_order_of_the_stamps(one: OrderStamp, other: OrderStamp) -> None:
    assert (one.encode() < other.encode()) == (one < other)
    assert (one.encode() == other.encode()) == (one == other)


@pytest.mark.parametrize(
    ("time_ns", "writer", "count", "message"),
    [
        (0, "w", 0, "time: Invalid value: 0: must be 1 to 2^63-1 ns"),
        (2**63, "w", 0, "time: Invalid value: 9223372036854775808: must be 1 to 2^63-1 ns"),
        (1, "a-b", 0, 'writer: Invalid value: "a-b": must be 1 to 48 of a-z and 0-9'),
        (1, "a\n", 0, 'writer: Invalid value: "a\\n": must be 1 to 48 of a-z and 0-9'),
        (1, "9" * 49, 0, f'writer: Invalid value: "{"9" * 49}": must be 1 to 48 of a-z and 0-9'),
        (1, "w", 100_000_000, "count: Invalid value: 100000000: must be 0 to 99999999"),
    ],
)
def test_a_stamp_that_could_not_be_encoded_is_refused(
    time_ns: int, writer: str, count: int, message: str
) -> None:
    with pytest.raises(InvalidStamp) as caught:
        OrderStamp(time_ns, writer, count)
    assert str(caught.value) == message


def test_a_text_that_no_stamp_encodes_to_is_refused() -> None:
    rule = "must be 20 digits of ns, a writer and 8 digits of count, joined by '-'"
    with pytest.raises(InvalidStamp) as caught:
        OrderStamp.decode("1-web1-42\n")
    assert str(caught.value) == f'order stamp: Invalid value: "1-web1-42\\n": {rule}'


def _padded(
    numbers: st.SearchStrategy[int], widths: st.SearchStrategy[int]
) -> st.SearchStrategy[str]:
    return st.builds("{0:0{1}}".format, numbers, widths)


@given(
    st.text()
    | st.builds(
        "{}-{}-{}".format,
        _padded(st.integers(0, LATEST + 1), st.integers(19, 21)),
        st.text(ascii_lowercase + digits, max_size=3),
        _padded(st.integers(0, 9_999_999), st.integers(7, 9)),
    )
)
@example("01767225600000000000-w-00000001")
def test_decoding_accepts_exactly_what_encoding_writes(text: str) -> None:
    try:
        stamp = OrderStamp.decode(text)
    except InvalidStamp:
        return
    assert stamp.encode() == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "01", "-1", "1.5", "1\n", "now", "\u0661"),
        *(str(LATEST + 1), pytest.param("9" * 5000, id="long")),
    ],
)
def test_a_predicate_time_that_does_not_parse_is_an_error_and_never_a_zero(text: str) -> None:
    assert [decode_time(each) for each in ("1", str(LATEST))] == [1, LATEST]
    with pytest.raises(InvalidStamp) as caught:
        decode_time(text)
    assert str(caught.value).startswith("predicate time: Invalid value: ")
    assert str(caught.value).endswith(": must be unix time in ns, decimal")


@pytest.mark.parametrize(
    ("host", "entropy", "expected"),
    [
        ("webhook-7d9f-x2x", "0a1b", "webhook7d9fx2x0a1b"),
        ("Node_1.Example", "FF", "node1exampleff"),
        ("", "0a1b", "0a1b"),
        ("\u00fcber", "1", "ber1"),
        ("a" * 40 + "b", "c" * 20, "a" * 31 + "b" + "c" * 16),
    ],
)
def test_a_writer_is_readable_and_keeps_its_entropy(host: str, entropy: str, expected: str) -> None:
    assert writer_name(host, entropy) == expected


@pytest.mark.parametrize(
    ("times", "largest_count", "made"),
    [
        (
            [TIME, TIME, TIME - 10, 0, TIME + 1],
            99,
            [(TIME, 0), (TIME, 1), (TIME, 2), (TIME, 3), (TIME + 1, 0)],
        ),
        ([TIME] * 3, 1, [(TIME, 0), (TIME, 1), (TIME + 1, 0)]),  # the count is full
    ],
)
def test_a_stamper_counts_while_its_clock_stands_still_or_steps_back(
    monkeypatch: pytest.MonkeyPatch,
    times: list[int],
    largest_count: int,
    made: list[tuple[int, int]],
) -> None:
    monkeypatch.setattr(module, "_LARGEST_COUNT", largest_count)
    stamper = Stamper(clock=_clock(times), writer="w")
    assert [stamper.next() for _ in times] == [OrderStamp(time, "w", count) for time, count in made]


@given(st.lists(st.integers(-(2**63), LATEST), min_size=1, max_size=50))
def test_a_stamper_never_goes_back(times: list[int]) -> None:
    stamper = Stamper(clock=_clock(times), writer="w")
    made = [stamper.next() for _ in times]
    assert all(earlier < later for earlier, later in itertools.pairwise(made))
    assert [OrderStamp.decode(each.encode()) for each in made] == made


def test_threads_that_share_a_stamper_never_get_the_same_stamp() -> None:
    threads, each = 8, 300
    steps: Iterator[int] = iter([TIME, TIME - 1, TIME + 1] * threads * each)
    stamper = Stamper(clock=lambda: next(steps), writer="w")
    barrier = threading.Barrier(threads)

    def work(_: int) -> list[OrderStamp]:
        barrier.wait(timeout=60)
        return [stamper.next() for _ in range(each)]

    with ThreadPoolExecutor(threads) as pool:
        made = list(pool.map(work, range(threads)))
    assert all(mine == sorted(mine) for mine in made)
    assert len({stamp for mine in made for stamp in mine}) == threads * each

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webhook.server.framing import LONGEST_HEAD, Framer, Progress

LARGEST = 1000
HEAD = b"POST /mutate/pods HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _framer(*pieces: bytes) -> Framer:
    framer = Framer(largest_body=LARGEST)
    for piece in pieces:
        framer.receive(piece)
    return framer


def _with_length(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _chunked(*chunks: bytes, trailers: bytes = b"") -> bytes:
    written = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + written + b"0\r\n" + trailers + b"\r\n"


@pytest.mark.parametrize(
    ("sent", "progress"),
    [
        (b"", Progress.NOTHING),
        (b"G", Progress.HEAD),
        (GET[:-1], Progress.HEAD),
        (GET, Progress.WHOLE),
        (_with_length(b"abc")[:-1], Progress.BODY),
        (_with_length(b"abc"), Progress.WHOLE),
        (_with_length(b""), Progress.WHOLE),
        (HEAD + b"CONTENT-LENGTH :\t3 \r\n\r\nabc", Progress.WHOLE),
        (_with_length(b"x" * LARGEST), Progress.WHOLE),
        (_chunked(b"abc", b"d"), Progress.WHOLE),
        (_chunked(b"abc", b"d")[:-1], Progress.BODY),
        (_chunked(b"abc", trailers=b"A: b\r\nC: d\r\n"), Progress.WHOLE),
        (_chunked(b"x" * LARGEST), Progress.WHOLE),
        (HEAD + b"Transfer-Encoding: Chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n", Progress.WHOLE),
    ],
)
def test_how_far_a_request_has_come_is_known(sent: bytes, progress: Progress) -> None:
    assert _framer(sent).progress is progress
    pieces = [sent[at : at + 1] for at in range(len(sent))]
    assert _framer(*pieces).progress is progress


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"X: " + b"x" * LONGEST_HEAD,
        HEAD + b"Content-Length: x\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1, 1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
        HEAD + b"Content-Length: %d\r\n\r\n" % (LARGEST + 1),
        HEAD + b"Content-Length: 9999999999999999999999\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_cannot_be_framed_is_handed_on_as_it_is_and_is_the_last(sent: bytes) -> None:
    framer = _framer(sent, b"whatever")
    assert framer.progress is Progress.LAST
    assert framer.take() == sent + b"whatever"
    assert len(framer) == 0


@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\nnonsense\r\n",
        b"-1\r\n",
        b"\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"1" * 300,
        b"3\r\nabc\r\n" + b"1" * 300,
        b"0\r\n" + b"x" * 2**15,
    ],
)
def test_a_broken_chunk_leaves_a_body_shorter_than_its_length(chunks: bytes) -> None:
    framer = _framer(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert framer.progress is Progress.LAST
    head, _, body = framer.take().partition(b"\r\n\r\n")
    assert body in (b"", b"abc", b"hello")
    assert head.endswith(b"Content-Length: %d" % (len(body) + 1))


@pytest.mark.parametrize("chunks", [(b"x" * (LARGEST + 1),), (b"x" * LARGEST, b"x")])
def test_too_many_bytes_in_chunks_are_told_by_a_length(chunks: tuple[bytes, ...]) -> None:
    framer = _framer(_chunked(*chunks))
    assert framer.progress is Progress.LAST
    assert b"Content-Length: %d\r\n" % (LARGEST + 1) in framer.take()
    assert len(framer) == 0


def test_a_large_chunk_is_refused_before_it_has_arrived() -> None:
    sent = HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n"
    assert _framer(sent).progress is Progress.LAST


def test_too_many_chunks_are_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.server.framing._MOST_CHUNKS", 3)
    assert _framer(_chunked(b"a", b"b")).progress is Progress.WHOLE
    assert _framer(_chunked(b"a", b"b", b"c", b"d")).progress is Progress.LAST


def test_requests_behind_each_other_are_cut_apart() -> None:
    sent = [_with_length(b"abc"), GET, _chunked(b"abc"), _with_length(b"")]
    framer = _framer(b"".join(sent))
    expected = [sent[0], GET, _with_length(b"abc"), sent[3]]
    for each in expected:
        assert framer.progress is Progress.WHOLE
        assert framer.take() == each
    assert framer.progress is Progress.NOTHING


@pytest.mark.parametrize("expect", [b"Expect: 100-continue\r\n", b"EXPECT :100-Continue \r\n"])
def test_a_promise_to_wait_is_noticed_and_left_out(expect: bytes) -> None:
    framer = _framer(HEAD + expect + b"Content-Length: 3\r\n\r\n")
    assert (framer.progress, framer.expects_continue) == (Progress.BODY, True)
    framer.receive(b"abc" + GET)
    assert framer.take() == _with_length(b"abc")
    assert framer.expects_continue is False
    assert framer.take() == GET


def test_only_the_head_loses_its_promises() -> None:
    expect = b"Expect: 100-continue\r\n"
    body = b"\r\n" + expect + b"x"
    framer = _framer(HEAD + expect * 2 + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert framer.take() == _with_length(body)


BODIES = st.binary(max_size=60)


@settings(max_examples=200, deadline=None)
@given(
    requests=st.lists(
        st.one_of(
            st.just(GET),
            BODIES.map(_with_length),
            st.lists(BODIES.filter(bool), max_size=4).map(lambda each: _chunked(*each)),
        ),
        min_size=1,
        max_size=4,
    ),
    data=st.data(),
)
def test_however_bytes_arrive_the_requests_are_the_same(
    requests: list[bytes], data: st.DataObject
) -> None:
    sent = b"".join(requests)

    def cut(pieces: list[bytes]) -> list[bytes]:
        framer, found = Framer(largest_body=LARGEST), []
        for piece in pieces:
            framer.receive(piece)
            while framer.progress is Progress.WHOLE:
                found.append(framer.take())
        assert len(framer) == 0
        return found

    marks = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=20)))
    pieces = [sent[a:b] for a, b in zip([0, *marks], [*marks, len(sent)], strict=True)]
    assert cut(pieces) == cut([sent])
    assert len(cut([sent])) == len(requests)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([HEAD, GET, b"\r\n\r\n", b"0\r\n"])))
def test_whatever_arrives_no_more_is_held_than_was_sent(pieces: list[bytes]) -> None:
    framer, sent = Framer(largest_body=LARGEST), 0
    for piece in pieces:
        framer.receive(piece)
        sent += len(piece)
        assert len(framer) <= sent
        if framer.progress in (Progress.WHOLE, Progress.LAST):
            framer.take()

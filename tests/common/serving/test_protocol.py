"""One connection without a socket: bytes in, answers out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.serving.wsgi import VERIFIED
from tests.common.serving.stages import GET, LARGEST_BODY, ConnectionStage
from tests.examples import share

HEAD = b"POST /b HTTP/1.1\r\nHost: localhost\r\n"
UNREADABLE = b"the request could not be read\n"


def _with_length(body: bytes, *fields: bytes) -> bytes:
    head = HEAD + b"".join(each + b"\r\n" for each in fields)
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _chunked(*chunks: bytes, trailers: bytes = b"") -> bytes:
    written = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + written + b"0\r\n" + trailers + b"\r\n"


def test_a_request_becomes_a_wsgi_environment() -> None:
    stage = ConnectionStage()
    stage.receive(
        b"POST /mutate/p%6fds%C3%A9?timeout=10s HTTP/1.1\r\nHost: a:443\r\nX-Twice: 1\r\n"
        b"Content-Type: text/plain\r\nX_Twice: no\r\nx-twice: 2\r\nContent-Length: 3\r\n\r\nabc"
    )
    (environ,) = stage.environs
    expected = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/mutate/pods\xc3\xa9",
        "QUERY_STRING": "timeout=10s",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_NAME": "192.0.2.2",
        "SERVER_PORT": "2",
        "REMOTE_ADDR": "192.0.2.1",
        "CONTENT_TYPE": "text/plain",
        "CONTENT_LENGTH": "3",
        "HTTP_HOST": "a:443",
        "HTTP_X_TWICE": "1,2",
        "wsgi.url_scheme": "https",
        "body": b"abc",
        VERIFIED: False,
    }
    assert expected.items() <= environ.items()
    assert {key for key in environ if key.startswith("HTTP_")} == {"HTTP_HOST", "HTTP_X_TWICE"}


@pytest.mark.parametrize(
    ("certificate", "verified"), [(None, False), ({}, False), ({"subject": ()}, True)]
)
def test_a_client_with_a_certificate_is_verified(certificate: object, verified: bool) -> None:
    stage = ConnectionStage(peercert=certificate)
    stage.receive(GET)
    assert stage.environs[0][VERIFIED] is verified


def test_an_answer_has_the_headers_that_http_wants() -> None:
    stage = ConnectionStage()
    stage.receive(GET)
    status, *fields = stage.transport.sent.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert status == "HTTP/1.1 200 OK"
    names = [each.partition(": ")[0] for each in fields]
    assert names == ["Server", "Date", "Connection", "Content-Length"]
    assert "Server: gpu-turnstile" in fields
    assert "Connection: keep-alive" in fields
    assert (stage.told.flying, stage.transport.closed) == (0, False)


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        (GET, b""),
        (b"\r\n" + GET, b""),
        (_with_length(b""), b""),
        (_with_length(b"abc"), b"abc"),
        (HEAD + b"CONTENT-LENGTH:\t3 \r\n\r\nabc", b"abc"),
        (_chunked(b"abc", b"d"), b"abcd"),
        (_chunked(b"abc", trailers=b"Content-Type: b\r\nC: d\r\n"), b"abc"),
        (HEAD + b"Transfer-Encoding: Chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n", b"abc"),
        (_chunked(b"x" * 40, b"x" * (LARGEST_BODY - 40)), b"x" * LARGEST_BODY),
    ],
)
def test_a_whole_request_is_answered_and_the_connection_kept(request_: bytes, body: bytes) -> None:
    stage = ConnectionStage()
    stage.receive(request_[:-1])
    assert stage.environs == []
    stage.receive(request_[-1:])
    (environ,) = stage.environs
    assert (environ["body"], environ["CONTENT_LENGTH"]) == (body, str(len(body)))
    assert "CONTENT_TYPE" not in environ  # trailers are no headers
    stage.receive(GET)
    assert (stage.answers, stage.transport.closed) == ([b"ok", b"ok"], False)


@pytest.mark.parametrize(
    "bytes_",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        HEAD + b"X: " + b"x" * 2**16,
        HEAD + b"X: y\x00\r\n\r\n",
        HEAD + b"Content-Length: x\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1, 1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_bytes_that_are_no_http_are_400_and_the_last(bytes_: bytes) -> None:
    stage = ConnectionStage()
    stage.receive(bytes_)
    stage.receive(GET)
    assert stage.transport.sent.startswith(b"HTTP/1.1 400 ")
    assert b"Connection: close" in stage.transport.sent
    assert (stage.environs, stage.answers) == ([], [UNREADABLE])
    assert (stage.transport.closed, stage.told.flying) == (True, 0)


@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\nnonsense\r\n",
        b"-1\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"1" * 300,
        b"0\r\nbad line\r\n\r\n",
    ],
)
def test_a_broken_chunk_leaves_a_body_shorter_than_its_length(chunks: bytes) -> None:
    stage = ConnectionStage()
    stage.receive(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    (environ,) = stage.environs
    assert int(environ["CONTENT_LENGTH"]) == len(environ["body"]) + 1
    assert (stage.answers, stage.transport.closed) == ([b"ok"], True)


@pytest.mark.parametrize(
    "begin",
    [
        HEAD + b"Content-Length: %d\r\n\r\n" % (LARGEST_BODY + 1),
        HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (LARGEST_BODY + 1),
        HEAD
        + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (LARGEST_BODY + 1)
        + b"x" * LARGEST_BODY
        + b"x",
    ],
)
def test_a_body_too_large_is_answered_at_once_and_read_to_its_end(begin: bytes) -> None:
    stage = ConnectionStage()
    stage.receive(begin)
    (environ,) = stage.environs
    assert (environ["CONTENT_LENGTH"], environ["body"]) == (str(LARGEST_BODY + 1), b"")
    assert (stage.answers, stage.transport.closed, stage.told.flying) == ([b"ok"], False, 0)
    rest = b"\r\n0\r\n\r\n" if b"chunked" in begin else b"x" * (LARGEST_BODY + 1)
    stage.receive(rest[:-1])
    assert not stage.transport.closed
    stage.receive(rest[-1:] + GET)
    assert (len(stage.environs), stage.transport.closed) == (1, True)


def test_not_more_than_32_mib_are_read_of_a_body_too_large() -> None:
    stage = ConnectionStage()
    stage.receive(HEAD + b"Content-Length: %d\r\n\r\n" % 2**40)
    for _ in range(32):
        assert not stage.transport.aborted
        stage.receive(b"x" * 2**20)
    assert stage.transport.aborted


@pytest.mark.parametrize(
    "request_",
    [
        HEAD + b"Connection: close\r\n\r\n",
        b"GET /a HTTP/1.0\r\n\r\n",
        HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
def test_after_a_last_answer_nothing_is_read(request_: bytes) -> None:
    stage = ConnectionStage()
    stage.receive(request_ + GET + b"x" * 300_000)
    stage.receive(GET)
    assert (stage.answers, stage.transport.closed) == ([b"ok"], True)
    assert b"Connection: close" in stage.transport.sent


def test_a_worker_that_ends_keeps_no_connection() -> None:
    stage = ConnectionStage(keeps_alive=False)
    stage.receive(GET + GET[:5])
    assert (stage.answers, stage.transport.closed) == ([b"ok"], True)
    assert b"Connection: close" in stage.transport.sent


def test_a_client_that_waits_for_continue_gets_it_once() -> None:
    stage = ConnectionStage()
    stage.receive(HEAD + b"Expect: 100-Continue\r\nContent-Length: 3\r\n\r\n", b"a", b"bc")
    assert stage.answers == [b"100", b"ok"]
    stage.receive(_with_length(b"abc", b"Expect: 100-continue"))  # it does not wait
    assert stage.answers == [b"100", b"ok", b"ok"]


def test_requests_wait_while_the_client_takes_no_answers() -> None:
    stage = ConnectionStage()
    stage.on_request = stage.connection.pause_writing
    stage.receive(GET * 3)
    assert (len(stage.answers), stage.transport.reading_paused, stage.told.flying) == (1, True, 1)
    stage.connection.resume_writing()
    assert len(stage.answers) == 2
    stage.on_request = lambda: None
    stage.connection.resume_writing()
    assert (len(stage.answers), stage.transport.reading_paused, stage.told.flying) == (3, False, 0)


def test_a_last_answer_is_taken_before_the_connection_is_closed() -> None:
    stage = ConnectionStage(keeps_alive=False)
    stage.on_request = stage.connection.pause_writing
    stage.receive(GET)
    assert not stage.transport.closed
    stage.connection.resume_writing()
    assert stage.transport.closed


def test_a_client_that_goes_away_leaves_nothing() -> None:
    for sent in (b"", GET[:5], GET, _with_length(b"abc")[:-1]):
        stage = ConnectionStage()
        stage.receive(sent)
        stage.connection.connection_lost(None)
        assert (stage.told.open, stage.told.flying, stage.told.ends) == (0, 0, {})


def test_a_mistake_of_the_application_is_not_hidden() -> None:
    stage = ConnectionStage()

    def fail() -> None:
        raise RuntimeError("ours")

    stage.on_request = fail
    with pytest.raises(RuntimeError, match="ours"):
        stage.receive(GET)


BODIES = st.binary(max_size=60)
REQUESTS = st.one_of(
    st.just(GET),
    BODIES.map(_with_length),
    st.lists(BODIES.filter(bool), max_size=4).map(lambda each: _chunked(*each)),
)


@settings(max_examples=share(80))
@given(requests=st.lists(REQUESTS, min_size=1, max_size=4), data=st.data())
def test_however_bytes_arrive_the_requests_are_the_same(
    requests: list[bytes], data: st.DataObject
) -> None:
    sent = b"".join(requests)
    marks = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=20)))
    pieces = [sent[a:b] for a, b in zip([0, *marks], [*marks, len(sent)], strict=True)]
    at_once, cut = ConnectionStage(), ConnectionStage()
    at_once.receive(sent)
    cut.receive(*(piece for piece in pieces if piece))
    bodies = [[each["body"] for each in stage.environs] for stage in (at_once, cut)]
    assert bodies[0] == bodies[1]
    assert len(bodies[0]) == len(requests) == len(at_once.answers) == len(cut.answers)


@settings(max_examples=share(100))
@given(st.lists(st.binary(max_size=40) | st.sampled_from([HEAD, GET, b"\r\n\r\n", b"0\r\n"])))
def test_whatever_arrives_nothing_is_raised_and_every_request_is_counted(
    pieces: list[bytes],
) -> None:
    stage = ConnectionStage()
    stage.receive(*pieces)
    assert stage.told.flying in {0, 1}
    stage.connection.connection_lost(None)
    assert (stage.told.open, stage.told.flying) == (0, 0)

"""The parts of the kubelet that are a few lines each."""

from simulator.kubelet.ratelimit import TokenBucket


def test_a_token_bucket_allows_a_burst_and_then_its_rate() -> None:
    """K5."""
    now = [0.0]
    bucket = TokenBucket(rate=100, burst=10, clock=lambda: now[0])
    assert [bucket.allow() for _ in range(12)] == [True] * 10 + [False] * 2
    now[0] = 0.021
    assert [bucket.allow() for _ in range(3)] == [True, True, False]
    now[0] = 60.0
    assert sum(bucket.allow() for _ in range(50)) == 10

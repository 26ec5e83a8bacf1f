"""The checkpoint file."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.kubelet.answers import Answer, DeviceNode, Mount
from simulator.kubelet.checkpoint import Checkpoint, decode, encode
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.errors import CorruptCheckpoint
from simulator.kubelet.numa import Holding
from tests.examples import share

HOLDING = Holding(
    ("a", "b"),
    Answer(
        {"E": "1"},
        (Mount("/c", "/h", True),),
        (DeviceNode("/d", "/dev/d", "r"),),
        {"n": "v"},
        ("x",),
    ),
    {-1: ("a",), 1: ("b",)},
)
CHECKPOINT = Checkpoint({"u": {"c": {"example.com/r": HOLDING}}}, {"example.com/r": ("a", "b")})


def test_the_file_has_the_shape_of_the_kubelets_own() -> None:
    data = json.loads(encode(CHECKPOINT))
    [entry] = data["Data"]["PodDeviceEntries"]
    assert set(data) == {"Data", "Checksum"}
    assert data["Data"]["RegisteredDevices"] == {"example.com/r": ["a", "b"]}
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (
        "u",
        "c",
        "example.com/r",
    )
    assert entry["DeviceIDs"] == {"-1": ["a"], "1": ["b"]}


texts = st.text(max_size=8)


@settings(max_examples=share(30))
@given(
    st.dictionaries(
        texts,
        st.dictionaries(
            texts,
            st.dictionaries(
                texts,
                st.builds(
                    lambda ids, envs: Holding(tuple(ids), Answer(envs), {-1: tuple(ids)}),
                    st.lists(texts, unique=True, min_size=1, max_size=4),
                    st.dictionaries(texts, texts, max_size=3),
                ),
                min_size=1,
                max_size=2,
            ),
            min_size=1,
            max_size=2,
        ),
        max_size=3,
    )
)
def test_any_books_survive_the_file(pods: dict[str, PodHoldings]) -> None:
    assert decode(encode(Checkpoint(pods, {}))).pods == pods


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"Data": {}, "Checksum": 1}',
        encode(CHECKPOINT)[:-20],
        encode(CHECKPOINT).replace("PodUID", "PodUid"),
    ],
)
def test_what_was_not_written_so_is_refused(text: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"^checkpoint: "):
        decode(text)

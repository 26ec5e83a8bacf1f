"""Readers of other systems' pods, whatever a pod has; the facts of each are in its own tests."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import any_json
from tests.webhook.admission.dialects.reading_pods import Reader, check_any_reading
from tests.webhook.admission.dialects.translating import pod_of
from webhook.admission.dialects.elastic_gpu import read_elastic_gpu
from webhook.admission.dialects.gpushare import read_gpushare
from webhook.admission.dialects.kai import read_kai
from webhook.admission.dialects.vgpu_manager import read_vgpu_manager

NAMES = {
    read_elastic_gpu: (
        *("elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory", "elasticgpu.com/gpu-core"),
        "egpuc.elasticgpu.io/a",
    ),
    read_gpushare: ("aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"),
    read_kai: (
        *("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name"),
        "mps",
    ),
    read_vgpu_manager: (
        *(f"nvidia.com/vgpu-{each}" for each in ("number", "cores", "memory", "compute-policy")),
        *(f"nvidia.com/{each}" for each in ("include-gpu-uuid", "device-topology-mode")),
    ),
}
"""Resources and annotations of each system."""

FIELDS = ("metadata", "annotations", "labels", "spec", "containers", "resources", "limits", "env")
CONTENT = any_json(*FIELDS, *(name for names in NAMES.values() for name in names))


@pytest.mark.parametrize("reader", NAMES, ids=lambda each: each.__name__)
@given(content=CONTENT, data=st.data())
def test_no_pod_raises(reader: Reader, content: Any, data: st.DataObject) -> None:
    names = st.sampled_from(NAMES[reader])
    check_any_reading(reader, {"metadata": content, "spec": content})
    limits = st.dictionaries(names | st.just("cpu"), any_json(), max_size=4)
    pod = pod_of(*data.draw(st.lists(limits, max_size=3)))
    pod["metadata"] |= {"annotations": data.draw(st.dictionaries(names, any_json() | st.text()))}
    check_any_reading(reader, pod)
    pod["spec"] |= {"schedulerName": content, "containers": [content, *pod["spec"]["containers"]]}
    check_any_reading(reader, pod)

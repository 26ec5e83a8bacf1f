"""The Binding that gives a pod its node, as kube-scheduler's DefaultBinder makes it."""

from simulator.client import ApiClient, Json


def post_binding(client: ApiClient, pod: Json, node: str) -> None:
    """Bind a pod.

    Raises:
        ApiError: the API server refused, or did not answer.
    """
    metadata = pod["metadata"]
    binding: Json = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {each: metadata[each] for each in ("name", "namespace", "uid")},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
    client.create(path, binding)

"""The pods the kubelet should run, and the mirrors the API server shows of static ones. Pure."""

from simulator.kubelet.pods import Pod


class PodManager:
    """Which pods there are. Not safe between threads."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._mirrors: dict[str, Pod] = {}

    def put(self, pod: Pod) -> None:
        """Add a pod, or take its newer form; a mirror is kept apart."""
        if pod.mirror:
            self._mirrors[pod.full_name] = pod
        else:
            self._pods[pod.uid] = pod

    def drop(self, pod: Pod) -> None:
        """Forget a pod or a mirror."""
        if not pod.mirror:
            self._pods.pop(pod.uid, None)
        elif self._mirrors.get(pod.full_name, pod).uid == pod.uid:
            self._mirrors.pop(pod.full_name, None)

    def get(self, uid: str) -> Pod | None:
        """Find a pod."""
        return self._pods.get(uid)

    def named(self, full_name: str) -> Pod | None:
        """Find the newest pod of a ``namespace/name``."""
        return next(
            (pod for pod in reversed(self._pods.values()) if pod.full_name == full_name), None
        )

    def all(self) -> tuple[Pod, ...]:
        """Return all pods, without mirrors."""
        return tuple(self._pods.values())

    def static_of(self, mirror: Pod) -> Pod | None:
        """Find the static pod a mirror belongs to."""
        pod = self.named(mirror.full_name)
        return pod if pod is not None and pod.static else None

    def shadow(self, pod: Pod) -> Pod | None:
        """Return the pod as the API server knows it: itself, or a static pod's mirror."""
        return self._mirrors.get(pod.full_name) if pod.static else pod

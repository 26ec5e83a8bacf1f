"""Between the device plugin API's messages and what this package keeps of them."""

from common.kubelet_api import deviceplugin_pb2 as pb
from simulator.kubelet.answers import Answer, DeviceNode, Mount
from simulator.kubelet.devices import Options
from simulator.kubelet.numa import Device


def read_device(message: pb.Device) -> Device:
    """Read an advertised device; whatever is not "Healthy" is not healthy."""
    nodes: tuple[int, ...] = ()
    if message.HasField("topology"):
        nodes = tuple(int(node.ID) for node in message.topology.nodes)
    return Device(message.ID, message.health == "Healthy", nodes)


def read_options(message: pb.DevicePluginOptions) -> Options:
    """Read what a plugin wants to be asked."""
    return Options(message.pre_start_required, message.get_preferred_allocation_available)


def read_answer(message: pb.ContainerAllocateResponse) -> Answer:
    """Read what a container receives."""
    return Answer(
        envs=dict(message.envs),
        mounts=tuple(
            Mount(each.container_path, each.host_path, each.read_only) for each in message.mounts
        ),
        devices=tuple(
            DeviceNode(each.container_path, each.host_path, each.permissions)
            for each in message.devices
        ),
        annotations=dict(message.annotations),
        cdi=tuple(each.name for each in message.cdi_devices),
    )


def write_answer(answer: Answer) -> pb.ContainerAllocateResponse:
    """Write an answer as the message it came from."""
    return pb.ContainerAllocateResponse(
        envs=answer.envs,
        mounts=[
            pb.Mount(
                container_path=each.container_path,
                host_path=each.host_path,
                read_only=each.read_only,
            )
            for each in answer.mounts
        ],
        devices=[
            pb.DeviceSpec(
                container_path=each.container_path,
                host_path=each.host_path,
                permissions=each.permissions,
            )
            for each in answer.devices
        ],
        annotations=answer.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in answer.cdi],
    )

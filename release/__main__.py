"""``python -m release``: fills a folder with the files of a release."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import click

from release import chart
from release.archives import sha256, write_tar
from release.manifests import NoKubectl, folders, render

ROOT = Path(__file__).resolve().parents[1]
_DOWNLOADS = "https://github.com/gpu-turnstile/gpu-turnstile/releases/download"
_SUMS = "SHA256SUMS"


@click.command(context_settings={"show_default": True})
@click.option("--out", type=click.Path(path_type=Path), default="dist", help="Folder to fill.")
@click.option(
    "--image", default="", help="Image for the manifests.  [default: the one in the manifests]"
)
@click.option("--proxy-image", default="", help="Image for the proxy.  [default: that of --image]")
@click.option("--url", default="", help="URL of the folder with the files, for krew's manifest.")
def main(out: Path, image: str, proxy_image: str, url: str) -> None:
    """Fill a folder with wheel, kubectl gpu for krew, manifests, chart and checksums."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or commit_time())
    os.umask(0o022)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    build_wheel(out, epoch)
    write_plugin(out, url or f"{_DOWNLOADS}/v{version}", version=version, epoch=epoch)
    missing = ""
    try:
        for name, folder in folders(ROOT / "deploy").items():
            rendered = render(folder, version=version, image=image, proxy_image=proxy_image)
            (out / f"{name}.yaml").write_text(rendered, encoding="utf-8")
        made = chart.files(ROOT / "deploy", version=version, image=image, proxy_image=proxy_image)
        packed = {f"{chart.NAME}/{name}": (text.encode(), False) for name, text in made.items()}
        write_tar(out / f"{chart.NAME}-{version}.tgz", packed, epoch=epoch)
    except NoKubectl as error:
        missing = str(error)
    files = sorted(each for each in out.iterdir() if each.name != _SUMS)
    sums = "".join(f"{sha256(each)}  {each.name}\n" for each in files)
    (out / _SUMS).write_text(sums, encoding="utf-8")
    for each in files:
        click.echo(f"{each.stat().st_size:>10}  {each}")
    if missing:
        click.echo(f"release: error: no rendered manifests and no chart: {missing}", err=True)
        sys.exit(1)


def commit_time() -> int:
    """Return the time of the commit in seconds; 1980 without a repository, as in ZIP archives."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return 315_532_800
    return int(done.stdout)


def write_plugin(out: Path, url: str, *, version: str, epoch: int) -> None:
    """Write the archive of ``kubectl gpu`` for krew, and its manifest: the filled in ``krew.yaml``.

    Args:
        out: the folder, which has the wheel.
        url: URL of the folder from which krew downloads the archive.
        version: version of this project.
        epoch: the time of every file in it.
    """
    here, archive = Path(__file__).parent, out / f"kubectl-gpu-{version}.tar.gz"
    (wheel,) = out.glob("*.whl")
    packed = {
        "kubectl-gpu": ((here / "kubectl-gpu.sh").read_bytes(), True),
        "LICENSE": ((ROOT / "LICENSE").read_bytes(), False),
        wheel.name: (wheel.read_bytes(), False),
    }
    write_tar(archive, packed, epoch=epoch)
    text = (here / "krew.yaml").read_text(encoding="utf-8")
    values = {"version": version, "uri": f"{url}/{archive.name}", "sha256": sha256(archive)}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    (out / "gpu.yaml").write_text(text, encoding="utf-8")


def build_wheel(out: Path, epoch: int) -> None:
    """Build the wheel from a copy of the sources, without files of earlier builds.

    Args:
        out: the folder for the wheel.
        epoch: the time of every file in it.
    """
    skipped = shutil.ignore_patterns(
        ".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "simulator", "docs"
    )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "source"
        shutil.copytree(ROOT, copy, ignore=skipped)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(out.resolve()), "."]
        subprocess.run(  # noqa: S603 - our own sources
            command, cwd=copy, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}
        )


if __name__ == "__main__":
    main()

"""``python -m release``: fills a folder with the files of a release."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from release.archives import sha256, write_tar
from release.chart import write_chart
from release.krew import manifest
from release.manifests import NoKubectl, folders, render
from release.onefile import write_onefile
from release.sources import ROOT, commit_time
from release.sources import version as own_version

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
    """Fill a folder with wheel, kubectl-gpu, krew's manifest, manifests, chart and checksums."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or commit_time())
    os.umask(0o022)
    version = own_version()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    build_wheel(out, epoch)
    program, archive = out / "kubectl-gpu", out / f"kubectl-gpu-{version}.tar.gz"
    write_onefile(program, ROOT, epoch=epoch)
    license_text = (ROOT / "LICENSE").read_bytes()
    packed = {"kubectl-gpu": (program.read_bytes(), True), "LICENSE": (license_text, False)}
    write_tar(archive, packed, epoch=epoch)
    uri = f"{url or f'{_DOWNLOADS}/v{version}'}/{archive.name}"
    document = manifest(version=version, uri=uri, checksum=sha256(archive))
    (out / "gpu.yaml").write_text(document, encoding="utf-8")
    missing = ""
    try:
        for name, folder in folders(ROOT / "deploy").items():
            rendered = render(folder, version=version, image=image, proxy_image=proxy_image)
            (out / f"{name}.yaml").write_text(rendered, encoding="utf-8")
        write_chart(
            out / f"gpu-turnstile-{version}.tgz",
            ROOT / "deploy",
            version=version,
            image=image,
            proxy_image=proxy_image,
            epoch=epoch,
        )
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

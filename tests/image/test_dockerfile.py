"""The Dockerfile holds to its rules, and .dockerignore to the Dockerfile."""

import json
import re
import shlex
import tomllib
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.image.conftest import ROOT, pinned, sources
from tests.image.dockerfile import Stage, context, covered

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_base_is_pinned_slim_and_a_python_we_support(stages: list[Stage]) -> None:
    (base,) = {each.base for each in stages}
    match = re.fullmatch(r"python:(\d+\.\d+\.\d+)-slim-[a-z]+(@sha256:[0-9a-f]{64})?", base)
    assert match, base
    assert match[1] in SpecifierSet(PROJECT["project"]["requires-python"])


def test_it_runs_as_nobody_and_nothing_is_done_after_that(stages: list[Stage]) -> None:
    last = stages[-1]
    (user,) = last.all("USER")
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", user.text)  # runAsNonRoot needs a number
    after = last.instructions[last.instructions.index(user) + 1 :]
    assert {each.word for each in after} <= {"EXPOSE", "ENTRYPOINT", "CMD"}


def test_the_last_stage_takes_one_thing_from_the_first_and_builds_nothing(
    stages: list[Stage],
) -> None:
    first, last = stages
    (copy,) = last.all("COPY")
    assert copy.flags == {"from": first.name}
    assert copy.words == ["/opt/gpu-turnstile", "/opt/gpu-turnstile"]
    assert not [each for each in last.all("RUN") if re.search(r"\bpip\s|apt|install", each.text)]


def test_the_standard_library_is_compiled_before_the_root_becomes_read_only(
    stages: list[Stage],
) -> None:
    """The base image brings it without bytecode, and a container can keep none."""
    last = stages[-1]
    (run,) = (each for each in last.all("RUN") if "compileall" in each.text)
    removing, compiling = run.text.split(" && ")
    assert removing.startswith("rm ")
    program, folder = shlex.split(compiling)[:3], shlex.split(compiling)[-1]
    assert program == ["python", "-m", "compileall"]
    assert folder == "/usr/local/lib/python3*"
    assert "--invalidation-mode unchecked-hash" in compiling  # the same in every build
    (user,) = last.all("USER")
    assert last.instructions.index(run) < last.instructions.index(user)


def test_what_has_no_place_in_it_is_not_in_it(stages: list[Stage]) -> None:
    words = {each.word for stage in stages for each in stage.instructions}
    assert not words & {"ADD", "HEALTHCHECK", "MAINTAINER", "ONBUILD", "SHELL", "VOLUME"}
    for each in (each for stage in stages for each in stage.all("RUN")):
        assert not re.search(r"apt-get|curl|wget|chmod|sudo", each.text), each.text


def test_the_program_is_the_first_argument(stages: list[Stage]) -> None:
    (entrypoint,), (command,) = stages[-1].all("ENTRYPOINT"), stages[-1].all("CMD")
    assert json.loads(entrypoint.text) == ["python", "-m"]
    assert json.loads(command.text) == ["agent", "--help"]
    # `-m` would find a package in the working directory first.
    environment = {k: v for each in stages[-1].all("ENV") for k, v in each.pairs.items()}
    assert environment["PYTHONSAFEPATH"] == "1"


def test_labels_name_the_project(stages: list[Stage]) -> None:
    labels = {k: v for each in stages[-1].all("LABEL") for k, v in each.pairs.items()}
    assert labels["org.opencontainers.image.title"] == PROJECT["project"]["name"]
    assert labels["org.opencontainers.image.description"] == PROJECT["project"]["description"]
    assert labels["org.opencontainers.image.licenses"] == PROJECT["project"]["license"]


def test_what_is_sent_to_the_builder_is_what_is_copied(stages: list[Stage]) -> None:
    sent = context(ROOT, sources())
    copies = [source for each in stages[0].all("COPY") for source in each.words[:-1]]
    for source in copies:
        assert covered(source, sent), f"COPY {source}: nothing, see .dockerignore"
    assert sent == set().union(*(covered(source, sent) for source in copies))


# --- what is pinned ------------------------------------------------------------------------


def needed_by(wanted: list[Requirement], versions: dict[str, str]) -> set[str]:
    """Return the names of all that *wanted* needs, by what is installed here.

    A range is held against the list where its asker is the project or is installed as pinned.
    """
    found: set[str] = set()
    asked = [(each, True) for each in wanted]
    while asked:
        needed, as_pinned = asked.pop()
        name = canonicalize_name(needed.name)
        if as_pinned:
            assert versions.get(name, "nothing") in needed.specifier, needed
        if name not in found:
            found.add(name)
            asked += [
                (each, version(name) == versions.get(name))
                for each in map(Requirement, requires(name) or ())
                if each.marker is None or each.marker.evaluate({"extra": ""})
            ]
    return found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("requirements.txt", PROJECT["project"]["dependencies"]),
        ("build-requirements.txt", PROJECT["build-system"]["requires"]),
    ],
)
def test_the_list_has_all_that_is_needed_with_its_hash_and_nothing_else(
    name: str, wanted: list[str]
) -> None:
    """pip refuses what is not in the list, and installs what nothing needs any more."""
    versions = pinned(name)
    unneeded = versions.keys() - needed_by([Requirement(each) for each in wanted], versions)
    assert not unneeded, f"make {name} again (docs/install.md), nothing needs {unneeded}"
    text = (ROOT / "deploy/image" / name).read_text(encoding="utf-8")
    for entry in re.findall(r"^[a-z0-9](?:.*\\\n)*.*", text, flags=re.MULTILINE):
        assert "--hash=sha256:" in entry, entry
    assert "://" not in text  # from the index that the builder's pip is told of

"""A Dockerfile and a .dockerignore, read as far as ours use them."""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        word: its name, in capitals.
        text: what follows, lines joined, flags included.
    """

    word: str
    text: str

    @property
    def flags(self) -> dict[str, str]:
        """Give ``--name=value`` before the arguments."""
        flags = [each for each in shlex.split(self.text) if each.startswith("--")]
        return dict(each[2:].partition("=")[::2] for each in flags)

    @property
    def words(self) -> list[str]:
        """Give the arguments, flags left out."""
        return [each for each in shlex.split(self.text) if not each.startswith("--")]

    @property
    def pairs(self) -> dict[str, str]:
        """Give ``NAME=value`` of ARG, ENV and LABEL."""
        return dict(each.partition("=")[::2] for each in self.words)


@dataclass(slots=True)
class Stage:
    """One stage.

    Attributes:
        base: the image it starts from, arguments filled in.
        name: its name, empty without one.
        instructions: in order.
    """

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[Instruction]:
        """Give every instruction of one kind."""
        return [each for each in self.instructions if each.word == word]


def parse(text: str) -> list[Stage]:
    """Read a Dockerfile.

    Raises:
        ValueError: it does not begin as a Dockerfile does.
    """
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for each in _instructions(text):
        if each.word == "FROM":
            base, *alias = each.words
            for name, value in arguments.items():
                base = base.replace(f"${{{name}}}", value)
            stages.append(Stage(base, alias[1] if alias else ""))
        elif stages:
            stages[-1].instructions.append(each)
        elif each.word == "ARG":
            arguments |= each.pairs
        else:
            raise ValueError(f"{each.word} before the first FROM")
    return stages


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield Instruction(word.upper(), re.sub(r"  +", " ", rest.strip()))


def is_ignored(path: str, ignore: Iterable[str]) -> bool:
    """Tell whether a .dockerignore keeps *path* from the builder: the last pattern that fits.

    Args:
        path: of a file, relative to the context.
        ignore: the lines of the .dockerignore.
    """
    ignored = False
    for line in ignore:
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keeps = pattern.startswith("!")
        expression = _expression(pattern.lstrip("!").strip("/"))
        parts = PurePosixPath(path).parts
        if any(expression.match("/".join(parts[:n])) for n in range(1, len(parts) + 1)):
            ignored = not keeps
    return ignored


def _expression(pattern: str) -> re.Pattern[str]:
    """Translate a pattern: ``*`` stays within a folder, ``**/`` is any folders."""
    pieces = [
        translate(piece).removeprefix("(?s:").removesuffix(r")\Z").replace(".*", "[^/]*")
        for piece in pattern.split("**/")
    ]
    return re.compile("(?:.*/)?".join(pieces) + r"\Z")


def context(root: Path, files: Iterable[str]) -> set[str]:
    """Leave of *files* what the .dockerignore of *root* lets through."""
    ignore = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return {each for each in files if not is_ignored(each, ignore)}


def covered(source: str, files: Iterable[str]) -> set[str]:
    """Give the files that a COPY of *source* copies."""
    name = source.rstrip("/")
    return {each for each in files if each == name or each.startswith(f"{name}/")}

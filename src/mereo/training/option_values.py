"""Values of options as text, on the command line and in YAML: plain values, arguments of a network, sizes of images.

torch is not imported here, so that `--help` is quick.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import tyro
import yaml

from mereo.errors import UsageError

LARGEST_NUMBER = 2**63
"""Whole numbers from here on fit no tensor."""
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")


class _PlainLoader(yaml.SafeLoader):
    """Reads plain types only: no `!!binary`, dates or sets, and no aliases, which let a few lines expand to any
    size."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name); write the value out")
        return super().compose_node(parent, index)


_PlainLoader.yaml_constructors = {
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in _PLAIN
}
# A date stays text.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in _PLAIN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str) -> Any:
    """The value of a YAML document of plain types; ValueError for any other text."""
    try:
        return yaml.load(text, _PlainLoader)
    except Exception as error:  # for a tag on the wrong text PyYAML raises nearly any exception
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def parse_arguments(words: list[str]) -> dict[str, Any]:
    """name=value words, each value read as YAML: patch_size=2, scales=[0,1], routing=dynamic; (0,1) is a list too."""
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is not of the form name=value")
        try:
            in_round_brackets = value.startswith("(") and value.endswith(")")
            arguments[name] = read_yaml(f"[{value[1:-1]}]" if in_round_brackets else value)
        except ValueError:
            raise ValueError(f"{value!r} is not a value for {name}") from None
    return arguments


def parse_insertion(text: str) -> dict[str, Any]:
    """`ela:preset=tiny,where=blocks` as arguments of `mereo.insert`; UsageError for text of another form."""
    name, _, arguments = text.partition(":")
    try:
        given = parse_arguments(split_arguments(arguments))
    except ValueError as error:
        raise UsageError(f"insert is {text!r}: {error}; write ela:preset=tiny,where=blocks.") from None
    if not name or {"name", "model"} & given.keys():
        raise UsageError(f"insert is {text!r}; it must begin with the name of a mechanism, such as ela.")
    return {"name": name, **given}


def split_arguments(text: str) -> list[str]:
    """The parts between commas; a comma inside brackets belongs to a list."""
    return [word for word in re.split(r",(?![^\[(]*[\])])", text) if word]


def show_arguments(arguments: dict[str, Any]) -> list[str]:
    """Arguments as text that `parse_arguments` reads."""
    return [f"{name}={yaml.safe_dump(v, default_flow_style=True).splitlines()[0]}" for name, v in arguments.items()]


ModelArguments = Annotated[
    dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE ...",
        instance_from_str=parse_arguments,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=show_arguments,
    ),
]


def parse_size(value: Any) -> int | tuple[int, int] | None:
    """Sides of an image: 64, "64", "64x48" or [64, 48], height first; UsageError for anything else."""
    sides = value.lower().split("x") if isinstance(value, str) else [value] if isinstance(value, int) else value
    try:
        numbers = [int(side) for side in sides]
        whole = all(isinstance(side, int | str) and not isinstance(side, bool) for side in sides)
    except (TypeError, ValueError, OverflowError):
        numbers, whole = [], False
    if not whole or len(numbers) not in (1, 2) or min(numbers) < 1:
        raise UsageError(f"img_size is {value!r}; it must be a whole number above 0 or height x width, such as 64x48.")
    if max(numbers) >= LARGEST_NUMBER:
        raise UsageError("img_size is too large a number.")
    return numbers[0] if numbers[0] == numbers[-1] else (numbers[0], numbers[1])


def show_size(size: int | Sequence[int] | None) -> str:
    """A size as text that `parse_size` reads: 64, or 64x48."""
    return "x".join(map(str, size)) if isinstance(size, Sequence) else str(size)


ImageSize = Annotated[
    int | tuple[int, int] | None,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="SIDE|HEIGHTxWIDTH",
        instance_from_str=lambda words: None if words == ["None"] else parse_size(words[0]),
        is_instance=lambda value: value is None or isinstance(value, int | tuple),
        str_from_instance=lambda value: [show_size(value)],
    ),
]

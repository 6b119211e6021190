"""Messages for options whose values cannot be read: which option, what it was, and what it must be."""

import re
from collections.abc import Sequence
from typing import Any, get_args, get_type_hints

from mereo.errors import UsageError, check_choice

_UNREADABLE = re.compile(r"Error parsing --([\w-]+): (.*)")
_NO_CHOICE = re.compile(r"invalid choice '(.*)' for argument '([\w/-]+)'\. Expected one of \((.*?),?\)")
_MISSING = re.compile(r"Missing value for argument '--([\w-]+)'")
_MOST_SHOWN = 60


def _wanted(kind: Any) -> str | None:
    """What a value of a type must be: a number, or numbers; None for other types."""
    kinds = {kind, *get_args(kind)}
    several = next((k for k in kinds if getattr(k, "__origin__", None) is tuple), None)
    if several is not None:
        kinds = {*get_args(several)}
    if float in kinds:
        return "numbers" if several is not None else "a number"
    if int in kinds:
        return "whole numbers" if several is not None else "a whole number"
    return None


def _given(words: Sequence[str], option: str, several: bool) -> str:
    """The words that follow an option, up to the next one."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            rest = [value] if equals else list(words[place + 1 :])
            end = next((n for n, other in enumerate(rest) if other.startswith("--")), len(rest))
            return " ".join(rest[: end if several else 1])[:_MOST_SHOWN]
    return ""


def reworded(message: str, options: type, words: Sequence[str]) -> str:
    """The message of the parser in the words of its user.

    Args:
        message: of one line.
        options: the dataclass of the options.
        words: the command line.
    """
    if (missing := _MISSING.match(message)) is not None:
        return f"{missing[1].replace('-', '_')} has no value; give one after --{missing[1]}."
    if (choice := _NO_CHOICE.match(message)) is not None:
        # An option of several names is shown by the one that was used.
        names = choice[2].split("/")
        name = next((n for n in names if any(word.partition("=")[0] == n for word in words)), names[0])
        # The parser lists None if an option has no default, and the others in any order.
        choices = sorted(each for each in re.findall(r"'([^']*)'", choice[3]) if each != "None")
        try:
            check_choice(name[2:].replace("-", "_"), choice[1], choices)
        except UsageError as wrong:
            return str(wrong)
    if (unreadable := _UNREADABLE.match(message)) is None:
        return message
    name, reason = unreadable[1].replace("-", "_"), unreadable[2]
    if reason.startswith(f"{name} "):
        return reason
    wanted = _wanted(get_type_hints(options).get(name))
    shown = _given(words, f"--{unreadable[1]}", wanted is None or wanted.endswith("s"))
    return f"{name} is {shown!r}; {reason if wanted is None else f'it must be {wanted}.'}"

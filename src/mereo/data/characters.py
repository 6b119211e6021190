"""Whether classes are digits, letters or other signs, whose mirror images are other signs or none."""

from collections.abc import Sequence

AUGMENT = ("zoom=0.7:1",)
"""The default augmentation of signs: no flips, and no black borders on paper."""
_WORDS = {
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "digit", "letter", "char", "character", "symbol", "glyph", "upper", "lower", "uppercase", "lowercase",
}  # fmt: skip
_SIGNS = {"plus", "minus", "times", "divide", "equal", "equals", "dot", "comma", "dash", "slash", "hash", "star"}


def is_sign(name: str) -> bool:
    """Whether a class is named after a digit, a letter or a sign: "7", "A", "a_lower", "digit_3", "three"."""
    words = [word for word in name.replace("-", "_").replace(" ", "_").lower().split("_") if word]
    signs = [word for word in words if len(word) == 1 or word in _WORDS | _SIGNS]
    return bool(words) and len(signs) == len(words)


def are_signs(names: Sequence[str]) -> bool:
    """Whether nearly all classes are signs. Class numbers such as 17 decide nothing; single digits do."""
    return len(names) > 1 and sum(map(is_sign, names)) >= 0.9 * len(names)

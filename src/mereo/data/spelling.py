"""Labels that differ only in capitals or in the space around them: usually they are one class."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable

_SHOWN = 5


def joined(labels: Iterable[str], where: object) -> dict[str, str]:
    """The class of each spelling of a label: the commonest of all that differ only in capitals and outer space.

    Names of one character stay apart, because letters may be the classes. A warning names the joined labels.

    Args:
        labels: of all images.
        where: the folder or table, for the warning.
    """
    counts = Counter(labels)
    alike: dict[str, list[str]] = defaultdict(list)
    for label in counts:
        stripped = label.strip()
        alike[stripped.casefold() if len(stripped) > 1 else stripped].append(label)
    classes: dict[str, str] = {}
    for spellings in alike.values():
        name = max(spellings, key=lambda spelling: (counts[spelling], spelling)).strip()
        classes |= dict.fromkeys(spellings, name)
    several = [each for each in alike.values() if len({label.strip() for label in each}) > 1]
    names = {*classes.values()}
    letters = [name for name in names if len(name) == 1 and name < name.swapcase() and name.swapcase() in names]
    if several:
        shown = "; ".join(
            " and ".join(f"{label!r} ({counts[label]:,})" for label in sorted(each)) for each in several[:_SHOWN]
        )
        more = f"; and {len(several) - _SHOWN} more" if len(several) > _SHOWN else ""
        warnings.warn(
            f"{where} has labels that differ only in capitals or space, and are trained as one class each: {shown}"
            f"{more}. Rename them if they are different classes.", UserWarning, stacklevel=2,
        )  # fmt: skip
    elif letters and 2 * len(letters) < len(names):
        warnings.warn(
            f"{where} has the classes {letters[0]!r} and {letters[0].swapcase()!r}, letters that stay two classes.",
            UserWarning, stacklevel=2,
        )  # fmt: skip
    return classes

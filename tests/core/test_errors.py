"""The wording of refusals: nearest names, short catalogues, checks."""

from typing import Any

import pytest

from mereo.errors import MereoError, UsageError, check_choice, check_positive, check_probability, nearest, unknown


def test_kinds_of_error() -> None:
    assert issubclass(UsageError, ValueError) and issubclass(MereoError, RuntimeError)


def test_nearest_ignores_case_and_orders_by_likeness() -> None:
    known = ["CapsNet", "deepcaps", "mspcaps_t", "mspcaps_l"]
    assert nearest("capsnet", known, limit=1) == ["CapsNet"]
    assert nearest("mspcaps_tt", known, limit=2) == ["mspcaps_t", "mspcaps_l"]
    assert nearest("zzz", known) == []


def test_unknown_suggests_lists_or_counts() -> None:
    near = str(unknown("model", "capsnte", ["capsnet", "other"]))
    assert "'capsnte'" in near and "'capsnet'" in near and "other" not in near
    assert "'zzz'" in str(unknown("model", "zzz", ["b", "a"])) and "a, b" in str(unknown("model", "zzz", ["b", "a"]))
    many = str(unknown("model", "zzz", map(str, range(300))))
    assert "300" in many and "299" not in many
    assert isinstance(unknown("model", 3, ["a"]), UsageError)


def test_checks_pass_what_is_right() -> None:
    check_choice("over", "senders", ("senders", "receivers"))
    check_positive(a=1, b=0.1)
    check_probability(a=0.0, b=0.999)


@pytest.mark.parametrize("value", [0, -1, float("nan"), "3", None])
def test_check_positive_names_the_argument(value: Any) -> None:
    with pytest.raises(UsageError, match=f"b is {value!r}"):
        check_positive(a=1, b=value)


@pytest.mark.parametrize("value", [1.0, -0.1, float("nan"), "0.5", None])
def test_check_probability_names_the_argument(value: Any) -> None:
    with pytest.raises(UsageError, match=f"drop is {value!r}"):
        check_probability(drop=value)


def test_check_choice_lists_and_suggests() -> None:
    with pytest.raises(UsageError, match=r"over is 'sender'.*'senders', 'receivers'.*'senders'"):
        check_choice("over", "sender", ["senders", "receivers"])

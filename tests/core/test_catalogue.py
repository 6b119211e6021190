"""The catalogue: registration, listing, wrong names and facts."""

from typing import Any

import pytest
from torch import nn

import mereo.catalogue  # noqa: F401 - registers all of them
from mereo.core import MECHANISMS, depends, get_mechanism, list_mechanisms, mechanism
from mereo.core.catalogue import COMMON, PROMISES
from mereo.errors import UsageError
from mereo.mechanisms.attention import HopfieldAttention, MultiHeadAttention

FACTS: dict[str, Any] = {
    "family": "routing",
    "source": "arXiv:1710.09829",
    "over": "receivers",
    "example": lambda: (nn.Identity(), ()),
}


def test_entries_are_listed_by_pattern_and_family() -> None:
    assert {"multi_head", "hopfield"} <= set(list_mechanisms())
    assert "multi_head" in list_mechanisms("multi_h*") and "hopfield" not in list_mechanisms("multi_h*")
    assert "hopfield" in list_mechanisms(family="memory") and "multi_head" not in list_mechanisms(family="memory")
    entry = get_mechanism("multi_head")
    assert entry.target is MultiHeadAttention
    assert (entry.family, entry.room) == ("dense attention", "mechanisms.attention.dense")
    assert entry.summary.startswith("Replace each token")
    assert get_mechanism("hopfield").target is HopfieldAttention


def test_a_fact_that_an_argument_decides_is_shown_as_such() -> None:
    assert get_mechanism("multi_head").facts()["couplings sum over"] == "senders (argument over)"
    assert get_mechanism("dynamic").facts()["steps"] == "3 (argument steps)"


def test_compile_export_and_half_precision_are_promised_unless_a_reason_is_given(monkeypatch: Any) -> None:
    monkeypatch.setattr("mereo.core.catalogue.MECHANISMS", {})
    mechanism("new", **FACTS)(nn.Identity)
    mechanism("other", lacks={"export": "it calls a library"}, **FACTS)(nn.Identity)
    assert get_mechanism("new").promises == set(COMMON)
    assert get_mechanism("other").promises == set(COMMON) - {"export"}
    assert get_mechanism("other").promised() == {name: name in COMMON and name != "export" for name in PROMISES}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"over": "keys"}, "over is 'keys'"),
        ({"over": depends("over", "keys")}, "over is 'keys'"),
        ({"family": "rooting"}, "family is 'rooting'"),
        ({"records": "coupling"}, "records is 'coupling'"),
        ({"promises": ("mask",)}, "promises is 'mask'"),
        ({"promises": "masks"}, "promises is 'masks'"),
        ({"promises": ("any sender order",)}, "sender_axes is empty"),
        ({"promises": ("any receiver order",)}, "receiver_axes is empty"),
        ({"over": "none", "promises": ("normalised",)}, "over is 'none'"),
        ({"lacks": {"masks": "why"}}, "lacks is 'masks'"),
        ({"lacks": {"export": ""}}, "lacks has ''"),
        ({"zero_gradients": {"weight": " "}}, "zero_gradients has ' '"),
        ({"largest_input": 0}, "largest_input is 0"),
        ({"source": "somewhere"}, "source is 'somewhere'"),
    ],
)
def test_wrong_facts(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        mechanism("new", **FACTS | change)(nn.Identity)
    assert "new" not in MECHANISMS


def test_wrong_names() -> None:
    with pytest.raises(UsageError, match="'multi_head'"):
        get_mechanism("multi_heat")
    with pytest.raises(UsageError, match="family is 'atention'"):
        list_mechanisms(family="atention")
    with pytest.raises(UsageError, match="registered twice"):
        mechanism("multi_head", **FACTS)(nn.Identity)

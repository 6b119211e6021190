"""The catalogue: registration, listing, wrong names and facts."""

import pytest
from torch import nn

from mereo.attention import HopfieldAttention, MultiHeadAttention
from mereo.core import MECHANISMS, get_mechanism, list_mechanisms, mechanism
from mereo.errors import UsageError


def test_attention_is_listed() -> None:
    assert {"multi_head", "hopfield"} <= set(list_mechanisms())
    assert list_mechanisms("multi_h*") == ["multi_head"]
    row = get_mechanism("multi_head")
    assert row.module is MultiHeadAttention and (row.kind, row.over, row.steps) == ("attention", "senders", 1)
    assert row.summary.startswith("Let each token")
    assert get_mechanism("hopfield").module is HopfieldAttention


def test_wrong_names_and_facts() -> None:
    facts = {"steps": 1, "says": "", "update": "", "paper": "", "example": lambda: (nn.Identity(), ())}
    with pytest.raises(UsageError, match="did you mean 'multi_head'"):
        get_mechanism("multi_heat")
    with pytest.raises(UsageError, match="over is 'keys'"):
        mechanism("new", kind="attention", over="keys", **facts)
    with pytest.raises(UsageError, match="kind is 'atention'"):
        mechanism("new", kind="atention", over="senders", **facts)
    with pytest.raises(UsageError, match="registered twice"):
        mechanism("multi_head", kind="attention", over="senders", **facts)(nn.Identity)
    assert "new" not in MECHANISMS

"""The experiment on power law graphs: how another last byte moves earlier scores in both scopes."""

import torch

from papers.pldr_llm.graph_spread import leak, make


def test_another_last_byte_moves_earlier_scores_with_the_scope_of_all_alone() -> None:
    prompts = torch.randint(256, (3, 12), generator=torch.Generator().manual_seed(0))
    moved = {scope: leak(make(scope, 0), prompts) for scope in ("all", "prefix")}
    assert all(found.shape == (3, 11) and found.dtype == torch.float64 for found in moved.values())
    assert not moved["prefix"].any() and not moved["all"][:, 0].any() and (moved["all"][:, 1:] > 1e-3).all()

"""Aaren in a decoder: causal attention of a learned query, which reads any number of tokens with a state of fixed size.

Source: arXiv:2405.13956, where it stands in transformers for decisions, events, forecasts and classification; the
decoder of text is ours.
Cost: see `mereo.mechanisms.scan.Aaren`; positions are sines added to the embedding.
"""

from mereo.models.registry import register_model
from mereo.models.sequence.causal_transformer import CausalTransformer

register_model(
    "aaren_tiny",
    CausalTransformer,
    "Attention as a recurrence: four layers of 64 for text as bytes, as large as causal_transformer_tiny to 1 %.",
    source="arXiv:2405.13956",
    parameters=214_016,
    tiny={"dim": 12, "depth": 2, "num_heads": 3, "hidden_dim": 20, "context": 16, "vocab_size": 31},
    family="aaren",
    mechanism="aaren",
    sines=True,
)

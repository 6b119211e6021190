"""The template of token mixers, its instances, and the mixing matrices of any mechanism: extracted, measured, drawn."""

from mereo.mechanisms.mixer.template.attentions import DecayMix, KernelMix, LowRankMix, SoftmaxMix
from mereo.mechanisms.mixer.template.base import Mix, TokenMixer, multiply
from mereo.mechanisms.mixer.template.extraction import MixingFacts, mixing_facts, mixing_matrix, token_jacobian
from mereo.mechanisms.mixer.template.fixed import (
    ConvolutionMix,
    FilterMix,
    FourierMix,
    FourierValue,
    LearnedMix,
    PoolingMix,
    StateSpaceMix,
)
from mereo.mechanisms.mixer.template.instances import INSTANCES, Instance, make_mixer
from mereo.mechanisms.mixer.template.pictures import draw_mixing_matrices

__all__ = [
    "INSTANCES",
    "ConvolutionMix",
    "DecayMix",
    "FilterMix",
    "FourierMix",
    "FourierValue",
    "Instance",
    "KernelMix",
    "LearnedMix",
    "LowRankMix",
    "Mix",
    "MixingFacts",
    "PoolingMix",
    "SoftmaxMix",
    "StateSpaceMix",
    "TokenMixer",
    "draw_mixing_matrices",
    "make_mixer",
    "mixing_facts",
    "mixing_matrix",
    "multiply",
    "token_jacobian",
]

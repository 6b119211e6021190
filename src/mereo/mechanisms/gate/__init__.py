"""Gates: features multiplied by a function of themselves, one file a mechanism."""

from mereo.mechanisms.gate.capsule_gate import CapsuleGate
from mereo.mechanisms.gate.cbam import CBAM
from mereo.mechanisms.gate.convolution_gate import ConvolutionGate
from mereo.mechanisms.gate.coordinate_attention import CoordinateAttention
from mereo.mechanisms.gate.efficient_channel_gate import EfficientChannelGate
from mereo.mechanisms.gate.ela import ELA
from mereo.mechanisms.gate.gaam import GAAM
from mereo.mechanisms.gate.gaam_features import GAAMFeatures, LayerStackHead, importance_factor
from mereo.mechanisms.gate.mixer_gate import MixerGate
from mereo.mechanisms.gate.polarized_self_attention import PolarizedSelfAttention
from mereo.mechanisms.gate.published import load_published
from mereo.mechanisms.gate.squeeze_excite import SqueezeExcite
from mereo.mechanisms.gate.ulsam import ULSAM

__all__ = [
    "CBAM",
    "ELA",
    "GAAM",
    "ULSAM",
    "CapsuleGate",
    "ConvolutionGate",
    "CoordinateAttention",
    "EfficientChannelGate",
    "GAAMFeatures",
    "LayerStackHead",
    "MixerGate",
    "PolarizedSelfAttention",
    "SqueezeExcite",
    "importance_factor",
    "load_published",
]

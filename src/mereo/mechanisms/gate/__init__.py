"""Gates: features multiplied by a function of themselves, one file a mechanism."""

from mereo.mechanisms.gate.capsule_gate import CapsuleGate
from mereo.mechanisms.gate.efficient_channel_gate import EfficientChannelGate
from mereo.mechanisms.gate.mixer_gate import MixerGate
from mereo.mechanisms.gate.squeeze_excite import SqueezeExcite

__all__ = ["CapsuleGate", "EfficientChannelGate", "MixerGate", "SqueezeExcite"]

"""Gates: features multiplied by a function of themselves, one file a mechanism."""

from mereo.gate.capsule_gate import CapsuleGate
from mereo.gate.efficient_channel_gate import EfficientChannelGate
from mereo.gate.mixer_gate import MixerGate
from mereo.gate.squeeze_excite import SqueezeExcite

__all__ = ["CapsuleGate", "EfficientChannelGate", "MixerGate", "SqueezeExcite"]

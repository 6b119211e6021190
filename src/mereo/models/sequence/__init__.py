"""Networks that read sequences of tokens, one file each with its presets."""

from mereo.models.sequence.causal_transformer import CausalTransformer as CausalTransformer
from mereo.models.sequence.combiner import CombinerTransformer as CombinerTransformer
from mereo.models.sequence.pointer_network import PointerNetwork as PointerNetwork
from mereo.models.sequence.routing_transformer import RoutingTransformer as RoutingTransformer
from mereo.models.sequence.tnl import TNL as TNL

"""Interventions: changes to a running model (model -> context manager), one file each."""

from mereo.interventions.attencraft import attencraft as attencraft
from mereo.interventions.isolate_and_reposition import isolate_and_reposition as isolate_and_reposition
from mereo.interventions.paint import contrast as contrast
from mereo.interventions.paint import head_sensitivity as head_sensitivity
from mereo.interventions.paint import paint as paint
from mereo.interventions.paint import select_tokens as select_tokens
from mereo.interventions.redistribute_visual_attention import find_sink_dimensions as find_sink_dimensions
from mereo.interventions.redistribute_visual_attention import (
    redistribute_visual_attention as redistribute_visual_attention,
)
from mereo.interventions.vision_aware_heads import folded as folded
from mereo.interventions.vision_aware_heads import token_divergence as token_divergence
from mereo.interventions.vision_aware_heads import vision_aware_divergence as vision_aware_divergence
from mereo.interventions.vision_aware_heads import vision_aware_heads as vision_aware_heads

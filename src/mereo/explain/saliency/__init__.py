"""Maps of what a prediction depends on, by many methods under one interface, and checks of these methods."""

from mereo.explain.saliency.checks import Mean as Mean
from mereo.explain.saliency.checks import SaliencyChecks as SaliencyChecks
from mereo.explain.saliency.checks import check_saliency as check_saliency
from mereo.explain.saliency.checks import class_sensitivity as class_sensitivity
from mereo.explain.saliency.checks import perturbation_curves as perturbation_curves
from mereo.explain.saliency.checks import pointing_game as pointing_game
from mereo.explain.saliency.checks import randomised_weights as randomised_weights
from mereo.explain.saliency.flow import attention_flow as attention_flow
from mereo.explain.saliency.meta import meta_saliency as meta_saliency
from mereo.explain.saliency.methods import METHODS as METHODS
from mereo.explain.saliency.methods import PRESETS as PRESETS
from mereo.explain.saliency.methods import Saliency as Saliency
from mereo.explain.saliency.methods import extract_aggregate as extract_aggregate
from mereo.explain.saliency.methods import saliency_map as saliency_map
from mereo.explain.saliency.signals import LayerSignal as LayerSignal
from mereo.explain.saliency.signals import layer_signals as layer_signals
from mereo.explain.saliency.two_phase import aggregate as aggregate
from mereo.explain.saliency.two_phase import combine_layers as combine_layers

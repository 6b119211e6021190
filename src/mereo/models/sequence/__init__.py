"""Networks that read sequences of tokens, one file each with its presets."""

import mereo.models.sequence.aaren
import mereo.models.sequence.combiner
import mereo.models.sequence.rcmha
import mereo.models.sequence.routing_transformer
import mereo.models.sequence.tnl  # noqa: F401
from mereo.models.sequence.causal_transformer import CausalTransformer as CausalTransformer
from mereo.models.sequence.oat import ObjectAttentionTransformer as ObjectAttentionTransformer
from mereo.models.sequence.pldr_llm import PLDRLLM as PLDRLLM
from mereo.models.sequence.pointer_network import PointerNetwork as PointerNetwork
from mereo.models.sequence.question_reader import QuestionReader as QuestionReader
from mereo.models.sequence.skeleton_ensemble import SkeletonEnsemble as SkeletonEnsemble
from mereo.models.sequence.skeleton_ensemble import SkeletonNetwork as SkeletonNetwork
from mereo.models.sequence.tensor_attention import TensorTransformer as TensorTransformer
from mereo.models.sequence.tensor_brain import TensorBrain as TensorBrain
from mereo.models.sequence.tinydiff import TinyDiff as TinyDiff
from mereo.models.sequence.tinyvl import TinyVL as TinyVL

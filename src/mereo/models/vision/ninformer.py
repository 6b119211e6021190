"""NiNformer: blocks in which a network inside the network makes the gates, without attention.

Source: Abdullah, Aydin 2024, arXiv:2403.02411, with sizes and start of the authors' code.
Cost: 54.5 M multiply-adds an image and block at 64 tokens of 256 channels.
"""

from collections.abc import Iterator
from functools import partial

from torch import Tensor, nn

from mereo.core.shapes import image_size
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_positive
from mereo.layers import FeedForward
from mereo.mechanisms.gate.mixer_gate import MixerGate
from mereo.models.base import VisionModel
from mereo.models.layout import Pair, register_layout
from mereo.models.registry import register_model


class NiNBlock(nn.Module):
    """x += gate(norm x); x += feed_forward(norm x), by default with one norm for both.

    Args:
        dim, num_tokens, hidden_dim, dropout: see `MixerGate`.
        shared_norm: whether both lines share their norm, as in the authors' code.

    Shapes: maps (batch, dim, rows, columns), in channels-last memory -> the same.
    """

    def __init__(
        self, dim: int, num_tokens: int, hidden_dim: int, dropout: float = 0.0, shared_norm: bool = True
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.second_norm = None if shared_norm else nn.LayerNorm(dim)
        self.gate = MixerGate(dim, num_tokens, hidden_dim, dropout)
        self.feed_forward = FeedForward(dim, hidden_dim, dropout)

    def forward(self, maps: Tensor) -> Tensor:
        x = maps.permute(0, 2, 3, 1).flatten(1, 2)
        x = x + self.gate(self.norm(x))
        x = x + self.feed_forward((self.second_norm or self.norm)(x))
        return x.unflatten(1, maps.shape[2:]).permute(0, 3, 1, 2)


class NiNformer(VisionModel):
    """Classify with blocks that multiply tokens by what a Mixer makes of all of them.

    x = patches(image);  blocks: x += (W z + b) * mixer(z) with z = norm x,  x += feed_forward(norm x);
    scores = W mean(x) + b

    Args:
        num_classes, in_chans, img_size: as in timm; a network is for images of its size.
        patch_size: side of the patches, which divides the side of the images.
        dim, depth: channels and number of blocks.
        hidden_dim: hidden units along tokens and along channels.
        dropout: after the activation and after the second layer of every feed-forward.
        shared_norm: whether the two lines of a block share their norm.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes); the map of each block is
        (batch, dim, height / patch_size, width / patch_size).

    Reference: arXiv:2403.02411, sections 3 and 4.
    """

    first_conv = "patches"

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        patch_size: int = 4,
        dim: int = 256,
        depth: int = 4,
        hidden_dim: int = 512,
        dropout: float = 0.5,
        shared_norm: bool = True,
    ) -> None:
        super().__init__()
        check_positive(patch_size=patch_size, dim=dim, depth=depth, hidden_dim=hidden_dim)
        height, width = image_size(img_size)
        if min(height, width) < patch_size:
            raise UsageError(f"img_size is {img_size}; no patch of {patch_size} x {patch_size} fits. Give more.")
        self.image_shape, self.num_features = (in_chans, height, width), dim
        self.patches = nn.Conv2d(in_chans, dim, patch_size, patch_size)
        num_tokens = (height // patch_size) * (width // patch_size)
        self.stages = nn.ModuleList(NiNBlock(dim, num_tokens, hidden_dim, dropout, shared_norm) for _ in range(depth))
        self.feature_info = [{"num_chs": dim, "reduction": patch_size, "module": f"stages.{i}"} for i in range(depth)]
        self.reset_classifier(num_classes)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        # The variances of larger entries overflow in the norms.
        return self.stages[index](self.patches(bounded(inputs)) if index == 0 else inputs)

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes)


def _pairs(model: NiNformer) -> Iterator[Pair]:
    """The names of the classifier in the authors' training script."""
    yield Pair("patches", "patcher")
    gate = {"token_norm": "token_mix.0", "channel_norm": "channel_mix.0"}
    gate |= {f"token_mixing.{layer}": f"token_mix.2.net.{i}" for layer, i in (("first", 0), ("second", 3))}
    gate |= {f"channel_mixing.{layer}": f"channel_mix.1.net.{i}" for layer, i in (("first", 0), ("second", 3))}
    for i in range(len(model.stages)):
        yield Pair(f"stages.{i}.norm", f"model.{i}.norm")
        yield from (Pair(f"stages.{i}.gate.{ours}", f"model.{i}.mgu.Mixer.{theirs}") for ours, theirs in gate.items())
        yield Pair(f"stages.{i}.gate.proj", f"model.{i}.mgu.proj")
        yield Pair(f"stages.{i}.feed_forward.first", f"model.{i}.ffn.net.0")
        yield Pair(f"stages.{i}.feed_forward.second", f"model.{i}.ffn.net.3")
    yield Pair("head", "classifier")


register_layout("official", NiNformer, _pairs)

_register = partial(register_model, module=NiNformer, source="arXiv:2403.02411", mean=0.5, std=0.5, recipe="ninformer")

_register(
    "ninformer_cifar",
    summary="NiNformer for colour images of 32 x 32.",
    parameters=2_652_170,
    tiny={"img_size": 8, "dim": 12, "depth": 2, "hidden_dim": 8},
    variants={"two norms": {"shared_norm": False}},
)
_register(
    "ninformer_mnist",
    summary="NiNformer for grey images of 28 x 28.",
    parameters=2_582_478,
    in_chans=1,
    img_size=28,
)

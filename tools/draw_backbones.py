"""Draw docs/images/backbones: what each backbone attends to on a photograph of scikit-learn, with random weights.

Run as `python tools/draw_backbones.py [NETWORK ...]`. Without trained weights a picture shows where a network can look,
not what it has learned. Photograph: danielbuechele, CC BY 2.0, cropped.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_image

import mereo
from mereo.bench.suites.backbones import randomise
from mereo.explain import draw_attention

FOLDER = Path(__file__).parent.parent / "docs" / "images" / "backbones"
NETWORKS: dict[str, dict[str, int]] = {
    "cait_xxs24_224": {"layers": 0, "heads": 2},
    "davit_tiny": {"layers": 3},
    "halonet26t": {"layers": 3},
    "maxvit_tiny_tf_224": {"layers": 3},
    "volo_d1_224": {"layers": 2, "heads": 0},
    "shvit_s1": {"layers": 3},
    "biformer_tiny": {"layers": 3},
    "spectformer_tiny": {"layers": 1, "maps": 2},
    "spectformer_h_small": {"layers": 2, "heads": 2, "maps": 2},
    "ninformer_cifar": {},
}
"""Each with how much of it to draw: see `draw_attention`."""
WIDTH, COLOURS = 1000, 96


def draw(name: str) -> Path:
    """Draw one network, as a picture of few colours."""
    torch.manual_seed(0)
    model = mereo.create_model(name).eval()
    randomise(model)
    photo = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)[None].float() / 255
    square = photo[..., : photo.shape[2]]
    images = F.interpolate(square, model.image_shape[1:], mode="bicubic", antialias=True).clamp(0, 1)
    place = (0.55 * images.shape[2], 0.35 * images.shape[3])
    path = draw_attention(model, images, FOLDER / f"{name}.png", place=place, **NETWORKS[name])
    with Image.open(path) as picture:
        height = round(picture.height * WIDTH / picture.width)
        small = picture.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
    small.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or NETWORKS:
        print(draw(name))

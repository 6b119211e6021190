"""Experiments that answer a question of a paper: a file each with `run(settings)`, run by `mereo reproduce NAME`.

`run` draws its pictures into `settings.folder` and returns plain numbers, strings, lists and dicts; they are written to
`results.json` next to the pictures. The command prints three entries of that dict:

    tables    title -> rows, each a dict column -> value
    notes     lines below the tables
    pictures  names of the files drawn

This module imports no torch.
"""

import json
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mereo.experiments.settings import Settings


@dataclass(frozen=True)
class Experiment:
    """One experiment: its question, its source, and the module of this folder that has its `run`.

    Attributes:
        uses: the settings it uses besides the folder; any other is a UsageError.
        data: its default data set; None where it needs none.
    """

    question: str
    source: str
    module: str
    uses: frozenset[str] = frozenset()
    data: str | None = None

    def run(self, settings: Settings) -> dict[str, Any]:
        """Run it, write results.json and return its content; `files` lists all files written."""
        from mereo.files import write_atomically

        settings.folder.mkdir(parents=True, exist_ok=True)
        results: dict[str, Any] = import_module(f"{__name__}.{self.module}").run(settings)
        path = settings.folder / "results.json"
        files = [str(settings.folder / name) for name in results.get("pictures", ())]
        results = {**results, "files": [*files, str(path)]}
        write_atomically(path, (json.dumps(results, indent=2) + "\n").encode())
        return results


__all__ = ["EXPERIMENTS", "Experiment", "Settings"]

TRAINING = frozenset({"data", "data_root", "epochs", "limit", "batch_size", "device", "images"})
"""The settings of an experiment that trains networks on a data set."""

EXPERIMENTS: dict[str, Experiment] = {
    "toy_routing": Experiment(
        "What does a penalty on the parents do, and where does its sparsity come from?",
        "arXiv:2209.02567, appendix B",
        "toy_routing",
    ),
    "kiefer_routing": Experiment(
        "Does CapsNet need routing or a decoder to be accurate and sparse?",
        "arXiv:2209.02567, appendix A",
        "kiefer_routing",
        TRAINING | {"variants", "seeds", "warmup_epochs"},
        data="mnist",
    ),
    "sparse_inference": Experiment(
        "Does sparse inference achieve what routing aims at?",
        "arXiv:2209.02567, section 3.1",
        "sparse_inference",
        TRAINING,
        data="digits",
    ),
    "top_down": Experiment(
        "Does top-down attention divide the parts of two overlaid digits between two parents?",
        "arXiv:2209.02567, section 3.2",
        "top_down",
        TRAINING,
        data="digits",
    ),
    "generative_parts": Experiment(
        "What do parents represent that explain the parts of images, trained without labels?",
        "arXiv:2209.02567, equations 7 and 8; the inversion and the training are ours",
        "generative_parts",
        TRAINING,
        data="digits",
    ),
    "sparse_capsules": Experiment(
        "Do capsules that compete to rebuild images serve a classifier better than capsules trained with labels?",
        "arXiv:1804.06094",
        "sparse_capsules",
        (TRAINING | {"variants", "seeds"}) - {"images"},
        data="mnist",
    ),
    "capsule_directions": Experiment(
        "Does an affine change of the image move the capsule of its class along one direction?",
        "arXiv:1907.01750, section 4; the measure and the controls are ours",
        "capsule_directions",
        TRAINING | {"seeds"},
        data="digits",
    ),
    "constellations": Experiment(
        "Which inference assigns points to objects better: variational, or routing?",
        "arXiv:2103.06676, arXiv:2209.02567",
        "constellations",
        frozenset({"seeds", "epochs", "images"}),
    ),
    "probabilistic_capsules": Experiment(
        "Does test-time optimisation repair what an encoder gets wrong about parents and their poses?",
        "arXiv:2004.03553",
        "probabilistic_capsules",
        frozenset({"seeds", "epochs", "images"}),
    ),
    "capsule_head": Experiment(
        "What does a capsule head change, compared with a linear head on the same maps of a backbone?",
        "arXiv:2508.16922; capsules on other backbones are ours",
        "capsule_head",
        TRAINING,
        data="cifar10",
    ),
    "layer_scale": Experiment(
        "Which residual branches make 24 and 36 layers trainable?",
        "arXiv:2103.17239, section 2 and table 1",
        "layer_scale",
        TRAINING | {"variants", "seeds"},
        data="cifar10",
    ),
    "class_attention": Experiment(
        "Where should the class token join: in the first layer, late, or by class attention?",
        "arXiv:2103.17239, section 3 and table 2",
        "class_attention",
        TRAINING | {"seeds"},
        data="cifar10",
    ),
    "spectral_layers": Experiment(
        "Do spectral blocks before attention do better than attention or spectral blocks only, at the same size?",
        "arXiv:2304.06446, sections 3 and 4",
        "spectral_layers",
        TRAINING | {"seeds"},
        data="cifar10",
    ),
    "mixer_gating": Experiment(
        "Does it help that the Mixer in NiNformer multiplies the tokens?",
        "arXiv:2403.02411, section 4",
        "mixer_gating",
        TRAINING | {"seeds"},
        data="mnist",
    ),
    "clear": Experiment(
        "Does a diffusion transformer keep its output when its image tokens attend to circles?",
        "arXiv:2412.16112, section 3",
        "clear",
        TRAINING,
        data="digits",
    ),
    "neighborhood": Experiment(
        "How much faster is neighbourhood attention by products of tiles, and fused, than by copying every window?",
        "arXiv:2403.04690",
        "neighborhood",
    ),
    "evit": Experiment(
        "What does it cost, and save, to drop the patches that the class token attends to least?",
        "arXiv:2202.07800, section 4",
        "evit",
        TRAINING | {"seeds"},
        data="cifar10",
    ),
    "token_mixers": Experiment(
        "Which token mixers are one template, and what do their mixing matrices look like?",
        "arXiv:2302.06218",
        "token_mixers",
    ),
    "language_models": Experiment(
        "What does linear attention with decay cost in bits per byte, and how fast is it, against softmax attention?",
        "arXiv:2405.17381, tables 1 and 2 and figure 1; networks and text are ours",
        "language_models",
        TRAINING | {"seeds"},
        data="pystdlib",
    ),
    "far_recall": Experiment(
        "Which sparse attention finds a token far away by its content?",
        "arXiv:2003.05997, section 1; the task is ours",
        "far_recall",
        frozenset({"epochs", "batch_size", "seeds", "device", "variants"}),
    ),
    "sparse_text": Experiment(
        "What does sparse attention lose on text, and what do clusters or summaries of regions win back?",
        "arXiv:2003.05997 and arXiv:2107.05768, tables of perplexities",
        "sparse_text",
        TRAINING | {"variants", "seeds"},
        data="pystdlib",
    ),
    "sea": Experiment(
        "Can attention in linear time take the place of a trained network's?",
        "arXiv:2310.01777, section 4; the task is ours",
        "sea_attention",
        TRAINING,
        data="digits",
    ),
    "sparsifiner": Experiment(
        "How few keys does a query need if a predictor chooses them?",
        "arXiv:2303.13755, section 4; the task is ours",
        "sparsifiner_attention",
        TRAINING,
        data="digits",
    ),
    "ring_attention": Experiment(
        "Is attention over several processes exact, what does it send, and what does it gain?",
        "arXiv:2302.06218",
        "ring_attention",
    ),
    "mixture_of_heads": Experiment(
        "Does a network stay accurate when each token uses some of the heads, and are all heads used?",
        "arXiv:2410.11842",
        "mixture_of_heads",
        (TRAINING | {"seeds"}) - {"images"},
        data="digits",
    ),
    "defaults": Experiment(
        "How near are the settings that follow from the data to the best of a tuned grid?",
        "ours",
        "defaults",
        frozenset({"data_root", "epochs", "limit", "device", "seeds", "variants"}),
    ),
}

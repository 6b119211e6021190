"""AttenCraft: several concepts from one image (arXiv:2405.17965)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "AttenCraft: attention-guided disentanglement of multiple concepts for text-to-image customization",
    "arXiv:2405.17965",
    experiments={
        "noisy_maps": Experiment(
            "How right are the masks of two concepts as cross-attention gets noisy, with and without self-attention?",
            "arXiv:2405.17965, its masks; the attention maps are constructed",
            uses=frozenset({"images", "seeds"}),
            smallest={"data": None, "images": 2},
        ),
        "two_textures": Experiment(
            "Two textures learned from one image: do their words draw the one that is wanted, and not the other?",
            "arXiv:2405.17965; network, image and probe are ours",
            uses=frozenset({"images", "seeds", "variants"}),
            smallest={"data": None, "images": 2, "variants": ("mask and attention",)},
            constants={"STEPS": 2, "PROBE_STEPS": 2, "SHOWN": 2},
        ),
    },
)

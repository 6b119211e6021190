"""AttenCraft: several concepts from one image (arXiv:2405.17965)."""

from papers.common.paper import Experiment, Paper

PAPER = Paper(
    "AttenCraft: attention-guided disentanglement of multiple concepts for text-to-image customization",
    "arXiv:2405.17965",
    experiments={
        "two_textures": Experiment(
            "Which masks, losses and samplers teach two words from one image without mixing them?",
            "arXiv:2405.17965, the question of its tables; network and image are ours",
            "papers.attencraft.two_textures",
            frozenset({"images", "seeds"}),
            smallest={"data": None, "images": 2},
            constants={"STEPS": 1, "PROBE_STEPS": 2, "SAMPLINGS": ("reweighted",)},
        ),
    },
)

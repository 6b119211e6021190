"""PLDR-LLM and power law graph attention (arXiv:2502.13502)."""

from papers.common.paper import TRAINING, Experiment, Paper

PAPER = Paper(
    "PLDR-LLM: keys, values and graphs kept while generating",
    "arXiv:2502.13502",
    experiments={
        "graph_spread": Experiment(
            "Does G depend on the prompt, before and after training, and what does a learned G gain?",
            "arXiv:2502.13502, sections 3 and 4; text and sizes are ours",
            uses=(TRAINING - {"device"}) | {"seeds", "variants"},
            data="pystdlib",
            smallest={"data": "pystdlib", "limit": 8, "images": 2, "batch_size": 4},
            constants={"PROMPTS": 3},
        ),
    },
    suites={"power_law_decoding": "papers.pldr_llm.suite:POWER_LAW_DECODING"},
)

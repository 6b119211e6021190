"""Power law graph attention on text: learned, fixed and no matrices G, and how much G depends on the prompt.

In one pass over a window, a G of all tokens depends on the tokens to be predicted; how much is measured by another last
byte. The networks are therefore compared on second halves of windows, with G made of the first half alone, as it is
when text is generated.
"""

import copy
import math
import statistics
from typing import Any

import torch
from torch import Tensor

from mereo.data import TokenWindows
from mereo.mechanisms.attention.dense.power_law_graph import SCOPES, Deduced
from mereo.models import create_model
from mereo.models.sequence import PLDRLLM
from mereo.tasks.language import LanguageObjective, inputs_and_targets, token_losses
from papers.common.fitting import batches, fit
from papers.common.measures import span
from papers.common.pictures import draw_curves, draw_runs
from papers.common.settings import Settings

ALL = "all"
VARIANTS: dict[str, dict[str, Any]] = {
    ALL: {},
    "prefix": {"metric_scope": "prefix"},
    "identity": {"graph": "identity"},
    "random": {"graph": "given"},
}
"""G learned, of all tokens or of each prefix; the identity, which is plain attention; and fixed from the start."""
CONTEXT, BATCH = 64, 16
RATE, WARMUP, SECOND_MOMENT = 3e-3, 0.1, 0.95
"""Peak rate, epochs in which it rises, beta_2."""
WINDOWS, TESTED, PROMPTS = 16_000, 512, 64
"""Windows to train on, an epoch by default, and to test on; prompts over which G is compared."""
CPU = torch.device("cpu")
BITS, LEAK = "bits.png", "leak.png"


def make(name: str, seed: int) -> PLDRLLM:
    """A network with its weights drawn from a seed."""
    torch.manual_seed(seed)
    model: Any = create_model("pldr_llm_tiny", context=CONTEXT, **VARIANTS[name])
    return model


def _kept(model: PLDRLLM, tokens: Tensor) -> Tensor:
    """Scores of the second half, after the first half was read as the prompt."""
    _, state = model.extend(tokens[:, : CONTEXT // 2])
    return model.extend(tokens[:, CONTEXT // 2 :], state)[0]


@torch.inference_mode()
def second_half(model: PLDRLLM, test: TokenWindows) -> dict[str, float]:
    """Bits per byte of second halves with G kept and in one pass, and how far apart their scores are."""
    kept, once, count, apart = 0.0, 0.0, 0, 0.0
    model.eval()
    for batch in batches(test, BATCH, CPU):
        inputs, targets = inputs_and_targets(batch)
        of_prompt, of_all = _kept(model, inputs), model(inputs)[:, CONTEXT // 2 :]
        wanted = targets[:, CONTEXT // 2 :]
        total, counted = token_losses(of_prompt, wanted)
        kept, count = kept + total.item(), count + int(counted)
        once += token_losses(of_all, wanted)[0].item()
        apart = max(apart, (of_prompt - of_all).abs().max().item())
    nats = count * math.log(2)
    return {"kept": kept / nats, "one pass": once / nats, "apart": apart}


@torch.inference_mode()
def spread(model: PLDRLLM, prompts: Tensor) -> dict[str, dict[str, float]]:
    """For each deductive output: its size, how far prompts are apart, and its determinant, over layers and heads.

    Shapes: prompts int64 (prompts, tokens).
    """
    _, state = copy.deepcopy(model).double().eval().extend(prompts)
    rows = {}
    for name in Deduced._fields:
        # (layers, prompts, heads, d, d)
        values = torch.stack([getattr(block.deduced, name) for block in state.blocks])
        size = values.square().mean().sqrt().item()
        between = (values - values.mean(1, keepdim=True)).square().mean().sqrt().item()
        rows[name] = {
            "root mean square": size,
            "deviation between prompts": between,
            "relative": between / size,
            "log10 of the determinant": values.det().abs().clamp(min=1e-300).log10().median().item(),
        }
    return rows


@torch.inference_mode()
def leak(model: PLDRLLM, prompts: Tensor) -> Tensor:
    """How far another last token moves the scores of each position before it, in float64.

    Shapes: prompts int64 (prompts, tokens) -> (prompts, tokens - 1), the largest of the scores of a position.
    """
    model, others = copy.deepcopy(model).double().eval(), prompts.clone()
    others[:, -1] = (others[:, -1] + 1) % model.embedding.num_embeddings
    return (model(others) - model(prompts))[:, :-1].abs().amax(-1)


def _train(name: str, train: TokenWindows, settings: Settings, seed: int) -> PLDRLLM:
    model = make(name, seed)
    objective = LanguageObjective(model.train())
    fit(
        lambda batch: objective(batch)[0], model.parameters(), train, epochs=settings.epochs or 1,
        batch_size=settings.batch_size or BATCH, lr=RATE, device=CPU, title=f"{name}, seed {seed}", say=settings.say,
        seed=seed, warmup_epochs=WARMUP, second_moment=SECOND_MOMENT,
    )  # fmt: skip
    return model


def run(settings: Settings) -> dict[str, Any]:
    """Tables of bits per byte, of the leak, and of the spread of the deductive outputs before and after training."""
    data = str(settings.data)
    train, whole = settings.windows(CONTEXT, WINDOWS)
    tested = min(settings.images or TESTED, len(whole) - 1)
    test = whole.subset(torch.arange(tested) * ((len(whole) - 1) // tested))
    count = min(PROMPTS, len(whole) - 1)
    prompts = whole.batch(torch.arange(count) * ((len(whole) - 1) // count)).tokens
    assert prompts is not None
    leaks = {scope: leak(make(scope, 0), prompts[:, :-1]) for scope in SCOPES}
    rows, spreads, kept = [], [], dict[str, list[float]]()
    for name in settings.chosen(VARIANTS):
        runs = []
        for seed in range(settings.seeds):
            model = _train(name, train, settings, seed)
            runs.append(second_half(model, test))
            if name == ALL and seed == 0:
                start = make(name, seed)
                before, after = spread(start, prompts[:, :-1]), spread(model, prompts[:, :-1])
                spreads = [
                    {"output": output, "network": when, **figures[output]}
                    for output in Deduced._fields
                    for when, figures in (("before training", before), ("after", after))
                ]
                untrained = second_half(start, test)["apart"]
        bits = kept[name] = [each["kept"] for each in runs]
        rows.append(
            {
                "G": name,
                "parameters": sum(p.numel() for p in model.parameters()),
                **span("bits per byte, G kept", bits),
                "bits per byte, one pass": statistics.mean(each["one pass"] for each in runs),
                "scores apart": max(each["apart"] for each in runs),
            }
        )
        settings.say(f"{name}: {statistics.mean(bits):.3f} bits per byte")
    tables = {
        f"Second halves of {tested} windows of {CONTEXT} bytes of {data}, {len(train):,} windows of training,"
        f" {settings.seeds} seeds": rows,
        f"Scores of earlier positions with another last byte, {count} prompts of {CONTEXT} bytes, before training": [
            {
                "scope": scope,
                "largest change": found.max().item(),
                "mean change": found.mean().item(),
                "positions that change": int((found > 0).any(0).sum()),
            }
            for scope, found in leaks.items()
        ],
    }
    notes = [f"AdamW at {RATE:g}. One pass: G of all tokens depends on the tokens to be predicted."]
    if spreads:
        tables[f"Deductive outputs of {count} prompts of {CONTEXT} bytes, G of all tokens, seed 0"] = spreads
        notes.append(f"Before training, the scores of the two ways are {untrained:.3g} apart.")
    draw_runs(kept, "G", "bits per byte, G kept", settings.folder / BITS)
    draw_curves(
        {scope: dict(enumerate(found.mean(0).tolist())) for scope, found in leaks.items()}, "position",
        "mean change by another last byte", settings.folder / LEAK, marker=".",
    )  # fmt: skip
    return {"tables": tables, "notes": notes, "pictures": [BITS, LEAK], "data": data}

"""SEA over lengths, compared with dense attention: its compiled pass, and the mask that the pass replaces."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, UnavailableError, Work, Workload
from mereo.bench.suites.attention import inputs
from mereo.errors import check_choice
from mereo.mechanisms.attention import SeaAttention
from papers.common.long_sequences import LENGTHS, pairs

MOST_PAIRS = 2**30
"""Pairs of tokens, over batch and heads, above which dense attention is left out."""


FORMS = ("all", "causal")
"""Whether queries see all keys, or those up to themselves."""


def _causal(setting: Setting) -> bool:
    check_choice("form", setting.word("form"), FORMS)
    return setting.word("form") == "causal"


def work(setting: Setting, mode: Mode) -> Work:
    """The kernel attention with its features, the encoding, the convolutions of the decoder and the kept pairs."""
    heads, dim = setting.size("heads"), setting.size("dim")
    columns, top_k = setting.size("columns"), setting.size("top_k")
    rows = setting.size("batch") * setting.size("tokens")
    features = max(int(dim * torch.tensor(float(dim)).log().item()), 1)
    encoding = features * dim * 6 + 6 * dim**2 + 4 * dim * columns
    if _causal(setting):
        drawing = 2 * 9 * (2 * heads) ** 2 * columns // 4 + 2 * heads**2 * columns
    else:
        drawing = (2 * 9 * (4 * heads) ** 2 + 9 * 4 * heads**2 * 2) * columns // 4
    flops = 2 * rows * (heads * (encoding + 2 * top_k * dim) + drawing)
    return Work(flops, FLOAT * rows * heads * dim * 4)


def _dense(setting: Setting) -> Contender:
    def build(mode: Mode) -> Workload:
        if pairs(setting) > MOST_PAIRS:
            raise UnavailableError("dense attention takes minutes")

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=_causal(setting))

        return Workload(call)

    return Contender("SDPA", build, "unchecked")


def _sea(setting: Setting, name: str, method: str) -> Contender:
    def build(mode: Mode) -> Workload:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layer = SeaAttention(
                setting.size("heads"), setting.size("dim"), columns=setting.size("columns"),
                top_k=setting.size("top_k"), causal=_causal(setting), max_len=setting.size("tokens"),
                method=method,
            )  # fmt: skip
        return Workload(torch.inference_mode()(layer.to(setting.device).eval()))

    return Contender(name, build, needs=lambda mode: 12 * pairs(setting) if method == "dense" else 0)


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """SEA as it runs by itself first; dense attention computes another function."""
    mask = pairs(setting) <= MOST_PAIRS // 4
    ways = (_sea(setting, "SEA, mask over all keys", "dense"),) if mask else ()
    return _sea(setting, "SEA", "auto"), *ways, _dense(setting)


SEA = Suite(
    "sea",
    "SEA from 1k to 64k tokens: time a token, exponents, compared with dense attention",
    "(q, k, v), each (batch, heads, tokens, dim) -> (batch, tokens, heads * dim)",
    {"batch": 1, "heads": 4, "tokens": 4096, "dim": 64, "columns": 128, "top_k": 64, "form": "all"},
    inputs,
    contenders,
    work,
    sweeps={"tokens": LENGTHS},
    growth=("tokens",),
    theory={"SEA": 1.0, "SEA, mask over all keys": 2.0, "SDPA": 2.0},
    quick={"heads": 2, "dim": 16, "columns": 32, "top_k": 8},
    quick_sweeps={"tokens": (256, 1024)},
    modes=("forward",),
    memory=("forward",),
)

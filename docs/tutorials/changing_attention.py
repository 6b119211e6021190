# %% [markdown]
# # Change what a vision-language model looks at
#
# TinyVL reads 16 image tokens and names what it sees. Its classes come in pairs, such as fork and knife, that stood
# together in nine of ten training scenes, so it names partners that are not there. It is bundled with the package.

# %%
from functools import partial

import torch

import mereo
from mereo.data.captions import CELLS, DESCRIBE, scene_of, scene_rows, test_set
from mereo.interventions import paint, redistribute_visual_attention, vision_aware_heads
from mereo.tasks.captions import evaluate_captions

model = mereo.load("tinyvl")
split = test_set(300, 0.9, 7, most=0)


def show(name, intervention=None):
    found = evaluate_captions(model, split, intervention)
    print(f"{name}: " + ", ".join(f"{key} {found[key]:.3f}" for key in ("chair_s", "chair_i", "recall", "length")))


show("as trained")

# %% [markdown]
# `chair_s` is the share of captions that name something absent, `chair_i` the share of named classes that are absent.
# Recall and length stand beside them because silence hallucinates nothing.
#
# ## Three interventions
#
# Each is a function model -> context manager: inside the block the model is changed, and afterwards it is as before.
# Heads that react to the image are doubled; scores of image tokens are raised; attention to sinks is handed on.

# %%
for alpha in (0.5, 2.0, 3.0):
    show(f"vision-aware heads, alpha {alpha}", partial(vision_aware_heads, alpha=alpha))
show("image tokens raised by 1.5", partial(paint, alpha=1.5, layers=[1, 2]))
show("sinks", partial(redistribute_visual_attention, layers=[1, 2], dims=[0]))

# %% [markdown]
# This network hardly has sinks, so the last one changes little; `mereo reproduce visual_redistribution` plants one.
#
# ## The same by hand
#
# `mereo.record` keeps attention, and `mereo.intervene` changes it, or scores, by functions. [One edit in three
# libraries](same_edit.md) has the same beside TransformerLens and nnsight.

# %%
scene = scene_of("fork, cat", 0)
rows = scene_rows(scene.features, torch.tensor([[DESCRIBE]]))

with mereo.record(model) as trace, torch.no_grad():
    model(rows)
for name in trace:
    heads = trace[name][0, :, -1, 1 : 1 + CELLS].sum(-1)
    print(f"{name}: attention to the image by head " + ", ".join(f"{share:.2f}" for share in heads.tolist()))


def look_away(couplings):
    """Text does not attend to the image."""
    blind = couplings.clone()
    blind[:, :, CELLS + 1 :, 1 : 1 + CELLS] = 0
    return blind


with torch.no_grad(), mereo.intervene(model, dict.fromkeys(trace, look_away)):
    shares = model(rows)[0, -1].softmax(-1)
print("blind, the first word would be", [model.class_names[token] for token in shares.topk(3).indices.tolist()])

# %% [markdown]
# On a decoder of `transformers`: `redistribute_visual_attention(llava, mask)`, a mask of the prompt's image tokens.

# %% [markdown]
# # One edit in three libraries
#
# Tokens 1 to 16 of a small random GPT-2 of `transformers` shall be an image, and head 1 of layer 1 shall not see it
# from the text behind it. Each library computes the same scores.
#
# `mereo.intervene` changes attention by functions, and `mereo.record` keeps it as it acted. They find it by the names
# of modules, in networks of mereo as in those of timm, PyTorch and `transformers`.

# %%
from importlib.util import find_spec

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import mereo

torch.manual_seed(0)
sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 32, "vocab_size": 50}
gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation="eager", bos_token_id=0, eos_token_id=0)).eval()
tokens = torch.randint(50, (1, 24))


def look_away(attention, hook=None):  # (batch, heads, receivers, senders)
    attention = attention.clone()
    attention[:, 1, 17:, 1:17] = 0
    return attention


name = "transformer.h.1.attn.coupling"
with torch.no_grad(), mereo.intervene(gpt2, {name: look_away}), mereo.record(gpt2) as trace:
    ours = gpt2(tokens).logits
shares = trace[name][0, :, -1, 1:17].sum(-1)
print("attention of the last token to the image by head: " + ", ".join(f"{share:.2f}" for share in shares))

# %% [markdown]
# ## nnsight
#
# The edit is an assignment inside a trace, to an operation in the source of the layer's forward pass, and `.save()`
# keeps a value. This cell and the next run only where their library is installed, and check that the scores are those
# of mereo.

# %%
if find_spec("nnsight"):
    from nnsight import NNsight

    traced = NNsight(gpt2)
    with torch.no_grad(), traced.trace(tokens):
        attention = traced.transformer.h[1].attn.source.attention_interface_1.source.nn_functional_softmax_0
        attention.output[:, 1, 17:, 1:17] = 0
        theirs = traced.output.logits.save()
    torch.testing.assert_close(theirs, ours)

# %% [markdown]
# ## TransformerLens
#
# Functions are hooked to points by name, and `run_with_cache` keeps what `mereo.record` does.

# %%
if find_spec("transformer_lens"):
    from transformer_lens.model_bridge import TransformerBridge

    gpt2.save_pretrained("gpt2")
    lens = TransformerBridge.boot_transformers("gpt2", hf_model=gpt2)
    theirs = lens.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_pattern", look_away)])
    torch.testing.assert_close(theirs, ours)

# %% [markdown]
# | | mereo | nnsight | TransformerLens |
# |---|---|---|---|
# | keep attention | `mereo.record(model)` | `.save()` in a trace | `run_with_cache` |
# | change it | `mereo.intervene(model, {name: function})` | an assignment in a trace | `run_with_hooks` |
# | change scores | `mereo.intervene(model, scores={name: function})` | the operation before | `attn.hook_attn_scores` |
# | networks | of any shape, with attention that is known | any | language models, by an adapter for each family |

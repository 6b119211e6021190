# %% [markdown]
# # Looking inside
#
# Which part voted for which class? First we train MSPCaps-T for a few epochs on the digits in the package.

# %%
import torch

import mereo
from mereo.data import load_splits
from mereo.explain import draw_explanation, draw_parse_tree, explain, observe, parse_trees, write_page
from mereo.inference.answers import collect_answers
from mereo.training.recipes import apply_recipe

model = mereo.train(apply_recipe("digits_demo").replace(epochs=4, device="cpu")).model
test = load_splits("digits", img_size=32).test

# %% [markdown]
# ## Recording couplings
#
# `mereo.record` keeps the couplings of every routing and attention, under the name of the module that computed them.
# MSPCaps has two routings, both normalised over senders: the couplings of a receiver to its senders sum to one.

# %%
labels = test.batch(torch.arange(len(test))).labels
chosen = torch.stack([(labels == digit).nonzero()[0, 0] for digit in (2, 3, 5, 8)])
images = test.batch(chosen).images

with mereo.record(model) as trace, torch.no_grad():
    model(2 * images - 1)  # the network takes images normalised by mean 0.5 and deviation 0.5

for name in trace:
    sums = trace[name].sum(-1)
    print(f"{name}: (batch, heads, receivers, senders) = {tuple(trace[name].shape)}")
    print(f"  sums from {sums.min():.4f} to {sums.max():.4f}, the largest share {trace[name].max():.4f}")

# %% [markdown]
# ## Changing couplings
#
# `mereo.intervene` replaces couplings. With uniform couplings the accuracy shows how much the network relies on
# routing; with one part of the last routing silenced, how much it relies on that part.

# %%
print(f"as trained: {collect_answers(model, test).accuracy:.4f}")
with mereo.intervene(model, {"middle.coupling": "uniform", "head.coupling": "uniform"}):
    print(f"equal shares: {collect_answers(model, test).accuracy:.4f}")
for part in range(4):
    with mereo.intervene(model, {"head.coupling": lambda c, part=part: c.index_fill(-1, torch.tensor(part), 0)}):
        print(f"without part {part}: {collect_answers(model, test).accuracy:.4f}")

# %% [markdown]
# ## Which parts voted for the predicted class
#
# The contributions of all parts add up to the length of the class capsule before it is squashed. The picture begins
# with what hiding a part of the image does; couplings are drawn only where uniform ones would change an answer.

# %%
explanation = explain(model, images)
for i, digit in enumerate(explanation.predicted.tolist()):
    votes, length = explanation.contributions[i], explanation.lengths[i, digit]
    print(f"read as {digit}: votes add up to {votes.sum():.4f}, from the length {(length / (1 - length)) ** 0.5:.4f}")

draw_explanation(model, images, "what_the_network_saw.png", true_labels=labels[chosen])

# %% [markdown]
# ## A parse tree
#
# The same votes as a tree, from the predicted class down to the patches of the image, with the three strongest votes of
# each capsule.

# %%
tree = parse_trees(observe(model, images), keep=3, rivals=0)[0]
for edge in tree.below(0):
    print(f"{tree.nodes[edge.child].name}: coupled by {edge.coupling:.3f}, adds {edge.strength:+.3f}")
draw_parse_tree(tree, images[0], "parse_tree.png")
write_page(model, [(["first", "second", "third", "fourth"], images)], "the_trees_of_all_four.html")

# %% [markdown]
# # Routing as sparse inference
#
# Three units with the inputs -1, 5 and 2 must sum to 2. Which of them stay active depends on the penalty. This is the
# toy model of [arXiv:2209.02567](https://arxiv.org/abs/2209.02567), appendix B. The table and the figure of
# all six descents come from `mereo reproduce toy_routing`. To change the numbers, open this script
# as a notebook.

# %%
import matplotlib.pyplot as plt

from mereo.generative.toy import toy_routing


def show(name, *descents):
    figure, axes = plt.subplots(
        1, len(descents), figsize=(3.4 * len(descents), 2.8), layout="constrained", squeeze=False
    )
    for axis, (title, found) in zip(axes[0], descents, strict=True):
        axis.plot(found.trace, label=[f"from {x:g}" for x in found.trace[0].tolist()])
        axis.set(title=title, xlabel="step")
        axis.legend()
        print(f"{title}: {', '.join(f'{x:z.3f}' for x in found.x.tolist())}, energy {found.energy[-1]:.3f}")
    figure.savefig(f"{name}.png", dpi=110)


# %% [markdown]
# ## The penalty decides
#
# The energy is the squared error of the sum, plus a penalty. An L1 penalty leaves one unit, an L2 penalty makes
# all units equal.

# %%
show("penalties", *[(penalty, toy_routing(penalty)) for penalty in ("none", "l1", "l2")])

# %% [markdown]
# ## A stronger penalty, and a loss that ties units to their inputs
#
# `weight` scales the penalty. With `output_only=False` the units are tied to their inputs as well, and then a weight of
# 1 leaves no zero. Plain descent oscillates around zero in steps of the size of the penalty; the proximal method
# reaches zero exactly. In Jupyter a slider is `ipywidgets.interact(lambda weight: show("slider", ("L1",
# toy_routing(weight=weight))), weight=(0.0, 4.0))`.

# %%
show(
    "weights",
    ("L1, weight 3", toy_routing(method="prox", weight=3)),
    ("L1, tied", toy_routing(method="prox", output_only=False)),
    ("L1, tied, weight 3", toy_routing(method="prox", output_only=False, weight=3)),
)

# %% [markdown]
# ## What a penalty cannot do
#
# The winner depends on the start, not on the energy: all units fall by the same amount until one of them is zero or the
# sum is correct. So equal units stay equal, and units that start close together all stay active.

# %%
show(
    "starts",
    ("L1 from 1, 1, 1", toy_routing(start=(1, 1, 1))),
    ("L1 from 1, 1, 1.2", toy_routing(start=(1, 1, 1.2))),
    ("L1 from 2, 1, 0", toy_routing(start=(2, 1, 0))),
)

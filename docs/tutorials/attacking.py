# %% [markdown]
# # Attacking a model
#
# How small a change makes a network misclassify an image? First we need a network: a narrow MSPCaps, trained for a few
# epochs on the digits in the package.

# %%
import matplotlib.pyplot as plt
import torch

import mereo
from mereo.data import load_splits
from mereo.inference.answers import collect_answers
from mereo.measure import attack, attack_curve, look_for_masking
from mereo.training.recipes import apply_recipe

narrow = {"channels": [16, 32, 64]}
model = mereo.train(apply_recipe("digits_demo").replace(epochs=5, device="cpu", model_args=narrow)).model
test = load_splits("digits", img_size=32).test

# %% [markdown]
# ## One attack
#
# Pixel values lie in [0, 1], and `epsilon` is the most that each may change. Within these bounds, projected gradient
# descent searches for the change that shortens the capsule of the true class and lengthens another.

# %%
answers = collect_answers(model, test)
chosen = answers.correct.nonzero().flatten()[:6]
images, labels, *_ = test.batch(chosen)
attacked = attack("pgd", model, images, labels, epsilon=0.1, steps=20)


def read(batch):
    with torch.no_grad():
        return model(2 * batch - 1)  # the network takes images normalised by mean 0.5 and deviation 0.5


before, after = read(images), read(attacked)
print(f"largest change of a pixel: {(attacked - images).abs().max():.4f}")
for i, label in enumerate(labels.tolist()):
    now = int(after[i].argmax())
    print(f"{label}: length {before[i, label]:.3f} -> {after[i, label]:.3f}; now read as {now} ({after[i, now]:.3f})")

# %%
figure, axes = plt.subplots(3, len(images), figsize=(9, 4.8), layout="constrained")
for i, column in enumerate(axes.T):
    shown = (images[i], (attacked - images)[i] / 0.2 + 0.5, attacked[i])
    titles = (f"read as {before[i].argmax()}", "change x 5", f"read as {after[i].argmax()}")
    for axis, picture, title in zip(column, shown, titles, strict=True):
        axis.imshow(picture[0], cmap="gray", vmin=0, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
figure.savefig("images_changes_and_attacked_images.png", dpi=110)

# %% [markdown]
# ## Accuracy over epsilon
#
# Only correctly classified images are attacked; images misclassified before the attack count as errors at every
# epsilon.

# %%
for name in ("fgsm", "pgd"):
    for point in attack_curve(name, model, test, answers, (0.02, 0.05, 0.1), steps=10):
        print(f"{name}, epsilon {point.amount}: {point.correct} of {point.total} classified correctly")

# %% [markdown]
# ## Robust, or only masking its gradients?
#
# An attack may fail because gradients are misleading, not because the network is robust. `look_for_masking` compares
# the attack with others that are stronger only if that is so. If it flags one as suspicious, use that attack instead.

# %%
some = answers.correct.nonzero().flatten()[:32]
images, labels, *_ = test.batch(some)
for finding in look_for_masking(model, images, labels, 0.03):
    print(f"{'SUSPICIOUS' if finding.suspicious else 'ok':<11}{finding.name}: {finding.words}")

# %% [markdown]
# `mereo evaluate RUN --attack fgsm pgd apgd square` does the same for a run, with pictures and a report.

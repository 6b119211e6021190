# %% [markdown]
# # Your own images
#
# A folder `<folder>/train/<class>/*` of images is a data set. It may also hold `val/` and `test/` of the same form;
# otherwise images are held out. This page makes such a folder, trains on it and evaluates the result. Every line that
# starts with `$` is a shell command.

# %%
import random
import shlex
import shutil
from pathlib import Path

from PIL import Image, ImageDraw

from mereo.cli.main import main


def shell(line):
    print(f"$ {line}")
    if main(shlex.split(line)[1:]) != 0:
        raise SystemExit(f"{line} failed")


# %% [markdown]
# ## A folder of images
#
# Three shapes of many sizes, positions, colours and angles, drawn on noise.


# %%
def draw(shape, rng):
    noise = Image.frombytes("L", (48, 48), rng.randbytes(48 * 48))
    image = noise.point(lambda value: value // 3).convert("RGB")
    circle = (rng.uniform(18, 30), rng.uniform(18, 30), rng.uniform(12, 17))
    colour = tuple(rng.randrange(100, 256) for _ in range(3))
    if shape == "circle":
        ImageDraw.Draw(image).circle(circle[:2], circle[2], fill=colour)
    else:
        sides = {"triangle": 3, "square": 4}[shape]
        ImageDraw.Draw(image).regular_polygon(circle, sides, rotation=rng.uniform(-30, 30), fill=colour)
    return image


rng = random.Random(0)
for split, count in (("train", 150), ("val", 40)):
    for shape in ("circle", "square", "triangle"):
        folder = Path("shapes", split, shape)
        folder.mkdir(parents=True)
        for number in range(count):
            draw(shape, rng).save(folder / f"{shape}_{number:03}.png")

print(*sorted(Path("shapes").glob("*/*")), sep="\n")

# %% [markdown]
# ## Train
#
# A tenth of the training images is held out to choose the best epoch; `val/` is used once, at the end, for testing.
# With `--dry-run` the same command prints the time and memory it needs, without training.

# %%
shell("mereo train --data shapes --img-size 32 --epochs 8 --batch-size 32 --lr 0.002 --name shapes")
shutil.copy("runs/shapes/samples_train.png", "training_images_as_the_network_sees_them.png")

# %% [markdown]
# ## Predict

# %%
shell("mereo predict shapes/val/*/*_00[0-2].png --weights runs/shapes")

# %% [markdown]
# ## Evaluate
#
# `mereo evaluate` writes a folder: a report, its figures as JSON, and pictures. `mereo explain` shows
# which parts of an image a prediction rests on.

# %%
shell("mereo evaluate runs/shapes --corruptions --out evaluation")
shutil.copy("evaluation/shapes/confusion.png", "which_class_was_taken_for_which.png")
shell("mereo explain shapes/val/*/*_000.png --weights runs/shapes --out what_the_network_saw.png")

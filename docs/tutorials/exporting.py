# %% [markdown]
# # Exporting a network
#
# A trained network can be exported as a folder for the Hugging Face hub, as ONNX or as a program of `torch.export`.
# Each file is loaded again and compared with the network before it replaces an older one. ONNX needs the package's
# extra `export`.

# %%
import json
import shlex
from pathlib import Path

import onnxruntime
import torch

import mereo
from mereo.cli.main import main
from mereo.data import load_splits


def shell(line):
    print(f"$ {line}")
    if main(shlex.split(line)[1:]) != 0:
        raise SystemExit(f"{line} failed")


# %%
shell("mereo train --recipe digits_demo --epochs 3 --device cpu --name digits")

# %% [markdown]
# ## All formats at once

# %%
shell("mereo export runs/digits --to onnx torch hub --out my_network")
for path in sorted(Path("my_network").iterdir()):
    print(f"{path.name:<20}{path.stat().st_size:>10,} bytes")

# %% [markdown]
# ## A folder of the hub
#
# The weights are safetensors and nothing is unpickled. The folder states the network, its classes and its
# preprocessing. `mereo.push_to_hub(model, "me/digits")` uploads the same folder.

# %%
model = mereo.from_pretrained("my_network")
config = json.loads(Path("my_network/config.json").read_text())
print(config["architecture"], config["label_names"], config["pretrained_cfg"]["mean"])

images = load_splits("digits", img_size=32).test.batch(torch.arange(5)).images
inputs = 2 * images - 1  # normalised, as in the preprocessing
with torch.no_grad():
    lengths = model(inputs)
print("read as", [model.class_names[i] for i in lengths.argmax(1)])

# %% [markdown]
# ## ONNX
#
# The file accepts any batch size and needs neither PyTorch nor mereo.

# %%
session = onnxruntime.InferenceSession("my_network/model.onnx", providers=["CPUExecutionProvider"])
print([(each.name, each.shape) for each in (*session.get_inputs(), *session.get_outputs())])
for count in (1, 5):
    (scores,) = session.run(None, {"images": inputs[:count].numpy()})
    print(f"batch of {count}: largest difference {abs(scores - lengths[:count].numpy()).max():.1e}")

# %% [markdown]
# ## A program of torch.export
#
# It needs PyTorch, but not mereo. Load only programs that you trust: the format can contain pickles.

# %%
program = torch.export.load("my_network/model.pt2").module()
with torch.no_grad():
    print(f"largest difference {(program(inputs) - lengths).abs().max():.1e}")

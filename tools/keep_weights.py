"""Keep the weights of a finished run in the package, with a card: python tools/keep_weights.py RUN [last|best] [KIND].

They are named <model>.<data>, or <model>.<data>_<kind> for another kind such as `robust`, beside the usual ones.
Weights that would take more than LARGEST bytes are kept in half precision.
"""

import sys
from pathlib import Path

from mereo.export.card import model_card
from mereo.export.record import read_record
from mereo.inference.predict import task_of
from mereo.inference.temperature import KEY
from mereo.models import load, save_weights
from mereo.models.pretrained import FOLDER
from mereo.training.run_folder import RunFolder

LARGEST = 5_000_000
LICENSE = "apache-2.0"


def keep(run: Path, which: str, kind: str = "") -> Path:
    """Write <model>.<data>[_<kind>].safetensors and its card; the path of the former."""
    folder = RunFolder(run)
    weights = folder.last if which == "last" else folder.best
    model, record = load(weights), read_record(weights)
    data = record["data"].partition(":")[0]  # without its options
    name = f"{model.config['model']}.{data}" + (f"_{kind}" if kind else "")
    path = FOLDER / f"{name}.safetensors"
    model.pretrained_cfg["license"] = LICENSE
    state, extra = model.state_dict(), {"data": record["data"], "results": record["results"]}
    if KEY in model.metadata:
        extra[KEY] = model.metadata[KEY]
    if sum(x.numel() * x.element_size() for x in state.values()) > LARGEST:
        state = {key: x.half() if x.is_floating_point() else x for key, x in state.items()}
    save_weights(path, model, class_names=model.class_names, state=state, **extra)
    if path.stat().st_size > LARGEST:
        size = path.stat().st_size
        path.unlink()
        raise SystemExit(f"{name} takes {size:,} bytes; the package keeps networks of at most {LARGEST:,}.")
    call = f"outputs = model({model.input_kind})"
    if task_of(model).scores_classes:
        call = f"{'lengths' if model.score_kind == 'lengths' else 'scores'} = model(images)  # (batch, classes)"
    command = f"On the command line: `mereo predict photo.png --weights {name}`.\n\n"
    command = command if model.input_kind == "images" else ""
    path.with_suffix(".md").write_text(_with_use(model_card(model, record, name), *name.split("."), call, command))
    return path


def _with_use(card: str, model: str, data: str, call: str, command: str) -> str:
    """The card of a folder, with what it says of use made true of the package."""
    before = card.index("## Use")
    after = card.index("\n## ", before) + 1
    use = f"""## Use

```python
import mereo

model = mereo.create_model("{model}", pretrained="{data}").eval()
{call}
```

"""
    return card[:before] + use + command + card[after:]


if __name__ == "__main__":
    print(keep(Path(sys.argv[1]), *(sys.argv[2:] or ["last"])))

"""Files of weights as they should not be: cut, with a false header, with other tensors, with malicious text."""

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

import mereo
from made import Made, refused_with
from mereo.errors import MereoError, UsageError
from mereo.inference.evaluate import normalise
from mereo.models.weights import load_tensors

IMAGES = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def parts(path: Path) -> tuple[dict[str, torch.Tensor], dict]:
    """The tensors and the words of a file."""
    return load_tensors(path)


def written(tensors, metadata, name: str = "changed.safetensors") -> Path:
    Path(name).write_bytes(save(tensors, {"format": "pt", "mereo": json.dumps(metadata)}))
    return Path(name)


def load_or_refuse(path: Path) -> None:
    """A file is refused in words, or gives a network with finite outputs or an error."""
    try:
        model = mereo.load(path)
    except (UsageError, MereoError) as error:
        assert str(path) in str(error) and len(str(error)) < 2000
        return
    cfg = model.pretrained_cfg
    with torch.no_grad():
        model(normalise(IMAGES, cfg["mean"], cfg["std"]))


def test_every_length_of_a_cut_file_is_refused(weights):
    content = weights.read_bytes()
    for length in (*range(0, 24), *range(24, len(content), len(content) // 60)):
        Path("cut.safetensors").write_bytes(content[:length])
        with pytest.raises(UsageError, match="not a readable safetensors file"):
            mereo.load("cut.safetensors")


@pytest.mark.parametrize("length", [0, 1, 7, 2**20, 2**31, 2**63, 2**64 - 1])
def test_a_header_that_lies_about_its_length_is_refused(weights, length):
    Path("lies.safetensors").write_bytes(struct.pack("<Q", length) + weights.read_bytes()[8:])
    with pytest.raises(UsageError, match="not a readable safetensors file"):
        mereo.load("lies.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, patch_size=2)
    path = tmp_path_factory.mktemp("whole") / "whole.safetensors"
    mereo.save_weights(path, model, class_names=tuple("0123456789"), data="digits")
    return path


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
def test_a_damaged_file_gives_a_network_or_is_refused(whole, data):
    content = bytearray(whole.read_bytes())
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.one_of(st.integers(0, header - 1), st.integers(0, len(content) - 1)))
        content[place] = data.draw(st.integers(0, 255))
    Path("damaged.safetensors").write_bytes(content)
    load_or_refuse(Path("damaged.safetensors"))


def changed(name, change):
    def apply(tensors):
        tensors[name] = change(tensors[name])

    return apply


TENSORS = {
    "missing": (lambda t: t.pop("head.weight"), "missing head.weight"),
    "extra": (lambda t: t.update(more=torch.zeros(3)), "unexpected more"),
    "shape": (changed("head.weight", lambda w: w[:-1].contiguous()), "head.weight is"),
    "transposed": (changed("head.weight", lambda w: w.transpose(0, 1).contiguous()), "head.weight is"),
    "flat": (changed("head.weight", lambda w: w.flatten()), "head.weight is"),
    "whole numbers": (changed("head.weight", lambda w: w.to(torch.int64)), "torch.int64, not torch.float32"),
    "complex": (changed("head.weight", lambda w: w.to(torch.complex64)), "torch.complex64, not torch.float32"),
    "switches": (changed("head.weight", lambda w: w > 0), "torch.bool, not torch.float32"),
    "NaN": (changed("head.weight", lambda w: w * float("nan")), "head.weight holds values that are not finite"),
    "infinity": (changed("head.weight", lambda w: w + float("inf")), "head.weight holds values that are not finite"),
    "too wide": (changed("head.weight", lambda w: w.double() + 1e300), "head.weight holds values that are not finite"),
    "a buffer": (
        changed("blocks.0.entry.1.running_var", lambda v: v * float("nan")),
        "blocks.0.entry.1.running_var holds values that are not finite",
    ),
}


@pytest.mark.parametrize("fault", TENSORS)
def test_tensors_that_do_not_fit_are_named(weights, fault):
    tensors, metadata = parts(weights)
    change, message = TENSORS[fault]
    change(tensors)
    with pytest.raises(UsageError, match="does not fit MSPCaps") as refused:
        mereo.load(written(tensors, metadata))
    assert message in str(refused.value)


def test_narrower_numbers_are_taken(weights):
    tensors, metadata = parts(weights)
    halved = {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}
    model = mereo.load(written(halved, metadata))
    assert model.head.weight.dtype == torch.float32
    assert torch.equal(model.head.weight, halved["head.weight"].float())


def put(*keys, value):
    def apply(metadata):
        for key in keys[:-1]:
            metadata = metadata[key]
        metadata[keys[-1]] = value

    return apply


WORDS = {
    "an unknown network": (put("model", value="mspcaps_huge"), "did you mean"),
    "a module path": (put("model", value="os.system"), "unknown model"),
    "a list for a name": (put("model", value=["mspcaps_tiny"]), "does not name its model"),
    "another network": (put("model", value="capsnet"), "not an argument"),
    "no arguments": (lambda m: m.pop("args"), "does not name its model"),
    "a list of arguments": (put("args", value=[1, 2]), "args of"),
    "code for an argument": (put("args", "__class__", value="os.system"), "'__class__', which is not an argument"),
    "another file": (
        put("args", "checkpoint_path", value="/etc/passwd"),
        "'checkpoint_path', which is not",
    ),
    "self": (put("args", "self", value=1), "'self', which is not an argument"),
    "a table as argument": (put("args", "depth", value={"a": 1}), "depth in args of"),
    "lists in lists": (put("args", "depth", value=[[[[[1]]]]]), "depth in args of"),
    "a word for a number": (put("args", "depth", value="2"), "depth of mspcaps_tiny is '2'"),
    "NaN": (put("args", "coupling_drop", value=float("nan")), "coupling_drop of mspcaps_tiny has a number"),
    "infinity": (put("args", "img_size", value=float("inf")), "img_size of mspcaps_tiny has a number"),
    "a huge number": (put("args", "mid_dim", value=10**30), "mid_dim of mspcaps_tiny has a number"),
    "endless depth": (put("args", "depth", value=10**9), "depth of mspcaps_tiny is 1000000000; at most 1,000 layers"),
    "a network of terabytes": (put("args", "channels", value=[10**6] * 3), "does not fit MSPCaps"),
    "an image without end": (put("args", "img_size", value=2**31 - 1), "larger than any memory"),
    "a later format": (put("format", value=99), "install a newer mereo"),
    "a format in words": (put("format", value="1"), "which is not a number"),
    "names that are none": (put("class_names", value=[1, 2]), "class_names of"),
    "names in a word": (put("class_names", value="0123456789"), "class_names of"),
    "too few names": (put("class_names", value=["a", "b"]), "2 names for 10 classes"),
    "no mean": (put("pretrained_cfg", "mean", value=None), "mean and std of"),
    "a mean too many": (put("pretrained_cfg", "mean", value=[0.5, 0.5]), "mean and std of"),
    "a mean of words": (put("pretrained_cfg", "mean", value=["0.5"]), "mean and std of"),
    "a mean without end": (put("pretrained_cfg", "mean", value=[float("inf")]), "mean and std of"),
    "a std of zero": (put("pretrained_cfg", "std", value=[0]), "mean and std of"),
    "a std that is NaN": (put("pretrained_cfg", "std", value=[float("nan")]), "mean and std of"),
    "another size": (put("pretrained_cfg", "input_size", value=[1, 8, 8]), "input_size of"),
    "no crop": (put("pretrained_cfg", "crop_pct", value="all"), "crop_pct of"),
    "a crop of nearly nothing": (put("pretrained_cfg", "crop_pct", value=1e-5), "crop_pct of"),
    "a denormal crop": (put("pretrained_cfg", "crop_pct", value=5e-324), "crop_pct of"),
    "a crop that is NaN": (put("pretrained_cfg", "crop_pct", value=float("nan")), "crop_pct of"),
    "a switch for a crop": (put("pretrained_cfg", "crop_pct", value=True), "crop_pct of"),
    "a denormal std": (put("pretrained_cfg", "std", value=[5e-324]), "mean and std of"),
    "a switch for a std": (put("pretrained_cfg", "std", value=[True]), "mean and std of"),
    "an unknown interpolation": (put("pretrained_cfg", "interpolation", value="nothing"), "interpolation of"),
    "a licence that is not text": (put("pretrained_cfg", "license", value=[1]), "license of"),
    "channels without end": (put("args", "in_chans", value=2**30), "in_chans is"),
    "classes without end": (put("args", "num_classes", value=2**31 - 1), "num_classes is"),
    "a list without end": (put("args", "scales", value=[0] * 10**5), "100,000 entries"),
    "preprocessing in a list": (put("pretrained_cfg", value=[]), "pretrained_cfg of"),
    "nothing": (lambda m: m.clear(), "does not name its model"),
}


@pytest.mark.parametrize("fault", WORDS)
def test_words_that_mean_harm_are_refused(weights, fault):
    tensors, metadata = parts(weights)
    change, message = WORDS[fault]
    change(metadata)
    path = written(tensors, metadata)
    with Made() as made, pytest.raises(UsageError) as refused:
        mereo.load(path)
    assert message in str(refused.value)
    refused_with(made)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 5000, "null", "7", "NaN", '"' + "x" * 10_000_000 + '"', "{"])
def test_words_that_are_no_table_are_refused(weights, text):
    tensors, _ = parts(weights)
    Path("odd.safetensors").write_bytes(save(tensors, {"format": "pt", "mereo": text}))
    with pytest.raises(UsageError, match=r"odd\.safetensors"):
        mereo.load("odd.safetensors")


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
def test_any_words_give_a_network_or_are_refused(whole, data):
    tensors, metadata = parts(whole)
    places = [(k,) for k in metadata] + [(k, n) for k in ("args", "pretrained_cfg") for n in metadata[k]]
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=2, unique_by=lambda p: p[0])):
        put(*place, value=data.draw(json_values))(metadata)
    load_or_refuse(written(tensors, metadata))


def test_nonsense_in_weights_is_refused_and_not_printed(call, weights):
    from PIL import Image

    tensors, metadata = parts(weights)
    tensors["blocks.0.entry.1.running_var"].fill_(-1.0)  # finite, and its root is not
    bad = written(tensors, metadata)
    Image.new("L", (20, 20), 90).save("photo.png")
    for words in (
        ["predict", "photo.png", "--json", "--weights"],
        ["explain", "photo.png", "--weights"],
        ["evaluate", "--limit", "20"],
        ["export"],
    ):
        done = call(*words, bad).check()
        assert done.code == 1 and "not finite" in done.err and "nan" not in done.out.lower()
    assert not Path("explanation.png").exists() and not list(Path().glob("e*/*.*")), "something was written"


def test_weights_that_are_not_finite_are_not_saved(network, weights):
    before = weights.read_bytes()
    with torch.no_grad():
        network.head.weight[0, 0] = float("nan")
    with pytest.raises(MereoError, match=r"head\.weight holds values that are not finite"):
        mereo.save_weights(weights, network)
    assert weights.read_bytes() == before

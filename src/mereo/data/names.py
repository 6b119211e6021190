"""Names that data sets on disk use: of splits and of image files."""

SPLITS = {
    "train": "train", "training": "train", "val": "validation", "validation": "validation", "valid": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""The split that a folder, a file or a word in a table stands for."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
"""Of files that can be read."""
OTHER_SUFFIXES = (".heic", ".heif", ".avif")
"""Of images that cannot be read, and are reported with what to do instead of being left out."""

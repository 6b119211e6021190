"""Image files as bytes."""

import io

from PIL import Image


def picture(size: tuple[int, int] = (40, 30), kind: str = "PNG", mode: str = "RGB") -> bytes:
    """An image file as bytes."""
    content = io.BytesIO()
    Image.radial_gradient("L").resize(size).convert(mode).save(content, kind)
    return content.getvalue()

"""Splits of toys seen from many viewpoints: smallNORB's instances, and its protocols of novel viewpoints.

Source: LeCun, Huang, Bottou, CVPR 2004, for the instances; Hinton, Sabour, Frosst, ICLR 2018, section 5.1, for the
novel viewpoints: networks are trained on a third of the azimuths, or on the three lowest elevations, and tested on the
others, always with other toys than in training.
"""

from mereo.errors import check_choice

CATEGORIES = ("animal", "human", "airplane", "truck", "car")
ELEVATIONS = tuple(range(30, 75, 5))
AZIMUTHS = tuple(range(0, 360, 20))
LIGHTINGS = 6
"""Elevations and azimuths of the camera in degrees, and how many lightings there are."""
TRAIN_INSTANCES, TEST_INSTANCES = (4, 6, 7, 8, 9), (0, 1, 2, 3, 5)
FAMILIAR_AZIMUTHS, FAMILIAR_ELEVATIONS = (300, 320, 340, 0, 20, 40), (30, 35, 40)
VIEWPOINTS = ("all", "azimuth", "elevation")


def takes(elevation: int, azimuth: int, viewpoints: str, familiar: bool) -> bool:
    """Whether a protocol takes an image.

    Args:
        elevation, azimuth: of the image in degrees.
        viewpoints: "all" for every image; "azimuth" or "elevation" for images at familiar or novel ones.
        familiar: whether the familiar ones are taken, as in training, rather than the novel ones.
    """
    if viewpoints == "all":
        return True
    known = azimuth in FAMILIAR_AZIMUTHS if viewpoints == "azimuth" else elevation in FAMILIAR_ELEVATIONS
    return known == familiar


def count_images(toys: int, lightings: int, viewpoints: str, familiar: bool) -> dict[str, int]:
    """The number of images of each split, for `toys` toys seen from everywhere."""
    check_choice("viewpoints", viewpoints, VIEWPOINTS)
    places = [(elevation, azimuth) for elevation in ELEVATIONS for azimuth in AZIMUTHS]
    return {
        name: toys * lightings * sum(takes(*place, viewpoints, known) for place in places)
        for name, known in (("train", True), ("test", familiar))
    }

"""Bodies of 15 joints that walk, wave, fall, sit down or jump, made from a seed.

A pose is a chain of bones of fixed lengths from the hip: shoulders and hips beside the spine, limbs by two angles each.
Action by action, angles and the height of the hip are functions of time; every body has its own size, speed, strength,
facing and place, idles before and behind its action, and is seen with noise.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from mereo.data.load import Splits, Wanted, limited, made_splits
from mereo.data.sequences import Sequences

Floats = npt.NDArray[np.float64]
ACTIONS = ("walk", "wave", "fall", "sit", "jump")
SPINE, NECK, SHOULDER, ARM, HIP, LEG = 0.5, 0.25, 0.18, 0.28, 0.1, 0.42
"""Lengths of bones in metres; an arm and a leg have two bones of theirs."""
STANDING = 2 * LEG
DRIFT = 0.12
"""Standard deviation of what idle limbs do, in radians."""


def _towards(forward: Floats, side: Floats) -> Floats:
    """The direction of a hanging bone that is lifted forward and to its side: (..., 3)."""
    return np.stack((np.sin(side), -np.cos(side) * np.cos(forward), np.cos(side) * np.sin(forward)), -1)


def _limb(start: Floats, bone: float, first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> list[Floats]:
    middle = start + bone * _towards(*first)
    return [start, middle, middle + bone * _towards(*second)]


def pose(hip: Floats, lean: Floats, arms: Floats, legs: Floats) -> Floats:
    """The joints of bodies that face z: (..., 15, 3), in the order of `mereo.data.skeletons.FIFTEEN`.

    Args:
        hip: its place, (..., 3).
        lean: angle of the spine, forward.
        arms, legs: (right and left, 4, ...): forward and side of the upper bone, then of the lower one.
    """
    spine = np.stack((np.zeros_like(lean), np.cos(lean), np.sin(lean)), -1)
    neck = hip + SPINE * spine
    joints = [hip, neck, neck + NECK * spine]
    for start, out, bone, limbs in ((neck, SHOULDER, ARM, arms), (hip, HIP, LEG, legs)):
        for sign, (forward, side, forward2, side2) in zip((-1, 1), limbs, strict=True):
            place = start + np.array([sign * out, 0, 0])
            joints += _limb(place, bone, (forward, sign * side), (forward2, sign * side2))
    return np.stack(joints, -2)


def _smooth(share: Floats) -> Floats:
    """From 0 to 1 with a slope of 0 at both ends."""
    clipped = share.clip(0, 1)
    return clipped * clipped * (3 - 2 * clipped)


def act(action: str, time: Floats, strength: Floats, left: Floats, drift: Floats) -> Floats:
    """The joints of one action: (n, frames, 15, 3).

    Args:
        time: seconds of action so far, (n, frames); it rests at its ends while the body idles.
        strength: of the movement, (n, 1).
        left: 1 where the left arm waves, else 0, (n, 1).
        drift: what idle limbs do, (4, n, frames).
    """
    zero = np.zeros_like(time)
    arms = np.stack([np.stack([each, 0.1 + zero, each, 0.1 + zero]) for each in drift[:2]])
    legs = np.stack([np.stack([each, zero, each, zero]) for each in drift[2:] / 3])
    lean, height, ahead = drift[0] / 4, STANDING + zero, zero
    wave = np.sin(2 * math.pi * time)
    if action == "walk":
        for sign, arm, leg in ((1, arms[0], legs[0]), (-1, arms[1], legs[1])):
            swing = sign * 0.55 * strength * wave
            leg[0], leg[2] = leg[0] + swing, leg[2] + swing - 0.4 * strength * np.maximum(np.cos(2 * math.pi * time), 0)
            arm[0], arm[2] = arm[0] - 0.7 * swing, arm[2] - swing
        ahead = 0.9 * strength * time
    elif action == "wave":
        lifted = _smooth(2 * time) * strength
        for number, arm in enumerate(arms):
            chosen = lifted * (left if number else 1 - left)
            arm[1], arm[3] = arm[1] + 1.1 * chosen, arm[3] + chosen * (2.0 + 0.5 * wave)
    elif action == "fall":
        down = _smooth(1.2 * time) * np.minimum(strength, 1)
        lean = lean + 1.4 * down
        height, ahead = STANDING - 0.65 * down, 0.4 * down
        legs[:, 0], legs[:, 2] = legs[:, 0] - 0.9 * down, legs[:, 2] - 1.3 * down
        arms[:, 0], arms[:, 2] = arms[:, 0] + 1.2 * down, arms[:, 2] + 1.5 * down
    elif action == "sit":
        down = _smooth(time) * np.minimum(strength, 1)
        height, ahead = STANDING - 0.4 * down, -0.35 * down
        lean = lean + 0.9 * down * (1 - 0.7 * down)
        legs[:, 0], legs[:, 2] = legs[:, 0] + 1.4 * down, legs[:, 2] + 0.1 * down
        arms[:, 2] = arms[:, 2] + 0.7 * down
    else:
        up = np.sin(2 * math.pi * time)
        crouch, flight = np.maximum(-up, 0) * strength, np.maximum(up, 0) * strength
        height = STANDING - 0.12 * crouch + 0.2 * flight
        legs[:, 0], legs[:, 2] = legs[:, 0] + 0.7 * crouch, legs[:, 2] - 0.7 * crouch
        arms[:, 0], arms[:, 2] = arms[:, 0] + 0.5 * flight - 0.4 * crouch, arms[:, 2] + 0.8 * flight
    hip = np.stack((zero, height, ahead), -1)
    return pose(hip, lean, arms, legs)


def make(count: int, seed: int, least: int, most: int, noise: float) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Actions of all kinds in turn, seen over `most` frames: (count, most, 45), and their lengths, (count,)."""
    drawn = np.random.default_rng(seed)
    lengths = drawn.integers(least, most + 1, count)
    begin = drawn.uniform(0, 0.5, (count, 1)) * lengths[:, None]
    rate = drawn.uniform(0.5, 1.6, (count, 1)) / 20  # of 20 frames a second
    steps = np.arange(most)
    time = np.maximum(steps - begin, 0) * rate
    strength = drawn.uniform(0.3, 1.1, (count, 1))
    left = drawn.integers(0, 2, (count, 1)).astype(np.float64)
    phases = drawn.uniform(0, 2 * math.pi, (4, count, 1))
    slow = drawn.uniform(0.02, 0.12, (4, count, 1))
    drift = drawn.normal(0, DRIFT, (4, count, 1)) + DRIFT * np.sin(2 * math.pi * slow * steps + phases)
    joints = np.empty((count, most, 15, 3))
    for number, action in enumerate(ACTIONS):
        own = np.arange(count) % len(ACTIONS) == number
        joints[own] = act(action, time[own], strength[own], left[own], drift[:, own])
    angle = drawn.uniform(-math.pi, math.pi, (count, 1, 1))
    x, y, z = np.moveaxis(joints * drawn.uniform(0.85, 1.15, (count, 1, 1, 1)), -1, 0)
    turned = np.stack((np.cos(angle) * x + np.sin(angle) * z, y, np.cos(angle) * z - np.sin(angle) * x), -1)
    place = np.concatenate((drawn.normal(0, 0.5, (count, 2)), drawn.uniform(2, 4, (count, 1))), 1)
    place[:, 1] = -0.8  # the camera is above the ground
    seen = turned + place[:, None, None] + noise * drawn.standard_normal(joints.shape)
    return seen.reshape(count, most, -1), lengths


def load(wanted: Wanted, least: int, most: int, noise: float, seed: int, splits: Mapping[str, int]) -> Splits:
    """The splits of made actions."""
    assert wanted.length is not None
    sizes, made = limited(splits, wanted.limit), {}
    for number, (split, count) in enumerate(sizes.items()):
        seen, lengths = make(count, len(sizes) * seed + number, least, most, noise)
        frames = [torch.from_numpy(each[:length]).float() for each, length in zip(seen, lengths, strict=True)]
        labels = [place % len(ACTIONS) for place in range(count)]
        made[split] = Sequences.joined(frames, labels, ACTIONS, wanted.length)
    return made_splits(made, ACTIONS)

"""A convolution of capsules: the children of each window vote for the parents at its position, and any routing decides.

Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018,
https://openreview.net/forum?id=HJWLfGWRb, sections 4 and 5; the competition of parents: arXiv:1907.00652.
Cost: for B images, Q positions, S children of a window, R types of parents and poses of n x n: votes take 2 B Q S R n^3
FLOPs each time they are made; routings whose mathematics allow it never store them.
"""

from collections.abc import Mapping
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mereo.core import Capsules
from mereo.core.modes import unconverted
from mereo.core.squash import accumulation_type, bounded
from mereo.core.topology import Windows
from mereo.core.window_votes import COMPETE, WindowVotes
from mereo.errors import UsageError, check_choice, check_positive
from mereo.mechanisms.routing.vote_routing import make_vote_routing

Pair = int | tuple[int, int]
Kind = Literal["matrix", "vector", "complex"]
KINDS = {"matrix": 2, "vector": 1, "complex": 2}
"""How many axes a pose has."""


def _pair(name: str, value: Pair, least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2 or not all(isinstance(each, int) and each >= least for each in pair):
        raise UsageError(f"{name} is {value!r}; it must be a whole number of at least {least}, or a pair of them.")
    return pair[0], pair[1]


class ConvCapsules(nn.Module):
    """Route the capsules of each window of a map to the capsules at its position.

    vote_s,r = U_s W_o(s),t(s),r      child s of type t at offset o of the window, parent type r

    Matrices: U (n, k), W (k, m), vote (n, m). Vectors: u (k,), W (k, m). Complex vectors: u and W complex.

    Args:
        in_types, out_types: kinds of children and of parents at a position.
        kernel, stride, padding: of the windows, as of a convolution, a number or (down, across); None for `kernel` is
            one window over the whole map, which must be `size`.
        in_pose, out_pose: shape of a pose: (n, k) and (n, m) for matrices, (k,) and (m,) for vectors, (2, k) and (2, m)
            for complex vectors, real parts first; None for `out_pose` is the same as `in_pose`.
        pose: "matrix", "vector" or "complex".
        shared: one transform for each pair of types, whatever the offset in the window.
        compete: who competes for a child: the parents of all "positions" whose windows read it (the paper), or the
            parents of one "window" at a time (most public code).
        coordinates: add where a child is to two entries of its vote, row and column: (entry, entry) of the flattened
            pose, or True for the first two entries of the last column of a matrix and of a vector. Both are
            `coordinate_scale` (index + `coordinate_offset`) / size of the map.
        coordinates_of: "children", or "parents" to add the place of the parent, in the map of parents, instead.
        routing: a name of `mereo.mechanisms.routing.VOTE_ROUTINGS`.
        routing_options: its arguments.
        size: rows and columns of the map of children, only for `kernel` None.

    Shapes: poses (batch, in_types, *in_pose, rows, columns), activation (batch, in_types, rows, columns) or None if
        the routing needs none -> `Capsules`: pose (batch, out_types, *out_pose, rows', columns'), activation (batch,
        out_types, rows', columns').

    Children beyond the map, where there is padding, have no influence. All is computed in float32 at least.

    Deviates: matrices start as the identity plus normal noise of 0.1, vectors normal with deviation 1 / sqrt(k); the
        papers do not agree.

    Reference: Hinton, Sabour, Frosst 2018 (ICLR), sections 4 and 5.
    """

    def __init__(
        self,
        in_types: int,
        out_types: int,
        kernel: Pair | None = 3,
        stride: Pair = 1,
        padding: Pair = 0,
        *,
        in_pose: tuple[int, ...] = (4, 4),
        out_pose: tuple[int, ...] | None = None,
        pose: Kind = "matrix",
        shared: bool = False,
        compete: str = "positions",
        coordinates: bool | tuple[int, int] = False,
        coordinate_offset: float = 0.5,
        coordinate_scale: float = 1.0,
        coordinates_of: str = "children",
        routing: str = "em",
        routing_options: Mapping[str, Any] | None = None,
        size: Pair | None = None,
    ) -> None:
        super().__init__()
        check_positive(in_types=in_types, out_types=out_types)
        check_choice("pose", pose, KINDS)
        check_choice("compete", compete, COMPETE)
        check_choice("coordinates_of", coordinates_of, ("children", "parents"))
        if (kernel is None) != (size is not None):
            raise UsageError(f"kernel is {kernel} with size {size}; give one of them.")
        self.kernel = _pair("size", size, 1) if kernel is None else _pair("kernel", kernel, 1)  # type: ignore[arg-type]
        self.stride, self.padding = _pair("stride", stride, 1), _pair("padding", padding, 0)
        self.in_pose, self.out_pose = tuple(in_pose), tuple(in_pose if out_pose is None else out_pose)
        self._check_poses(pose)
        self.in_types, self.out_types, self.kind, self.compete = in_types, out_types, pose, compete
        self.shared, self.coordinates = shared, self._entries(coordinates)
        self.coordinate_offset, self.coordinate_scale = coordinate_offset, coordinate_scale
        self.coordinates_of = coordinates_of
        self.offsets = self.kernel[0] * self.kernel[1]
        numbers = (2,) if pose == "complex" else ()
        inner, columns = self.in_pose[-1], self.out_pose[-1]
        places = (in_types,) if shared else (self.offsets, in_types)
        self.weight = nn.Parameter(torch.randn(out_types, *places, *numbers, inner, columns))
        with torch.no_grad():
            self.weight.mul_(0.1 if pose == "matrix" else (inner * max(len(numbers) * 2, 1)) ** -0.5)
            if pose == "matrix":
                self.weight.add_(torch.eye(inner, columns))
        self.routing = make_vote_routing(
            routing, out_types, self.offsets * in_types, prod(self.out_pose), routing_options,
            sender_dim=prod(self.in_pose),
        )  # fmt: skip

    def _check_poses(self, kind: str) -> None:
        """UsageError for poses whose shape does not fit their kind."""
        ours = (self.in_pose, self.out_pose)
        numbers = all(isinstance(n, int) and n > 0 for each in ours for n in each)
        if (
            not numbers
            or any(len(each) != KINDS[kind] for each in ours)
            or (
                KINDS[kind] == 2
                and (self.in_pose[0] != self.out_pose[0] or (kind == "complex" and self.in_pose[0] != 2))
            )
        ):
            raise UsageError(
                f"in_pose is {self.in_pose} and out_pose {self.out_pose} with pose {kind!r}; they must be (n, k) and"
                " (n, m) for 'matrix', (k,) and (m,) for 'vector', (2, k) and (2, m) for 'complex'."
            )

    def _entries(self, coordinates: bool | tuple[int, int]) -> tuple[int, int] | None:
        """Entries of the flattened vote that row and column are added to."""
        if coordinates is False:
            return None
        columns = self.out_pose[-1]
        entries = (columns - 1, 2 * columns - 1) if self.kind == "matrix" else (0, 1)
        if coordinates is not True:
            entries = _pair("coordinates", coordinates, 0)
        if max(entries) >= columns * (self.out_pose[0] if len(self.out_pose) == 2 else 1) or entries[0] == entries[1]:
            raise UsageError(f"coordinates are {coordinates}: entries {entries} of poses of {self.out_pose}; give two.")
        return entries

    def windows(self, rows: int, columns: int) -> Windows:
        """The windows over a map of this size."""
        return Windows(rows, columns, self.kernel, self.stride, self.padding)

    def _weight(self, dtype: torch.dtype) -> Tensor:
        """Transforms as matrices for every child of a window: (out_types, senders, inner, columns)."""
        weight = self.weight.to(dtype)
        if self.shared:
            weight = weight.unsqueeze(1).expand(-1, self.offsets, *weight.shape[1:])
        if self.kind == "complex":
            real, imaginary = weight.unbind(-3)
            weight = torch.cat((torch.cat((real, imaginary), -1), torch.cat((-imaginary, real), -1)), -2)
        return weight.flatten(1, 2)

    def votes(self, poses: Tensor, activation: Tensor | None = None) -> WindowVotes:
        """The votes of the children in every window, whatever their activation.

        Shapes: poses (batch, in_types, *in_pose, rows, columns).
        """
        self._check_maps(poses)
        poses = bounded(poses.to(accumulation_type(poses)))
        rows, columns = poses.shape[-2:]
        windows = self.windows(rows, columns)
        children, weight = windows.gather(poses), self._weight(poses.dtype)
        children = children.flatten(2).unsqueeze(2) if self.kind != "matrix" else children
        if self.coordinates is not None:
            children, weight = self._with_coordinates(children, weight, windows)
        return WindowVotes(children, weight, windows, compete=self.compete)

    @staticmethod
    def in_a_row(poses: Tensor) -> Tensor:
        """Capsules of a map one after the other, by type, row and column, as couplings number them.

        Shapes: (batch, types, *pose, rows, columns) -> (batch, types * rows * columns, pose).
        """
        return poses.flatten(2, -3).movedim(2, -1).flatten(1, 3)

    def _check_maps(self, poses: Tensor) -> None:
        if poses.dim() != 4 + len(self.in_pose) or poses.shape[1:-2] != (self.in_types, *self.in_pose):
            raise UsageError(
                f"poses are {tuple(poses.shape)}; they must be (batch, {self.in_types},"
                f" {', '.join(map(str, self.in_pose))}, rows, columns)."
            )

    def _with_coordinates(self, children: Tensor, weight: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
        """Two more inner entries: coordinates, and matrices that write them to entries of the vote."""
        assert self.coordinates is not None
        cells = windows.cells(children.device).repeat_interleave(self.in_types, 1)
        there = cells >= 0
        sizes, width = (windows.rows, windows.columns), weight.shape[-1]
        if self.coordinates_of == "parents":
            sizes = windows.sides
            cells = torch.arange(windows.count, device=cells.device).unsqueeze(1).expand_as(cells)
        indices = (torch.div(cells, sizes[1], rounding_mode="floor"), cells % sizes[1])
        more = children.new_zeros(*cells.shape, children.shape[2], 2)
        write = weight.new_zeros(2, width)
        for axis, (index, size, entry) in enumerate(zip(indices, sizes, self.coordinates, strict=True)):
            place = (index.to(more.dtype) + self.coordinate_offset) * (self.coordinate_scale / size)
            more[..., entry // width, axis] = place * there
            write[axis, entry % width] = 1
        batch = children.shape[0] // windows.count
        children = torch.cat((children, more.repeat(batch, 1, 1, 1)), -1)
        return children, torch.cat((weight, write.expand(*weight.shape[:2], -1, -1)), -2)

    def forward(self, poses: Tensor, activation: Tensor | None = None) -> Capsules:
        with unconverted(poses):
            return self._route(poses, activation)

    def _route(self, poses: Tensor, activation: Tensor | None) -> Capsules:
        votes = self.votes(poses)
        assert votes.windows is not None
        present = None
        if activation is not None:
            if activation.shape != (poses.shape[0], self.in_types, *poses.shape[-2:]):
                raise UsageError(
                    f"activation is {tuple(activation.shape)} with poses {tuple(poses.shape)}; it must be (batch,"
                    f" {self.in_types}, rows, columns) of the same maps."
                )
            present = votes.windows.gather(activation.to(votes.poses.dtype))
        elif self.routing.needs_activation:
            raise UsageError(f"activation is None, and {type(self.routing).__name__} needs one.")
        parents = self.routing(votes, present)
        maps = votes.windows.place(parents.pose.unflatten(-1, self.out_pose))
        return Capsules(maps.to(poses.dtype), votes.windows.place(parents.activation).to(poses.dtype))

    def extra_repr(self) -> str:
        kernel, stride, padding = self.kernel, self.stride, self.padding
        return (
            f"{self.in_types} x {self.in_pose} -> {self.out_types} x {self.out_pose}, kernel={kernel}, stride={stride},"
            f" padding={padding}, pose={self.kind!r}, shared={self.shared}, compete={self.compete!r}"
        )

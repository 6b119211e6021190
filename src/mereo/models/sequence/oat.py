"""OAT, the object-level attention transformer: the objects of a shelf and a target become a path of fixated objects.

Source: Fang, Yu, Zhang, van der Lans, Shi 2024, arXiv:2407.13335; equations and sizes follow HKUST-NISL/oat_eccv24.
Cost: the crops and (N + 1)^2 D an encoder layer, once for each scene; a step of a path D^2 + (t + N) D a decoder layer.
"""

from functools import partial
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_count, check_heads, check_positive, check_probability, check_steps
from mereo.layers.positions import distance_table, sinusoids
from mereo.layers.post_norm import Pair, PostNormDecoderBlock, PostNormEncoderBlock
from mereo.mechanisms.attention.dense.object_pointer import ObjectPointer
from mereo.models.layers import layer_depths
from mereo.models.network import Network
from mereo.models.registry import register_model

MOST_LEVELS = 10
"""Most levels of a pyramid; each has four times the cells of the one before."""
COLOURS, SPREAD = 64, 0.4
"""Crops of one colour by which appearances are spread at the start, and the deviation that they then have."""
PLACE = 2
"""Columns behind the pixels of a region: row and column on the shelf; below 0 for no object, or an unknown place."""


class CropEncoder(nn.Module):
    """Two convolutions and a linear layer: pixels of an object -> its appearance.

    linear(pool(relu(conv3x3(maxpool(relu(conv5x5(crop)))))))

    Args:
        size: height and width of the crops.
        dim: of the appearance.
        pool: side of the first pooling.
        levels: of a spatial pyramid, whose level i has the maxima of 2^i x 2^i cells; 0 for pooling of 3 x 3 pixels.

    Shapes: (crops, 3, height, width) -> (crops, dim).
    """

    def __init__(self, size: tuple[int, int], dim: int, pool: int = 5, levels: int = 0) -> None:
        super().__init__()
        self.pool, self.levels = pool, levels
        rows, columns = ((side - 4) // pool - 2 for side in size)
        if min(rows, columns) < (1 if levels else 3):
            raise UsageError(f"crop is {size} with pool={pool} and levels={levels}; give larger crops, or pool less.")
        if levels > MOST_LEVELS:
            raise UsageError(f"levels is {levels}; at most {MOST_LEVELS} are allowed.")
        cells = (4**levels - 1) // 3 or (rows // 3) * (columns // 3)
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 5), nn.Conv2d(16, 32, 3)
        self.fc = nn.Linear(32 * cells, dim)

    def _cells(self, maps: Tensor, number: int) -> Tensor:
        """The maxima of number x number cells, of maps that are padded on all sides with zeros."""
        kernel = tuple(-(-side // number) for side in maps.shape[2:])
        padding: list[int] = []
        for side, length in zip(reversed(maps.shape[2:]), reversed(kernel), strict=True):
            missing = length * number - side
            padding += [missing // 2, -(-missing // 2)]
        return F.max_pool2d(F.pad(maps, padding), kernel).flatten(1)

    def forward(self, crops: Tensor) -> Tensor:
        maps = self.conv2(F.max_pool2d(self.conv1(crops).relu(), self.pool)).relu()
        if self.levels:
            pooled = torch.cat([self._cells(maps, 2**level) for level in range(self.levels)], 1)
        else:
            pooled = F.max_pool2d(maps, 3).flatten(1)
        appearance: Tensor = self.fc(pooled)
        return appearance


class Shelf(NamedTuple):
    """Scenes as the decoder reads them.

    Attributes:
        states: of the encoder, the target's last: (batch, objects + 1, dim).
        keys: of the pointer, (batch, objects + 1, heads * dim).
        tokens: the decoder's input for each object and, last, for the start: (batch, objects + 1, dim).
        present: bool (batch, objects + 1); the target is always there.
    """

    states: Tensor
    keys: Tensor
    tokens: Tensor
    present: Tensor


class PathState(NamedTuple):
    """Paths so far.

    Attributes:
        step: number of tokens read.
        contexts: keys and values of the scenes for each layer, which all paths share.
        past: keys and values of the tokens read for each layer, (batch * paths, step, dim) each.
    """

    step: int
    contexts: tuple[Pair, ...]
    past: tuple[Pair, ...] = ()


class Paths(NamedTuple):
    """What a search found.

    Attributes:
        fixations: objects, -1 from STOP on: int64 (batch, paths, steps).
        log_shares: of the first path at each step, (batch, steps, objects + 1).
        features: of the first path, (batch, steps, dim).
    """

    fixations: Tensor
    log_shares: Tensor
    features: Tensor


class ObjectAttentionTransformer(Network):
    """Read the objects of a scene and the target, and point to one object after the other until STOP.

    e = encoder([a_i ; p_i]),   d = decoder([start, a_f1 ; p_f1, ...] + sinusoids, e),   P(f_t) = object_pointer(e, d_t)

    a is the appearance of a crop, p the code of (row, column, flag), three rows of a fixed table cut to dim / 2; the
    flag is 1 for the target. The encoder's last token is the target, and pointing to it is STOP. The start is a blank
    crop at the centre of the shelf.

    Args:
        dim: of the tokens.
        num_heads, hidden_dim, dropout: of the blocks.
        depth: blocks of the encoder, and of the decoder.
        crop: height and width of the crops.
        pool, levels: of the `CropEncoder`.
        shelf: rows and columns of the shelf; it reads all shelves whose sides are not above the larger of them.
        norm: of the codes of positions.
        locate: whether it is given where the target is, as in the authors' code; otherwise the position code of the
            target is zero and no fixation is marked, so that it has to find the target by its appearance.
        max_len: most fixations of a path that it finds.

    Shapes: regions (batch, objects + 1, 3 * height * width + 2): pixels in [0, 1], row and column of each object, -1
        for an object that is not there; then the target, -1 for an unknown place. fixations int64 (batch, steps), -1
        for padding -> logarithms of probabilities (batch, steps + 1, objects + 1), STOP last; or along the greedy
        search.

    Reads as: `head.coupling`, couplings[b, 0, t, i], is the probability that fixation t is on object i.

    Deviates: the projections of attention start from Xavier's distribution each by itself, and with `locate=False` so
        that equal looks attend to each other; the table of positions is exact; no score of padding. That the encoder is
        given the target's place may not be the paper's intention, so `locate=False` is there beside it.

    Reference: arXiv:2407.13335.
    """

    output_kind: ClassVar[str] = "pointers"
    input_kind: ClassVar[str] = "regions"
    outputs_argument: ClassVar[str | None] = None
    counted_from_shapes: ClassVar[bool] = False
    registered_with_timm = False

    table: Tensor

    def __init__(
        self,
        dim: int = 512,
        *,
        num_heads: int = 4,
        hidden_dim: int = 512,
        depth: int = 4,
        dropout: float = 0.1,
        crop: tuple[int, int] = (150, 93),
        pool: int = 5,
        levels: int = 0,
        shelf: tuple[int, int] = (2, 11),
        norm: float = 5.895,
        locate: bool = True,
        max_len: int = 30,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_positive(hidden_dim=hidden_dim, depth=depth, pool=pool, norm=norm)
        check_count(levels=levels)
        check_count(1, rows=shelf[0], columns=shelf[1])
        check_steps(1, max_len=max_len)
        check_probability(dropout=dropout)
        if dim % 2:
            raise UsageError(f"dim is {dim}; half of a token is its appearance, so it must be even.")
        if max(2, *shelf) > -(-dim // 6):
            raise UsageError(f"shelf is {shelf} and dim {dim}; dim must be above {6 * (max(2, *shelf) - 1)} for it.")
        self.num_features, self.crop, self.shelf, self.locate, self.max_len = dim, crop, shelf, locate, max_len
        self.appearance = CropEncoder(crop, dim // 2, pool, levels)
        self.drop = nn.Dropout(dropout)
        blocks = {"num_heads": num_heads, "hidden_dim": hidden_dim, "dropout": dropout}
        self.encoder = nn.ModuleList(PostNormEncoderBlock(dim, **blocks) for _ in range(depth))  # type: ignore[arg-type]
        self.decoder = nn.ModuleList(PostNormDecoderBlock(dim, **blocks) for _ in range(depth))  # type: ignore[arg-type]
        self.head = ObjectPointer(dim)
        self.register_buffer("table", distance_table(max(2, *shelf), -(-dim // 6), norm))
        for parameter in (*self.appearance.parameters(), *self.encoder.parameters(), *self.decoder.parameters()):
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        if not locate:
            self._tell_looks_apart()

    @torch.no_grad()
    def _tell_looks_apart(self) -> None:
        """Start so that equal looks attend to each other: spread appearances, and keys of the encoder like its queries.

        The appearances of an untrained encoder differ by a third of what they have in common. They are centred and
        enlarged by those of crops of one colour. Otherwise the network did not learn to find the target by its look.
        """
        fc = self.appearance.fc
        found = self.appearance(torch.rand(COLOURS, 3, 1, 1).expand(-1, -1, *self.crop))
        scale = SPREAD / found.std(0).mean()
        fc.weight.mul_(scale)
        fc.bias.copy_(fc.bias - found.mean(0)).mul_(scale)
        for block in self.encoder:
            assert isinstance(block, PostNormEncoderBlock)
            block.attention.key.load_state_dict(block.attention.query.state_dict())

    # --- reading ----------------------------------------------------------------------------------------------------

    def _check(self, regions: Tensor) -> None:
        """UsageError unless regions are scenes of at least one object, on shelves that fit the table."""
        columns = self.input_shape[1]
        if regions.dim() != 3 or regions.shape[1] < 2 or regions.shape[2] != columns or not regions.is_floating_point():
            raise UsageError(
                f"regions are {regions.dtype} of shape {tuple(regions.shape)}; they must be floating point (batch, at"
                f" least one object and the target, {columns}), for crops of {self.crop}."
            )
        if torch.compiler.is_compiling() or regions.is_meta or not len(regions):
            return
        places = regions[..., -PLACE:]
        if not bool((places[:, :-1, 0] >= 0).any(1).all()):
            scene = int((places[:, :-1, 0] < 0).all(1).nonzero()[0])
            raise UsageError(f"regions of scene {scene} have no object; leave it out, or place at least one object.")
        if (most := int(places.max())) >= len(self.table):
            raise UsageError(
                f"regions are in row or column {most}; the network's shelf is {self.shelf}: make it with a larger one."
            )

    def _code(self, places: Tensor, flags: Tensor) -> Tensor:
        """The code of row, column and flag: int64 (..., 2), bool (...) -> (..., dim / 2)."""
        rows = torch.cat((places, flags.long().unsqueeze(-1)), -1).clamp(min=0)
        return self.table[rows].flatten(-2)[..., : self.num_features // 2]

    def _looks(self, crops: Tensor) -> Tensor:
        """The appearance of crops, of which equal ones, such as a product on every shelf, are read once."""
        if torch.compiler.is_compiling() or crops.is_meta or crops.requires_grad or len(crops) < 2:
            return self.appearance(crops)
        rows = crops.flatten(1)
        sums = rows @ torch.linspace(1, 2, rows.shape[1], device=rows.device, dtype=rows.dtype)
        different, inverse = sums.unique(return_inverse=True)
        first = inverse.new_zeros(len(different)).scatter_(0, inverse, torch.arange(len(rows), device=rows.device))
        if not torch.equal(rows[first[inverse]], rows):  # different crops of equal sums
            return self.appearance(crops)
        return self.appearance(crops[first])[inverse]

    def forward_features(self, inputs: Tensor) -> Shelf:
        """Scenes as the decoder reads them."""
        self._check(inputs)
        count, number = inputs.shape[0], inputs.shape[1] - 1
        places = inputs[..., -PLACE:].detach().round().long()
        crops = inputs[..., :-PLACE].unflatten(-1, (3, *self.crop))
        looks = self._looks(crops.flatten(0, 1)).unflatten(0, (count, number + 1))
        objects, target = places[:, :-1], places[:, -1:]
        known = (target[..., 0] >= 0) & self.locate
        present = F.pad(objects[..., 0] >= 0, (0, 1), value=True)
        flags = F.pad(torch.zeros_like(present[:, :-1]), (0, 1), value=True)
        codes = self._code(places, flags) * torch.cat((present[:, :-1], known), 1).unsqueeze(-1)
        x = torch.cat((looks, codes), -1)
        for block in self.encoder:
            x = block(x, present)
        blank = self.appearance(crops.new_ones(1, 3, *self.crop))
        centre = (objects.amax(1, keepdim=True) + 1) // 2
        marked = (objects == target).all(-1) & known
        tokens = torch.cat((looks[:, :-1], blank.expand(count, 1, -1)), 1)
        tokens = torch.cat((tokens, self._code(torch.cat((objects, centre), 1), F.pad(marked, (0, 1)))), -1)
        return Shelf(x, self.head.keys(x), tokens, present)

    # --- paths ------------------------------------------------------------------------------------------------------

    def _decode(self, shelf: Shelf, x: Tensor, state: PathState) -> tuple[Tensor, PathState]:
        """Tokens (batch, paths, steps, dim) after a state -> the decoder's output and the next state."""
        steps = torch.arange(state.step, state.step + x.shape[2], device=x.device).unsqueeze(0)
        x = self.drop(x + sinusoids(steps, x))
        past: list[Pair] = []
        before = state.past or (None,) * len(self.decoder)
        for block, context, known in zip(self.decoder, state.contexts, before, strict=True):
            x, pair = block(x, context, shelf.present, known)
            past.append(pair)
        return x, PathState(state.step + x.shape[2], state.contexts, tuple(past))

    def _log_shares(self, shelf: Shelf, features: Tensor) -> Tensor:
        """Features (batch, receivers, dim) -> (batch, receivers, objects + 1)."""
        shares = self.head.point(shelf.keys, features, shelf.present)
        # The loss reads the couplings that are recorded. A probability of zero has a finite logarithm.
        wide = shares.to(accumulation_type(shares))
        return wide.clamp(min=torch.finfo(wide.dtype).tiny).log().to(shares.dtype)

    def score(self, shelf: Shelf, fixations: Tensor) -> Tensor:
        """Logarithms of the probabilities of each fixation behind the true ones: (batch, steps + 1, objects + 1).

        Args:
            fixations: objects, -1 for padding: int64 (batch, steps).
        """
        number = shelf.tokens.shape[1] - 1
        if fixations.dim() != 2 or len(fixations) != len(shelf.tokens) or fixations.dtype != torch.int64:
            raise UsageError(
                f"fixations are {fixations.dtype} of shape {tuple(fixations.shape)}; they must be int64"
                f" ({len(shelf.tokens)}, steps)."
            )
        if not torch.compiler.is_compiling() and fixations.numel() and int(fixations.max()) >= number:
            raise UsageError(
                f"fixations hold {int(fixations.max())}; the objects of the scene are 0 to {number - 1}; leave"
                " STOP out."
            )
        places = F.pad(fixations.clamp(min=0), (1, 0), value=number)
        x = shelf.tokens.gather(1, places.unsqueeze(-1).expand(-1, -1, shelf.tokens.shape[-1])).unsqueeze(1)
        return self._log_shares(shelf, self._decode(shelf, x, self.begin(shelf))[0].squeeze(1))

    def begin(self, shelf: Shelf) -> PathState:
        """The state before the first token: what every layer reads of the scenes, once."""
        return PathState(0, tuple(block.read(shelf.states) for block in self.decoder))  # type: ignore[operator]

    def _check_state(self, state: PathState, scenes: int, paths: int) -> None:
        """UsageError for a state of another network, or of other scenes or paths."""
        rows = [(pair[0].shape[-1], len(pair[0])) for pair in (*state.contexts, *state.past)]
        depth, dim = len(self.decoder), self.num_features
        if rows != [(dim, scenes)] * depth + [(dim, paths)] * (depth if state.past else 0):
            raise UsageError(
                f"state is of {len(state.contexts)} layers with {rows[0][0]} numbers for {rows[0][1]} scenes and"
                f" {rows[-1][1]} paths; this step needs {depth} with {dim} for {scenes} and {paths}: begin anew."
            )

    def step(self, shelf: Shelf, state: PathState, fixations: Tensor | None = None) -> tuple[Tensor, Tensor, PathState]:
        """One step of all paths: log probabilities and features of the next fixation, and the next state.

        Args:
            shelf: of `forward_features`.
            state: of `begin`, or of the step before.
            fixations: the last objects, int64 (batch, paths); None at the start, of one path for each scene.

        Shapes: -> (batch, paths, objects + 1), (batch, paths, dim).
        """
        count, number = shelf.tokens.shape[0], shelf.tokens.shape[1] - 1
        places = shelf.present.new_full((count, 1), number, dtype=torch.int64) if fixations is None else fixations
        if not torch.compiler.is_compiling():
            self._check_state(state, count, places.numel())
        x = shelf.tokens.gather(1, places.unsqueeze(-1).expand(-1, -1, shelf.tokens.shape[-1])).unsqueeze(2)
        x, state = self._decode(shelf, x, state)
        return self._log_shares(shelf, x.squeeze(2)), x.squeeze(2), state

    def search(
        self,
        shelf: Shelf,
        paths: int = 1,
        *,
        sample: bool = False,
        draws: Tensor | None = None,
        max_len: int | None = None,
        whole: bool = False,
    ) -> Paths:
        """Point step by step to the most probable object, or to one that is drawn; never to STOP first.

        All paths of a scene share its encoder and take their steps together.

        Args:
            shelf: of `forward_features`.
            paths: for each scene.
            sample: draw fixations rather than take the most probable one.
            draws: uniform in [0, 1), which decide each fixation, (batch, paths, max_len); drawn when None.
            max_len: most fixations; the network's own when None.
            whole: take all steps, also behind the STOP of every path.
        """
        count, number, most = shelf.tokens.shape[0], shelf.tokens.shape[1] - 1, max_len or self.max_len
        check_count(1, paths=paths, max_len=most)
        if sample and draws is None:
            draws = torch.rand(count, paths, most, device=shelf.tokens.device)
        if draws is not None and (not sample or draws.shape != (count, paths, most)):
            raise UsageError(f"draws are {tuple(draws.shape)}; they must be {(count, paths, most)}, with sample=True.")
        state = self.begin(shelf)
        choice: Tensor | None = None
        ended = shelf.present.new_zeros(count, paths)
        found: list[Tensor] = []
        shares: list[Tensor] = []
        features: list[Tensor] = []
        for step in range(most):
            if choice is None and paths > 1:  # the first token is the same for all paths
                log_shares, made, state = self.step(shelf, state)
                past = tuple((k.repeat_interleave(paths, 0), v.repeat_interleave(paths, 0)) for k, v in state.past)
                state, log_shares = state._replace(past=past), log_shares.expand(-1, paths, -1)
            else:
                log_shares, made, state = self.step(shelf, state, choice)
            shares.append(log_shares[:, :1])
            features.append(made[:, :1])
            wide = log_shares.to(accumulation_type(log_shares)).exp()
            if step == 0:
                wide = F.pad(wide[..., :-1], (0, 1))
            if draws is None:
                choice = wide.argmax(-1)
            else:
                sums = wide.cumsum(-1)
                choice = (sums <= draws[..., step, None] * sums[..., -1:]).sum(-1).clamp(max=number)
            ended = ended | (choice == number)
            found.append(choice.masked_fill(ended, -1))
            choice = choice.masked_fill(ended, 0)
            if not whole and bool(ended.all()):
                break
        fixations = F.pad(torch.stack(found, -1), (0, most - len(found)), value=-1)
        return Paths(fixations, torch.cat(shares, 1), torch.cat(features, 1))

    @torch.no_grad()
    def generate(
        self, regions: Tensor, max_len: int | None = None, sample: bool = False, n: int = 1
    ) -> list[list[list[int]]]:
        """The scanpaths of each scene: `n` lists of objects, the most probable one or samples."""
        found = self.search(self.forward_features(regions), n, sample=sample, max_len=max_len).fixations
        return [[[each for each in path if each >= 0] for path in scene] for scene in found.tolist()]

    def forward_head(self, features: Shelf, pre_logits: bool = False) -> Tensor:
        """Logarithms of probabilities along the greedy search; with `pre_logits` the features that are scored."""
        found = self.search(features, whole=True)
        return found.features if pre_logits else found.log_shares

    def forward(self, inputs: Tensor, fixations: Tensor | None = None) -> Tensor:
        shelf = self.forward_features(inputs)
        return self.forward_head(shelf) if fixations is None else self.score(shelf, fixations)

    # --- what every network has -------------------------------------------------------------------------------------

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.shelf[0] * self.shelf[1] + 1, 3 * self.crop[0] * self.crop[1] + PLACE

    def example_inputs(self, count: int) -> Tensor:
        """Scenes of random pixels on a full shelf; the target of scene i is object i."""
        inputs = super().example_inputs(count)
        cells = torch.arange(inputs.shape[1] - 1, device=inputs.device)
        places = torch.stack((cells // self.shelf[1], cells % self.shelf[1]), -1).to(inputs)
        inputs[:, :-1, -PLACE:] = places
        inputs[:, -1] = inputs[torch.arange(count), torch.arange(count) % len(cells)]
        return inputs

    def layer_depths(self) -> dict[str, int]:
        """The layer of each parameter by name: the crops, the encoder, the decoder, the head."""
        names = [name for name, _ in self.named_parameters()]
        return layer_depths(names, ["appearance", "encoder", "decoder"], self.classifier_parts)


_register = partial(register_model, module=ObjectAttentionTransformer, source="arXiv:2407.13335", rate=1e-4)

_register(
    "oat",
    summary="Object-level attention transformer for paths of gaze over shelves of 2 x 11 objects.",
    parameters=18_255_843,
    tiny={
        "dim": 18, "num_heads": 2, "hidden_dim": 8, "depth": 1, "crop": (12, 10), "pool": 2, "levels": 1,
        "shelf": (1, 3), "norm": 1.5, "max_len": 3,
    },
    variants={"without the place of the target": {"locate": False, "levels": 2, "depth": 2}},
)  # fmt: skip
_register("oat_yogurt", summary="OAT for shelves of 3 x 9 objects.", parameters=18_255_843, shelf=(3, 9))
_register("oat_books", summary="OAT for shelves of 6 x 14 objects.", parameters=18_255_843, shelf=(6, 14), norm=8.764)
_register(
    "oat_small",
    summary="OAT of 64 units and 2 + 2 blocks, for shelves of 4 x 5 objects of 16 x 16 pixels.",
    parameters=162_051,
    dim=64,
    hidden_dim=64,
    depth=2,
    crop=(16, 16),
    pool=2,
    levels=2,
    shelf=(4, 5),
    norm=1.0,
    max_len=24,
)  # fmt: skip

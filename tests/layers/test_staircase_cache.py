"""The staircase of bits: groups against loops, the bits of every block, and decoding with it."""

import math

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.layers import StaircaseCache
from mereo.layers.staircase_cache import dequantise, quantise, requantise
from mereo.models.sequence.causal_transformer import CausalTransformer

NORMAL = torch.randn(4000, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def by_loops(group: list[float], bits: int) -> list[float]:
    low, most = min(group), 2**bits - 1
    step = (max(group) - low) / most
    return [low if step == 0 else low + step * round((x - low) / step) for x in group]


def error(found: Tensor, bits_of: Tensor = NORMAL) -> float:
    return (found - bits_of).square().mean().sqrt().item()


def tokens_of(count: int, heads: int = 2, dim: int = 4, batch: int = 2) -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(2, batch, heads, count, dim, dtype=torch.float64))  # type: ignore[return-value]


def test_worked_groups() -> None:
    x = torch.tensor([0, 1, 2, 3, 10, 11, 12, 13.0])
    assert torch.equal(dequantise(quantise(x.view(2, 4), 2)).flatten(), x)
    expected = torch.tensor([0, 0, 0, 13 / 3, 26 / 3, 13, 13, 13])
    torch.testing.assert_close(dequantise(quantise(x, 2)), expected)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("size", [1, 5, 8])
def test_groups_are_rounded_between_their_ends(bits: int, size: int) -> None:
    x = NORMAL[:6, :size]
    codes = quantise(x, bits)
    found = dequantise(codes)
    expected = torch.tensor([by_loops(group, bits) for group in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    assert ((found - x).abs() <= codes.step / 2 + 1e-12).all()
    assert codes.packed.dtype == torch.uint8 and codes.packed.shape == (6, -(-size // (8 // bits)))


def test_errors_of_normal_numbers() -> None:
    found = {bits: error(dequantise(quantise(NORMAL, bits))) for bits in (8, 4, 2)}
    assert found[8] == pytest.approx(0.0046, abs=1e-4)
    assert found[4] == pytest.approx(0.079, abs=1e-3) and found[2] == pytest.approx(0.39, abs=5e-3)


def test_fewer_bits_step_by_step() -> None:
    codes = quantise(NORMAL, 8)
    for bits in (4, 2):
        through_numbers = quantise(dequantise(codes), bits)
        codes = requantise(codes, bits)
        assert torch.equal(codes.packed, through_numbers.packed)
        torch.testing.assert_close(codes.step, through_numbers.step)
        # 8, 4, 2 bits share their thresholds, so that the way does not matter.
        direct = error(dequantise(quantise(NORMAL, bits)))
        assert error(dequantise(codes)) == pytest.approx(direct, abs=1e-5)
    # Other numbers of bits do not.
    odd = requantise(requantise(quantise(NORMAL, 8), 5), 3)
    direct = quantise(NORMAL, 3)
    rounded = [((dequantise(each) - each.low) / each.step).round() for each in (odd, direct)]
    assert (rounded[0] != rounded[1]).double().mean().item() == pytest.approx(0.05, abs=0.01)
    assert error(dequantise(odd)) == pytest.approx(0.172, abs=2e-3)
    assert error(dequantise(direct)) == pytest.approx(0.168, abs=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_equal_numbers_and_half_precision(dtype: torch.dtype) -> None:
    flat = torch.full((3, 8), -2.5, dtype=dtype)
    assert torch.equal(dequantise(quantise(flat, 2)), flat)
    assert not dequantise(quantise(torch.zeros(3, 8, dtype=dtype), 4)).any()
    x = NORMAL[:50].to(dtype)
    codes = quantise(x, 4)
    assert dequantise(codes).dtype == codes.step.dtype == dtype
    assert ((dequantise(codes) - x).abs() <= 0.52 * codes.step + 0.02).all()


def test_the_bits_of_every_block() -> None:
    cache, keys = StaircaseCache(block=2, group=2), tokens_of(10)[0]
    found = []
    for t in range(10):
        cache = cache.append(keys[:, :, t : t + 1], keys[:, :, t : t + 1])
        found.append(cache.block_bits)
        assert cache.position == t + 1 and cache.keys is not None and cache.keys.shape[2] == (t + 1) % 2
    assert found[1::2] == [[8], [4, 8], [2, 4, 8], [2, 2, 4, 8], [2, 2, 2, 4, 8]]
    assert found[::2] == [[], *found[1:-1:2]]


def read_by_loops(cache: StaircaseCache, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as numbers: every block quantised anew, from many bits to few."""
    keys, values = keys.clone(), values.clone()
    size, group = cache.block, cache.group
    blocks = keys.shape[2] // size
    for block in range(blocks):
        passed = cache.bits[1 : min(blocks - block, len(cache.bits) - 1) + 1]
        for bits in passed:
            for b in range(keys.shape[0]):
                for start in range(block * size, (block + 1) * size, group):
                    for h in range(keys.shape[1]):
                        for c in range(keys.shape[3]):
                            part = keys[b, h, start : start + group, c]
                            part.copy_(torch.tensor(by_loops(part.tolist(), bits)))
                for t in range(block * size, (block + 1) * size):
                    flat = values[b, :, t].flatten()
                    rounded = [by_loops(part.tolist(), bits) for part in flat.split(group)]
                    values[b, :, t] = torch.tensor(rounded).view(values[b, :, t].shape)
    return keys, values


@pytest.mark.parametrize("bits", [(16, 8, 4, 2), (16, 4), (16, 8, 5, 3)])
def test_loops_give_the_same_in_the_order_of_time(bits: tuple[int, ...]) -> None:
    cache = StaircaseCache(bits, block=4, group=2)
    keys, values = tokens_of(19)
    whole = cache.append(keys, values)
    for found, expected in zip(whole.read(), read_by_loops(cache, keys, values), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    parts = cache
    for start, end in ((0, 3), (3, 4), (4, 13), (13, 19)):
        parts = parts.append(keys[:, :, start:end], values[:, :, start:end])
    for found, expected in zip(parts.read(), whole.read(), strict=True):
        torch.testing.assert_close(found, expected)
    assert parts.block_bits == whole.block_bits


def test_exact_until_the_first_block_and_with_sixteen_bits() -> None:
    keys, values = tokens_of(11)
    for cache, count in ((StaircaseCache(block=12, group=4), 11), (StaircaseCache((16, 16, 16), 4, 2), 11)):
        found = cache.append(keys[:, :, :count], values[:, :, :count]).read()
        assert torch.equal(found[0], keys[:, :, :count]) and torch.equal(found[1], values[:, :, :count])
    before = StaircaseCache(block=4, group=2).append(keys[:, :, :5], values[:, :, :5])
    all_keys, _, after = before.join(keys[:, :, 5:], values[:, :, 5:])
    assert torch.equal(all_keys[:, :, 4:], keys[:, :, 4:]) and not torch.equal(all_keys[:, :, :4], keys[:, :, :4])
    assert before.position == 5 and after.position == 11, "a cache does not change"


def test_bytes() -> None:
    heads, dim, group, block = 2, 16, 16, 32
    keys, values = (x.float() for x in tokens_of(4 * block + 3, heads, dim, batch=1))
    cache = StaircaseCache(block=block, group=group).append(keys, values)
    assert cache.block_bits == [2, 2, 4, 8]
    numbers = 2 * heads * dim * block
    codes = numbers * (2 + 2 + 4 + 8) // 8
    scales = 4 * numbers // group * 2 * 4  # a minimum and a step in float32
    exact = 2 * heads * dim * 3 * 4
    assert cache.num_bytes() == codes + scales + exact
    # In half precision: bits + 32 / G a number.
    half = StaircaseCache(block=block, group=group).append(keys.half(), values.half())
    assert half.num_bytes() == numbers * (2 + 2 + 4 + 8 + 4 * 32 // group) // 8 + exact // 2


def decoder() -> CausalTransformer:
    torch.manual_seed(0)
    model = CausalTransformer(31, 16, 2, 2, 20).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def test_decoding_with_sixteen_bits_is_the_whole() -> None:
    model, tokens = decoder(), torch.randint(31, (2, 15))
    state = model.quantised_state((16, 16), block=4, group=4)
    rows = []
    for t in range(15):
        row, state = model.step(tokens[:, t], state)
        rows.append(row)
    torch.testing.assert_close(torch.stack(rows, 1), model(tokens), rtol=1e-4, atol=1e-4)
    start = model.quantised_state((16, 16), block=4, group=4)
    assert torch.equal(model.generate(tokens, 6, temperature=0, state=start), model.generate(tokens, 6, temperature=0))


def test_decoding_with_fewer_bits_drifts_little_and_a_sequence_alone_is_the_same() -> None:
    model, tokens = decoder(), torch.randint(31, (2, 40))
    with torch.no_grad():
        exact = model(tokens)

        def steps(bits: tuple[int, ...], tokens: Tensor) -> tuple[Tensor, int]:
            state, rows = model.quantised_state(bits, block=8, group=8), []
            for t in range(40):
                row, state = model.step(tokens[:, t], state)
                rows.append(row)
            return torch.stack(rows, 1), sum(cache.num_bytes() for cache in state.blocks)

        sizes, errors = [], []
        for bits in ((16, 16), (16, 8), (16, 8, 4, 2), (16, 2)):
            scores, size = steps(bits, tokens)
            assert torch.isfinite(scores).all()
            torch.testing.assert_close(scores[:, :8], exact[:, :8], rtol=1e-4, atol=1e-4)
            alone, _ = steps(bits, tokens[1:])
            torch.testing.assert_close(alone, scores[1:], rtol=1e-4, atol=1e-4)
            sizes.append(size)
            errors.append((scores - exact).square().mean().sqrt().item())
    assert sizes == sorted(sizes, reverse=True) and errors == sorted(errors)
    assert errors[1] < 0.1 * errors[3] and not math.isclose(errors[2], errors[3])


@pytest.mark.parametrize("name", ["append", "join"])
def test_keys_and_values_that_do_not_fit_are_refused(name: str) -> None:
    cache, (keys, values) = StaircaseCache(block=4, group=4), tokens_of(10)
    filled = cache.append(keys, values)
    for given, error in (
        ((keys, values[:, :, :5]), r"keys are \(2, 2, 10, 4\) and values \(2, 2, 5, 4\)"),
        ((keys, values[..., :2]), r"values \(2, 2, 10, 2\)"),
        ((keys[0], values[0]), r"must be \(batch, heads, tokens, dim\)"),
        ((keys.long(), values), "keys is torch.int64"),
        ((keys, values.long()), "values is torch.int64"),
    ):
        for each in (cache, filled):
            with pytest.raises(UsageError, match=error):
                getattr(each, name)(*given)
    for other in (tokens_of(1, batch=3), tokens_of(1, heads=4), tokens_of(1, dim=8)):
        with pytest.raises(UsageError, match="the cache has 2 samples, 2 heads and dim 4"):
            getattr(filled, name)(*other)
        assert getattr(cache, name)(*other)


def test_wrong_arguments() -> None:
    for bits in ((16,), (8, 4), (16, 4, 8), (16, 12), (16, 0)):
        with pytest.raises(UsageError, match="bits are"):
            StaircaseCache(bits)
    with pytest.raises(UsageError, match="block"):
        StaircaseCache(block=6, group=4)
    with pytest.raises(UsageError, match="group is"):
        StaircaseCache(block=6, group=3).append(*tokens_of(6))
    with pytest.raises(UsageError, match="append"):
        StaircaseCache().read()
    with pytest.raises(UsageError, match="softmax"):
        CausalTransformer(31, 12, 1, 3, 20, mechanism="lightning").quantised_state()

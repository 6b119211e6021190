"""Sparsifiner in DeiT: counts, the host's weights, kept keys, and the phases."""

import torch

import mereo
from mereo.mechanisms.attention.sparse import attention_cost, set_phase
from mereo.models.registry import families, outline
from mereo.models.vision import ViT

TINY = families()["sparsifiner_vit"].tiny or {}


def tiny(**changes: object) -> ViT:
    torch.manual_seed(0)
    model: ViT = mereo.create_model("sparsifiner_deit_small", **{**TINY, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def test_predictors_add_their_parameters_and_save_multiplications() -> None:
    model = outline("sparsifiner_deit_small")
    own = sum(p.numel() for name, p in model.named_parameters() if ".predictor." in name)
    assert own == 12 * 16_768 and sum(p.numel() for p in model.parameters()) == 22_050_664 + own
    layer = model.blocks[0].attn
    assert layer.tokens == 197 and layer.predictor.up.shape == (32, 197) and layer.keep == 0.25
    cost = 12 * 6 * attention_cost(197, 64, layer.keep)
    assert abs(cost / 1e6 - 186.2) < 0.1
    assert outline("sparsifiner_cifar").blocks[0].attn.predictor.up.shape == (10, 65)


def test_with_all_keys_it_is_the_plain_transformer() -> None:
    model, images = tiny(keep=1.0), torch.rand(2, 3, 16, 16)
    names = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes")
    plain = mereo.create_model("deit_small", **{name: TINY[name] for name in names}).eval()
    state = model.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    torch.testing.assert_close(model(images), plain(images), rtol=1e-4, atol=1e-5)
    dense = tiny()
    set_phase(dense, "reconstruction")
    torch.testing.assert_close(dense(images), plain(images), rtol=1e-4, atol=1e-5)


def test_queries_keep_half_of_the_keys_and_the_class_token_all() -> None:
    model = tiny()
    with mereo.record(model) as trace:
        model(torch.rand(2, 3, 16, 16))
    kept = (trace["blocks.1.attn.coupling"] > 0).sum(-1)
    assert kept.shape == (2, 3, 17) and (kept[:, :, 0] == 17).all() and (kept[:, :, 1:] == 9).all()


def test_predictors_learn_while_attention_is_dense() -> None:
    model = tiny().train()
    for phase in ("reconstruction", "sparse"):
        set_phase(model, phase)
        learned = {name for name, p in model.named_parameters() if p.requires_grad}
        assert any(".predictor." in name for name in learned) == (phase == "reconstruction")

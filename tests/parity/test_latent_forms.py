"""DeepSeek through our cache in each of the two forms of latent attention, against transformers without one."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vantage as vt
from tests.parity.case import VOCAB
from tests.parity.rows.deepseek import V2, V3
from vantage.attention import LatentAttention
from vantage.errors import BadInput, CheckpointError

TOKENS = torch.randint(3, VOCAB, (2, 24), generator=torch.Generator().manual_seed(5))


def force(model, absorbed):
    for module in model.modules():
        if isinstance(module, LatentAttention):
            module.absorbing_is_cheaper = lambda T, S: absorbed


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("option", ["plain", "direct-queries", "biases", "yarn-mscale"])
@pytest.mark.parametrize("case", [V2, V3], ids=lambda case: case.family)
@torch.no_grad()
def test_both_forms_through_a_cache(case, option, kind, tmp_path):
    theirs = case.make(option)
    theirs.save_pretrained(tmp_path)
    wanted = theirs.double()(TOKENS).logits
    ours = vt.load(tmp_path, dtype=torch.float64)
    for absorbed in (True, False):
        force(ours, absorbed)
        cache = ours.new_cache(2, kind=kind)
        steps = [ours(TOKENS[:, a:b], cache=cache) for a, b in ((0, 7), (7, 8), (8, 9), (9, 15), (15, 16), (16, 24))]
        got = torch.cat(steps, 1)
        assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-6


# ---- what is refused and what is passed over


def saved(case, folder, changes):
    case.make("plain").save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize(
    ("case", "changes", "says"),
    [
        (V2, {"norm_topk_prob": True}, "norm_topk_prob is True; wanted False"),
        (V2, {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'; wanted 'softmax'"),
        (V2, {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'; wanted one of greedy, group_limited_greedy"),
        (V2, {"moe_layer_freq": 2}, "moe_layer_freq is 2; wanted 1"),
        (V2, {"num_key_value_heads": 2}, "num_key_value_heads is 2; wanted 4"),
        (V2, {"head_dim": 7}, "head_dim is 7; wanted 8"),
        (V3, {"scoring_func": "softmax"}, "scoring_func is 'softmax'; wanted 'sigmoid'"),
        (V3, {"topk_method": "greedy"}, "topk_method is 'greedy'; wanted 'noaux_tc'"),
        (V3, {"mlp_bias": True}, "'mlp_bias' may change the model"),
        (
            V3,
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0, "mscale_all_dim": 1.0}},
            "mscale",
        ),
        (V3, {"n_routed_experts": 9}, "9 experts do not divide into 4 groups"),
    ],
)
def test_refused_by_name(case, changes, says, tmp_path):
    with pytest.raises((CheckpointError, BadInput), match=says):
        vt.load(saved(case, tmp_path, changes))


@torch.no_grad()
def test_keys_of_the_published_checkpoints_are_known(tmp_path):
    """As in DeepSeek-V3's own config.json, which has more keys than transformers writes."""
    both = {"moe_layer_freq": 1, "ep_size": 1, "aux_loss_alpha": 0.001, "seq_aux": True, "pretraining_tp": 1}
    v3 = {**both, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 1}
    v2 = {**both, "scoring_func": "softmax", "topk_method": "greedy", "n_group": 1, "topk_group": 1}
    for case, keys in ((V3, v3), (V2, v2)):
        folder = saved(case, tmp_path / case.family, keys)
        wanted = case.make("plain")(TOKENS).logits
        torch.testing.assert_close(vt.load(folder)(TOKENS), wanted, rtol=0, atol=1e-4)


def test_the_drafting_layer_of_v3_is_passed_over_and_no_other(tmp_path):
    saved(V3, tmp_path, {})
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "model.layers.61.eh_proj.weight": torch.ones(2, 4)}, file)
    vt.load(tmp_path)
    save_file({**tensors, "model.layers.60.eh_proj.weight": torch.ones(2, 4)}, file)
    with pytest.raises(CheckpointError, match=r"model\.layers\.60\.eh_proj\.weight"):
        vt.load(tmp_path)

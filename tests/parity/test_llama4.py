"""LLaMA-4 through every cache, across chunks; what its config may not say."""

import json
from itertools import pairwise

import pytest
import torch

import vantage as vt
from tests.parity.case import VOCAB
from tests.parity.rows.llama4 import LLAMA4
from vantage.checkpoints.config import Config
from vantage.errors import CheckpointError
from vantage.families.llama4 import spec

TOKENS = torch.randint(3, VOCAB, (2, 33), generator=torch.Generator().manual_seed(5))
CUTS = (0, 7, 8, 9, 10, 11, 19, 23, 33)  # chunks of 10 are crossed inside and at the edge of a call


@pytest.mark.parametrize("kind", ["contiguous", "ring", "paged"])
@pytest.mark.parametrize("option", ["plain", "two-experts", "nope-chunked"])
@torch.no_grad()
def test_through_every_cache(option, kind, tmp_path):
    theirs = LLAMA4.make(option)
    theirs.save_pretrained(tmp_path)
    wanted = theirs.double()(TOKENS).logits
    ours = vt.load(tmp_path, dtype=torch.float64)
    cache = ours.new_cache(2, kind=kind, capacity=40)
    got = torch.cat([ours(TOKENS[:, a:b], cache=cache) for a, b in pairwise(CUTS)], 1)
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-6


def test_scouts_first_config_spells_a_flag_as_a_number():
    base = LLAMA4.base
    said = {value: spec(Config({**base, "attn_temperature_tuning": value})) for value in (True, 4, False, 0)}
    assert said[4] == said[True] != said[False]
    with pytest.raises(CheckpointError, match="attn_temperature_tuning is 'yes'; wanted true or false"):
        spec(Config({**base, "attn_temperature_tuning": "yes"}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attention_chunk_size": None}, "'attention_chunk_size' is missing"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers speaks of 2 layers, num_hidden_layers is 4"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types is .* wanted one of chunked_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types is .* wanted one of chunked_attention"),
        ({"attn_temperature_tuning": "4"}, "attn_temperature_tuning is .4.; wanted true or false"),
        ({"vision_config": {}}, "'vision_config' may change the model"),
    ],
)
def test_refused_by_name(changes, says, tmp_path):
    LLAMA4.make("plain").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=says):
        vt.load(tmp_path)

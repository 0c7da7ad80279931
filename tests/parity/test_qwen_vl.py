"""Qwen2-VL and Qwen3-VL: the text model of transformers, where tokens stand on one axis and on three."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import vantage as vt
from tests.parity.case import DECODER, Float64, sharpen
from tests.parity.test_families import TOKENS
from vantage.checkpoints.config import Config
from vantage.errors import CheckpointError
from vantage.families import families
from vantage.spec.positions import Positions

TEXT = {**DECODER, "num_key_value_heads": 2}
TOWERS = {
    "qwen2_vl": {"depth": 1, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "patch_size": 4},
    "qwen3_vl": {
        "depth": 1,
        "hidden_size": 32,
        "out_hidden_size": 48,
        "num_heads": 2,
        "patch_size": 4,
        "intermediate_size": 40,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
    },
}
TURNS = {
    "qwen2_vl": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2, 3]},
    "qwen3_vl": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
}
CLASSES = {"qwen2_vl": "Qwen2VL", "qwen3_vl": "Qwen3VL"}
# two words, an image of 3 × 4 patches, words from position 6 on
ROWS, COLUMNS = torch.arange(3).repeat_interleave(4) + 2, torch.arange(4).repeat(3) + 2
IMAGE = torch.stack([torch.full((12,), 2), ROWS, COLUMNS])
AXES = torch.cat([torch.arange(2).expand(3, 2), IMAGE, torch.arange(6, 32).expand(3, 26)], 1)[:, None].expand(3, 2, 40)


def config(family, **changes):
    text = {
        **TEXT,
        **({"head_dim": 16} if family == "qwen3_vl" else {"max_window_layers": 3}),
        "rope_parameters": TURNS[family],
        **changes,
    }
    return getattr(transformers, f"{CLASSES[family]}Config")(text_config=text, vision_config=TOWERS[family])


@pytest.fixture(params=CLASSES)
def made(request, tmp_path):
    family = request.param
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{CLASSES[family]}ForConditionalGeneration")(config(family)).eval()
        sharpen(model)
    model.save_pretrained(tmp_path / "theirs")
    return model, tmp_path


def close(got, wanted, within):
    assert float((got - wanted).abs().max() / wanted.abs().max()) < within


@torch.no_grad()
def test_logits_in_text_and_on_three_axes(made):
    theirs, folder = made
    ours = vt.load(folder / "theirs")
    close(ours(TOKENS), theirs(TOKENS).logits, 1e-4)
    theirs, ours = theirs.double(), vt.load(folder / "theirs", dtype=torch.float64)
    with Float64():
        wanted, in_text = theirs(TOKENS, position_ids=AXES).logits, theirs(TOKENS).logits
    close(ours(TOKENS), in_text, 1e-6)
    got = ours(TOKENS, positions=Positions.of_axes(AXES))
    close(got, wanted, 1e-6)
    assert float((got - in_text).abs().max()) > 1e-2  # where a token stands matters
    cache = ours.new_cache(2)
    pieces = [ours(TOKENS[:, :20], positions=Positions.of_axes(AXES[..., :20]), cache=cache)]
    pieces += [ours(piece, cache=cache) for piece in TOKENS[:, 20:].split((1, 7, 12), 1)]  # positions follow the image
    close(torch.cat(pieces, 1), wanted, 1e-6)


@torch.no_grad()
def test_greedy_tokens_are_those_of_transformers(made):
    theirs, folder = made
    ours, theirs = vt.load(folder / "theirs", dtype=torch.float64), theirs.double()
    got = vt.generate(ours, [TOKENS[0, :8].tolist()], max_tokens=24, ends=False)[0].tokens
    with Float64():
        wanted = theirs.generate(TOKENS[:1, :8], max_new_tokens=24, do_sample=False, eos_token_id=None)
    assert list(got) == wanted[0, 8:].tolist()


@torch.no_grad()
def test_the_text_model_alone(made):
    """As transformers saves it when it is taken out of the whole."""
    theirs, folder = made
    text = theirs.model.language_model
    text.save_pretrained(folder / "text")
    tensors = load_file(folder / "text" / "model.safetensors")
    head = {"lm_head.weight": theirs.lm_head.weight.detach().clone()}
    save_file(
        {f"model.{name}": tensor for name, tensor in tensors.items()} | head, folder / "text" / "model.safetensors"
    )
    ours = vt.load(folder / "text")
    assert ours.spec.vision is None
    close(ours.hidden(TOKENS), text(TOKENS).last_hidden_state, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("made", ["qwen2_vl"], indirect=True)
def test_a_config_without_a_part_for_the_text(made):
    """As Qwen2-VL was published: the text model's keys beside the tower's."""
    _, folder = made
    wanted, path = vt.load(folder / "theirs")(TOKENS), folder / "theirs" / "config.json"
    values = json.loads(path.read_text())
    text = values.pop("text_config")
    turns = {"type": "mrope", "mrope_section": text.pop("rope_parameters")["mrope_section"]}
    path.write_text(json.dumps({**text, **values, "rope_theta": 1e4, "rope_scaling": turns, "vision_token_id": 9}))
    ours = vt.load(folder / "theirs")
    assert torch.equal(ours(TOKENS), wanted)
    vt.save(ours, folder / "ours")
    assert torch.equal(vt.load(folder / "ours")(TOKENS), wanted)


def test_a_config_without_a_tower():
    with pytest.raises(CheckpointError, match="'vision_config' is missing"):
        settle("qwen2_vl", Config({"text_config": TEXT}))


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("qwen2_vl", {"rope_parameters": {"mrope_interleaved": True}}, "mrope_interleaved is True; wanted False"),
        ("qwen3_vl", {"rope_parameters": {"mrope_interleaved": False}}, "mrope_interleaved is False; wanted True"),
        ("qwen2_vl", {"rope_parameters": {"rope_type": "axial"}}, "rope_type is 'axial'; wanted one of default, mrope"),
        ("qwen3_vl", {"invented": 1}, "'invented' may change the model"),
    ],
)
def test_refused(family, changes, says):
    values = Config({"text_config": {**TEXT, **changes}, "vision_config": TOWERS[family]})
    with pytest.raises(CheckpointError, match=says):
        settle(family, values)


def settle(family, values):
    families()[family].spec(values)
    values.settle()

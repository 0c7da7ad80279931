"""``vt.load`` of a transformers model in memory: every family, as if it had been saved and loaded."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
import transformers

import vantage as vt
from tests.generation.folder import CHATML, backend, tokenizer
from tests.parity.case import VOCAB, Case
from tests.parity.cases import CASES
from tests.parity.rows.gemma3 import BASE as GEMMA3
from tests.parity.rows.gpt2 import CASES as GPT2
from tests.parity.rows.llama import CASES as LLAMA
from tests.parity.test_gemma3_images import TOWER
from vantage.errors import BadInput, CheckpointError, Refused

TOKENS = torch.randint(3, VOCAB, (2, 24), generator=torch.Generator().manual_seed(3))
FAMILIES = [pytest.param(case, id=f"{case.family}-{case.model}") for case in CASES]
LLAMA_CASE, GPT2_CASE = LLAMA[0], GPT2[0]


def shares(model: Any, theirs: Any) -> set[str]:
    """Our parameters that lie where one of theirs does."""
    places = {p.untyped_storage().data_ptr() for p in theirs.parameters()}
    return {name for name, p in model.named_parameters() if p.untyped_storage().data_ptr() in places}


@torch.no_grad()
def both(theirs: Any, ours: Any, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What each says to the same."""
    if kind == "image":
        size = theirs.config.image_size
        images = torch.randn(
            2, theirs.config.num_channels, *(size if isinstance(size, (list, tuple)) else (size, size))
        )
        wanted, got = theirs(pixel_values=images), ours(images)
    elif kind == "encoder-decoder":
        wanted, got = theirs(input_ids=TOKENS, decoder_input_ids=TOKENS[:, :9]), ours(TOKENS[:, :9], source=TOKENS)
    else:
        wanted, got = theirs(TOKENS), ours(TOKENS)
    return (wanted.logits if "logits" in wanted else wanted.last_hidden_state), got


@pytest.mark.parametrize("case", FAMILIES)
def test_every_family_is_what_its_folder_would_be(case: Case, tmp_path: Any) -> None:
    theirs = case.make("plain")
    ours = vt.load(theirs)
    wanted, got = both(theirs, ours, case.kind)
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-4
    theirs.save_pretrained(tmp_path)
    saved = vt.load(tmp_path)
    assert ours.spec == saved.spec
    assert ours.config == saved.config
    for (name, a), (other, b) in zip(ours.named_parameters(), saved.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(a, b), name
    assert not ours.training
    assert shares(ours, theirs)


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "MixtralForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM"]
)
def test_what_from_pretrained_gives_is_taken(name: str, tmp_path: Any) -> None:
    """Such a model remembers how its tensors were renamed and joined while they were read."""
    made = next(case for case in CASES if case.model == name).make("plain")
    made.save_pretrained(tmp_path)
    theirs = type(made).from_pretrained(tmp_path, experts_implementation="eager")
    for (key, a), (_, b) in zip(vt.load(theirs).named_parameters(), vt.load(tmp_path).named_parameters(), strict=True):
        assert torch.equal(a, b), key


@pytest.mark.parametrize("tied", [True, False])
def test_the_text_model_of_one_that_sees_images(tied: bool) -> None:
    config = transformers.Gemma3Config(
        text_config={**GEMMA3, "tie_word_embeddings": tied},
        vision_config=TOWER,
        mm_tokens_per_image=4,
        tie_word_embeddings=tied,
    )
    theirs = transformers.Gemma3ForConditionalGeneration(config).eval()
    wanted, got = both(theirs, vt.load(theirs), "decoder")
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-4


def test_weights_that_lie_alike_are_shared() -> None:
    theirs = LLAMA_CASE.make("plain")
    ours = vt.load(theirs)
    apart = {name for name, _ in ours.named_parameters()} - shares(ours, theirs)
    assert apart == {
        name
        for i in range(len(ours.blocks))
        for name in (f"blocks.{i}.steps.0.sublayer.qkv.weight", f"blocks.{i}.steps.1.sublayer.gate_up.weight")
    }
    with torch.no_grad():
        theirs.model.embed_tokens.weight.zero_()
    assert not ours.embed.tokens.weight.any()
    assert not shares(vt.load(theirs, dtype=torch.float64), theirs)


def test_its_dtype_is_kept_unless_another_is_wanted() -> None:
    theirs = LLAMA_CASE.make("plain").bfloat16()
    ours = vt.load(theirs)
    assert ours.dtype == torch.bfloat16
    assert shares(ours, theirs)
    assert vt.load(theirs, dtype=torch.float32).dtype == torch.float32
    wanted, got = both(theirs.float(), vt.load(theirs, dtype="int8"), "decoder")
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 0.2


def test_it_generates_with_a_tokenizer_of_transformers() -> None:
    base = {**LLAMA_CASE.base, "vocab_size": len(tokenizer()), "eos_token_id": 2}
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**base)).eval()
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend(), bos_token="<|im_start|>", eos_token="<|im_end|>", chat_template=CHATML
    )
    words.backend_tokenizer.enable_truncation(2)  # ours reads the whole text all the same
    model = vt.load(theirs, tokenizer=words)
    assert repr(model.tokenizer) == f"<Tokenizer: {len(tokenizer())} tokens, with a chat template>"
    assert model.tokenizer.eos == tokenizer().eos
    text = "the cat sat on a mat"
    answer = vt.generate(model, text, max_tokens=8, ends=False)
    prompt = torch.tensor([tokenizer().encode(text)])
    wanted = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False)
    assert list(answer.prompt + answer.tokens)[: wanted.shape[1]] == wanted[0].tolist()
    assert vt.Conversation(model).ask("hello", max_tokens=3).tokens
    assert vt.load(theirs, tokenizer=backend()).tokenizer.encode(text) == prompt[0].tolist()
    assert vt.load(theirs, tokenizer=model.tokenizer).tokenizer is model.tokenizer


def test_a_tokenizer_from_a_folder_and_wrong_ones(tmp_path: Any) -> None:
    theirs = LLAMA_CASE.make("plain")
    tokenizer().save(tmp_path)
    assert len(vt.load(theirs, tokenizer=tmp_path).tokenizer) == len(tokenizer())
    (tmp_path / "empty").mkdir()
    for wrong, says in ((tmp_path / "empty", "no tokenizer.json"), (5, "tokenizer=5: give")):
        with pytest.raises(BadInput, match=says):
            vt.load(theirs, tokenizer=wrong)


def test_what_we_do_not_know_is_refused_as_its_folder_is(tmp_path: Any) -> None:
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    theirs = transformers.FalconForCausalLM(transformers.FalconConfig(**sizes))
    theirs.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError) as of_folder:
        vt.load(tmp_path)
    with pytest.raises(CheckpointError) as of_model:
        vt.load(theirs)
    assert str(of_model.value) == str(of_folder.value)
    assert "no family is called 'falcon'" in str(of_model.value)


def test_options_that_change_the_model_and_are_not_known_are_refused() -> None:
    theirs = LLAMA_CASE.make("plain")
    theirs.config.mystery_scale = 2.0
    with pytest.raises(CheckpointError, match="mystery_scale"):
        vt.load(theirs)


def test_a_model_without_data_is_refused() -> None:
    with torch.device("meta"):
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA_CASE.base))
    with pytest.raises(BadInput, match="has no data"):
        vt.load(theirs)


def test_an_older_transformers_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = LLAMA_CASE.make("plain")
    monkeypatch.delattr("transformers.core_model_loading.revert_weight_conversion")
    with pytest.raises(Refused, match="save_pretrained and load the folder"):
        vt.load(theirs)


def test_a_transposed_layout_is_copied_and_saved_for_transformers_again(tmp_path: Any) -> None:
    """GPT-2 stores its maps the other way round: they cannot be shared."""
    theirs = GPT2_CASE.make("plain")
    ours = vt.load(theirs)
    assert shares(ours, theirs)
    assert not any("sublayer.qkv.weight" in name for name in shares(ours, theirs))
    vt.save(ours, tmp_path)
    back = type(theirs).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(back(TOKENS).logits, theirs(TOKENS).logits)


@pytest.mark.parametrize("wrong", [None, 5, ["smollm2"], {"a": torch.zeros(1)}, torch.nn.Linear(2, 2)], ids=str)
def test_what_is_no_checkpoint_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInput, match="a model cannot be loaded from"):
        vt.load(wrong)


def test_adapters_of_peft_are_to_be_merged_first() -> None:
    theirs = LLAMA_CASE.make("plain")
    wanted, _ = both(theirs, vt.load(theirs), "decoder")
    wrapped = peft.get_peft_model(theirs, peft.LoraConfig(target_modules=["q_proj"]))
    for adapted in (wrapped, wrapped.base_model.model):
        with pytest.raises(BadInput, match="merge_and_unload"):
            vt.load(adapted)
    merged = wrapped.merge_and_unload()
    _, got = both(merged, vt.load(merged), "decoder")
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-4


def test_ours_need_not_be_loaded() -> None:
    with pytest.raises(BadInput, match="already"):
        vt.load(vt.build(vt.decoder(vocab=8, width=8, layers=1, heads=2)))

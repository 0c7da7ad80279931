"""``vt.train`` with a model and data of one's own: every form, the loss of transformers, and clear refusals."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import vantage as vt
from tests.training.runs import losses, tiny
from vantage.errors import BadInput, Refused
from vantage.model.lora import Lora, add_lora
from vantage.training import read_log
from vantage.training.settings import settings_of
from vantage.training.sources import TaskExamples
from vantage.training.tasks import Copy
from vantage.training.text import BPE, Bytes

SPEC = vt.decoder(vocab=32, width=16, layers=1, heads=2)
ROWS = [list(range(start, start + length)) for start, length in [(1, 5), (3, 9), (7, 4), (2, 7), (11, 6), (4, 8)]]
SHORT: dict[str, Any] = {"steps": 4, "batch_size": 2, "device": "cpu", "settings": {"loop": {"threads": 1}}}


class Rows:
    """A dataset as `datasets` and torch have them: a length, and rows by number."""

    def __init__(self, rows: list[Any]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return self.rows[number]


# ---- every form of data


def forms() -> dict[str, Any]:
    padded = torch.zeros(6, 9, dtype=torch.long)
    mask = torch.zeros(6, 9, dtype=torch.long)
    for i, row in enumerate(ROWS):
        padded[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
    return {
        "lists": ROWS,
        "tensors": [torch.tensor(row) for row in ROWS],
        "arrays": [np.array(row, np.uint16) for row in ROWS],
        "dicts": [{"input_ids": row} for row in ROWS],
        "a dataset": Rows([{"input_ids": row, "attention_mask": [1] * len(row), "other": "x"} for row in ROWS]),
        "columns": {"input_ids": padded, "attention_mask": mask},
        "columns of lists": {"input_ids": ROWS},
    }


@pytest.mark.parametrize("form", forms())
def test_the_same_examples_train_the_same_in_every_form(tmp_path: Path, form: str) -> None:
    for name in {"lists", form}:
        vt.train(SPEC, forms()[name], out=tmp_path / "run" / name, **SHORT)
    assert losses(tmp_path / "run" / form) == losses(tmp_path / "run" / "lists")


def streams() -> dict[str, Any]:
    def batches() -> list[dict[str, torch.Tensor]]:
        pairs = [ROWS[i : i + 2] for i in (0, 2, 4)]
        made = []
        for pair in pairs:
            width = max(map(len, pair))
            ids = torch.tensor([row + [0] * (width - len(row)) for row in pair])
            made.append(
                {
                    "input_ids": ids,
                    "attention_mask": torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in pair]),
                }
            )
        return made

    class Again:
        def __iter__(self) -> Iterator[Any]:
            return iter(ROWS)

    return {
        "an iterable": Again(),
        "a generator": (torch.tensor(row) for _ in range(3) for row in ROWS),
        "batches": batches(),
        "a loader": DataLoader(Rows(ROWS), batch_size=2, collate_fn=lambda rows: {"input_ids": rows}),  # pyright: ignore[reportArgumentType]
    }


@pytest.mark.parametrize("form", streams())
def test_streams_come_in_their_order(tmp_path: Path, form: str) -> None:
    vt.train(SPEC, streams()["an iterable"], out=tmp_path / "one", **SHORT)
    vt.train(SPEC, streams()[form], out=tmp_path / "two", **SHORT)
    assert losses(tmp_path / "one") == losses(tmp_path / "two")


def test_a_loader_over_tensors_gives_its_own_batches_and_epochs(tmp_path: Path) -> None:
    tokens = torch.randint(32, (10, 6), generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(tokens), batch_size=5, shuffle=True)
    for name in ("one", "two"):
        torch.manual_seed(hash(name) % 1000)  # the order is the run's seed's, not torch's
        trained = vt.train(SPEC, loader, epochs=3, out=tmp_path / name, device="cpu", settings={"loop": {"threads": 1}})
        assert trained.step == 6
    assert losses(tmp_path / "one") == losses(tmp_path / "two")
    assert {record.targets for record in read_log(tmp_path / "one")[0]} == {25}


def test_an_iterator_that_ends_ends_the_training_with_a_model(tmp_path: Path) -> None:
    trained = vt.train(SPEC, iter(ROWS), eval_data=ROWS[:2], out=tmp_path / "run", **SHORT | {"steps": 50})
    assert (trained.step, trained.finished) == (3, True)
    assert trained.kept is not None
    assert [score.set for score in trained.scores] == ["eval"]


def test_a_row_of_tokens_is_a_text_and_so_is_a_string_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VANTAGE_HOME", str(tmp_path / "home"))
    text = "the quick brown fox jumps over the lazy dog. " * 30
    spec = vt.decoder(vocab=256, width=16, layers=1, heads=2)
    more: dict[str, Any] = {"max_length": 16, **SHORT}
    vt.train(spec, list(text.encode()), out=tmp_path / "tokens", **more)
    vt.train(spec, torch.tensor(list(text.encode())), out=tmp_path / "tensor", **more)
    written = vt.train(spec, text, tokenizer="bytes", out=tmp_path / "text", **more)
    assert losses(tmp_path / "tokens") == losses(tmp_path / "tensor") == losses(tmp_path / "text")
    assert {record.targets for record in read_log(tmp_path / "text")[0]} == {32}
    assert vt.load(written.kept).tokenizer.decode([104, 105]) == "hi"
    (tmp_path / "book.txt").write_text(text)
    for name, file in (("path", tmp_path / "book.txt"), ("name", str(tmp_path / "book.txt"))):
        trained = vt.train(spec, file, tokenizer=Bytes(), out=tmp_path / name, **more)
        assert [score.set for score in trained.scores] == ["valid"]
    learned = vt.decoder(vocab=300, width=16, layers=1, heads=2)
    vt.train(learned, tmp_path / "book.txt", tokenizer=BPE(280), out=tmp_path / "learned", **more)


def test_texts_of_a_dataset_are_read_with_the_models_tokenizer(tmp_path: Path) -> None:
    model = vt.build(vt.decoder(vocab=257, width=16, layers=1, heads=2))
    model.tokenizer = Bytes(("</s>",)).build()
    texts = ["hello there", "", "general kenobi", "a"]
    vt.train(
        model, Rows([{"text": text} for text in texts]), out=tmp_path / "dataset", epochs=2, **SHORT | {"steps": None}
    )
    records = read_log(tmp_path / "dataset")[0]
    assert sum(record.targets for record in records) == 2 * sum(len(text) for text in texts)  # the end is asked for
    assert model.tokenizer is not None


@pytest.mark.parametrize(
    "data", ["copy", Copy(), TaskExamples("copy", (1, 5), (5,), 8)], ids=["name", "task", "section"]
)
def test_a_task(tmp_path: Path, data: Any) -> None:
    spec = vt.decoder(vocab=40, width=16, layers=1, heads=2)
    trained = vt.train(spec, data, out=tmp_path / "run", **SHORT)
    assert trained.scores[0].set in ("length 20", "length 5")


def test_hidden_tokens_and_answers(tmp_path: Path) -> None:
    encoder = vt.decoder(vocab=32, width=16, layers=1, heads=2, bidirectional=True)
    hidden = [{"input_ids": [1, 2, 3, 4], "labels": [-100, 2, -100, -100]}, {"input_ids": [5, 6], "labels": [5, 6]}]
    vt.train(encoder, hidden, out=tmp_path / "hidden", **SHORT)
    assert {record.targets for record in read_log(tmp_path / "hidden")[0]} == {3}
    with pytest.raises(BadInput, match="no labels: a model that sees what follows"):
        vt.train(encoder, [[1, 2, 3]], out=tmp_path / "none", **SHORT)

    pairs = [{"input_ids": [1, 2, 3], "labels": [4, 5, -100]}, {"input_ids": [6], "labels": [7, 8, 9]}]
    model = vt.build(vt.encoder_decoder(vocab=32, width=16, layers=1, heads=2))
    with pytest.raises(BadInput, match="decoder_start_token_id"):
        vt.train(model, pairs, out=tmp_path / "pairs", **SHORT)


def test_the_answers_of_an_encoder_decoder_are_asked_for_as_transformers_does(tmp_path: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0)
    theirs = T5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path / "t5")
    ids, mask = torch.tensor([[1, 2, 3], [6, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    labels = torch.tensor([[4, 5, -100], [7, 8, 9]])
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask, labels=labels).loss.item()
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    more: Any = {"settings": {"loop": {"threads": 1}}, "device": "cpu", "steps": 1}
    model = vt.load(tmp_path / "t5")
    vt.train(model, [batch], out=tmp_path / "run", **more)
    assert losses(tmp_path / "run") == pytest.approx([expected], abs=1e-5)
    assert [record.targets for record in read_log(tmp_path / "run")[0]] == [5]


# ---- what comes of it


def test_a_model_is_trained_in_place_and_a_spec_gives_a_new_one(tmp_path: Path) -> None:
    model = vt.build(SPEC, seed=3)
    before = {name: p.clone() for name, p in model.named_parameters()}
    trained = vt.train(model, ROWS, out=tmp_path / "model", **SHORT)
    assert trained.model is model
    assert any(not p.equal(before[name]) for name, p in model.named_parameters())
    vt.train(SPEC, ROWS, seed=3, out=tmp_path / "spec", **SHORT)
    vt.train(vt.build(SPEC, seed=3), ROWS, seed=3, out=tmp_path / "same", **SHORT)
    assert losses(tmp_path / "spec") == losses(tmp_path / "same")
    again = vt.load(trained.kept)
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert again(tokens).equal(model(tokens))


def test_without_out_it_lives_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [vt.train(SPEC, ROWS, **SHORT | {"steps": 1}).folder for _ in range(2)]
    assert folders == [Path("runs/train-1"), Path("runs/train-2")]


def test_settings_hold_the_rest_and_single_arguments_go_before_them(tmp_path: Path) -> None:
    settings = {
        "loop": {"steps": 9, "batch": 2, "threads": 1},
        "schedule": {"is": "cosine", "warmup": 2},
        "optimiser": "muon",
    }
    trained = vt.train(SPEC, ROWS, settings=settings, steps=3, lr=0.01, out=tmp_path / "run", device="cpu")
    rates = [record.lr for record in read_log(tmp_path / "run")[0]]
    assert trained.step == 3
    assert rates == pytest.approx([0.005, 0.01, 0.01])
    assert settings["loop"] == {"steps": 9, "batch": 2, "threads": 1}
    recipe = vt.train(
        vt.encoder_decoder(vocab=40, width=16, layers=1, heads=2),
        settings="copy",
        steps=50,
        out=tmp_path / "recipe",
        device="cpu",
        batch_size=4,
    )
    assert [score.set for score in recipe.scores] == ["length 20", "length 10"]
    assert vt.train("copy", ["model.width=16"], steps=50, batch_size=4, out=tmp_path / "named", device="cpu").step == 50


def test_eval_data_in_every_form(tmp_path: Path) -> None:
    for name, given, sets in (
        ("list", ROWS[:3], {"eval": 3}),
        ("named", {"short": ROWS[:1], "long": Rows(ROWS[3:])}, {"short": 1, "long": 3}),
        ("share", 0.5, {"eval": 3}),
    ):
        trained = vt.train(SPEC, ROWS, eval_data=given, out=tmp_path / name, **SHORT)
        assert {score.set: score.rows for score in trained.scores} == sets
    with pytest.raises(BadInput, match="a share lies between 0 and 1"):
        vt.train(SPEC, iter(ROWS), eval_data=0.5, out=tmp_path / "none", **SHORT)
    with pytest.raises(BadInput, match="leave eval_data out"):
        vt.train(SPEC, "copy", eval_data=ROWS, out=tmp_path / "none", **SHORT)


def test_an_adapter_on_a_model_of_ones_own(tmp_path: Path) -> None:
    model = vt.build(SPEC)
    add_lora(model, Lora(rank=2))
    before = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    trained = vt.train(model, ROWS, out=tmp_path / "run", **SHORT)
    assert all(p.equal(before[name]) for name, p in model.named_parameters() if name in before)
    assert trained.kept is not None
    assert (trained.kept / "adapter_config.json").exists()


# ---- as transformers computes it


def test_losses_are_those_of_transformers(tmp_path: Path) -> None:
    """Padding, labels of -100 and rows of unequal length, against a plain loop around transformers' model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    theirs = LlamaForCausalLM(config)
    theirs.save_pretrained(tmp_path / "llama")
    ours = vt.load(tmp_path / "llama")

    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(5):
        ids = torch.randint(32, (3, 9), generator=generator)
        mask = torch.ones_like(ids)
        mask[0, 6:], mask[1, 3:] = 0, 0
        labels = ids.masked_fill(mask == 0, -100)
        labels[2, :5] = -100  # a prompt
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": labels})

    optimiser = torch.optim.AdamW(theirs.parameters(), 1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    expected = []
    for batch in batches:
        loss = theirs(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        expected.append(loss.item())

    settings = {"optimiser": {"weight_decay": 0.0}, "loop": {"threads": 1}}
    vt.train(ours, batches, settings=settings, lr=1e-2, steps=5, out=tmp_path / "run", device="cpu")
    assert losses(tmp_path / "run") == pytest.approx(expected, abs=2e-5)
    with torch.no_grad():
        theirs_after = theirs.eval()(input_ids=batches[0]["input_ids"]).logits
        torch.testing.assert_close(ours(batches[0]["input_ids"]), theirs_after, atol=2e-3, rtol=1e-3)


# ---- going on


def test_a_run_on_own_data_goes_on_to_the_bit(tmp_path: Path) -> None:
    def parts(data: Any, name: str) -> None:
        more = SHORT | {"steps": 8}
        vt.train(SPEC, data(), out=tmp_path / f"{name} whole", **more)
        stopped = vt.train(SPEC, data(), out=tmp_path / name, callbacks=Stopper(5), **more)
        assert (stopped.step, stopped.finished) == (5, False)
        vt.train(SPEC, data(), out=tmp_path / name, resume=True, **more)
        assert losses(tmp_path / name) == losses(tmp_path / f"{name} whole")

    parts(lambda: ROWS, "list")
    parts(lambda: (row for _ in range(4) for row in ROWS), "generator")
    with pytest.raises(BadInput, match=re.escape("data.count 6 -> 5")):
        vt.train(SPEC, ROWS[:-1], out=tmp_path / "list", resume=True, **SHORT | {"steps": 8})
    with pytest.raises(BadInput, match="run on other data"):
        vt.train(SPEC, [*ROWS[:-1], [1, 2, 3]], out=tmp_path / "list", resume=True, **SHORT | {"steps": 8})
    with pytest.raises(BadInput, match="from Python: continue it there"):
        vt.train(resume=tmp_path / "list")


class Stopper:
    """Stops as Ctrl-C does, in a step."""

    def __init__(self, step: int):
        self.step = step

    def on_begin(self, run: Any) -> None:
        self.run = run

    def on_step(self, record: Any) -> None:
        if record.step == self.step - 1:
            self.run.stop()


# ---- what cannot be


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (5, "data is int: wanted a task, or an iterable of token tensors"),
        ([], "data (list) is empty"),
        (iter([]), "data (list_iterator) is empty"),
        ([{"ids": [1, 2]}], "data, example 0 has the keys ['ids']: wanted input_ids"),
        ([[1.5, 2.0]], "whole numbers"),
        ([torch.zeros(3)], "a tensor of torch.float32; wanted whole numbers"),
        ([[1, 99]], "token 99, and the model has 32: from 0 to 31"),
        ([[1, -2]], "token -2, and the model has 32"),
        ([[1]], "has 1 tokens"),
        ([torch.zeros(2, 2, 2, dtype=torch.long)], "shape (2, 2, 2); wanted (tokens,) or (rows, tokens)"),
        ([object()], "tokens is object; wanted token tensors"),
        (["hello"], "is text, and there is no tokenizer: give tokenizer="),
        ("hello there", "is text, and there is no tokenizer"),
        ("copi", "no task and no file is called that. Did you mean 'copy'?"),
        ({"train": ROWS, "test": ROWS}, "Give one, as in data['train']"),
        ({"input_ids": ROWS, "labels": ROWS[:2]}, "the columns have {'input_ids': 6, 'labels': 2} rows"),
        ([{"input_ids": [1, 2, 3], "labels": 1}], "labels are one number a row"),
        ([{"input_ids": [1, 2, 3], "labels": [1, 2]}], "[2] labels, [3] input_ids"),
        ([{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}], "zeros between ones"),
        ([{"input_ids": [1, 2, 0], "attention_mask": [1, 1, 0], "labels": [1, 2, 0]}], "set those labels to -100"),
        (ROWS[0], "one text of 5 tokens"),
    ],
)
def test_wrong_data_are_named_and_nothing_is_written(tmp_path: Path, data: Any, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        vt.train(SPEC, data, out=tmp_path / "run", **SHORT)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"model": SPEC}, "there is a model and no data"),
        ({"model": torch.nn.Linear(2, 2), "data": ROWS}, "model is torch.Linear: give a model of Vantage"),
        ({"data": ROWS, "settings": {}}, "there are data and no model"),
        ({"model": "copy", "data": 5}, "after settings comes a list of changes"),
        ({"model": "copy", "settings": "sort"}, "are both settings: give one"),
        ({"model": settings_of(tiny()), "data": ["loop.steps=3"]}, "change the mapping itself"),
        ({"model": settings_of(tiny()), "epochs": 2}, "epochs needs examples whose number is known"),
        ({"model": settings_of(tiny()), "eval_data": ROWS}, "settings have their own"),
        ({"model": "copy", "tokenizer": "bytes"}, "settings have their own"),
        ({"model": SPEC, "data": ROWS, "steps": 3, "epochs": 1}, "give one"),
        ({"model": SPEC, "data": iter(ROWS), "epochs": 1}, "epochs needs examples whose number is known"),
        ({"model": SPEC, "data": ROWS, "tokenizer": 5}, "tokenizer is int: give one of Vantage"),
        ({"model": SPEC, "data": ROWS, "patience": 2}, "eval_steps= in Python"),
        ({"model": SPEC, "data": ROWS, "callbacks": [5]}, "5 is no function"),
        ({"model": SPEC, "data": ROWS, "track": "tensorbored"}, "no tracker is called 'tensorbored'"),
        (
            {"model": vt.encoder(vocab=32, width=16, layers=1, heads=2), "data": [{"input_ids": [1], "labels": [1]}]},
            "no head",
        ),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, call: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, Refused), match=re.escape(says)):
        vt.train(**{"out": tmp_path / "run"} | call)
    assert not (tmp_path / "run").exists()


def test_the_signature_says_what_there_is_and_the_docstring_explains_all_of_it() -> None:
    parameters = inspect.signature(vt.train).parameters
    assert [p.kind for p in parameters.values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)] == []
    text = inspect.getdoc(vt.train) or ""
    assert [name for name in parameters if not re.search(rf"^[\w, ]*\b{name}\b[\w, ]*:", text, re.M)] == []

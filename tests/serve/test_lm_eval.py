"""lm-eval, as published, against our server: its log-likelihoods are those that the model gives directly."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests.generation.folder import chat_model
from tests.serve.environments import python_with
from tests.serve.running import KEY, serving, tiny

HERE = Path(__file__).parent
DOCUMENTS = [
    {"question": "the cat sat on a", "choices": [" mat", " dog, no", " world"], "answer": 0},
    {"question": "hello", "choices": [" world", "!", " 世界 é"], "answer": 0},
    {"question": "12 dogs and", "choices": [" 3 birds", " a cat sat on a mat and said hello"], "answer": 1},
]
CHOICE = """\
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
"""
ROLLING = """\
task: tiny_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: question
metric_list:
  - metric: word_perplexity
"""


@pytest.fixture(scope="module")
def python(request) -> Path:
    return python_with(request, HERE / "lm_eval.txt", "lm_eval")


@torch.inference_mode()
def direct(context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """The log-likelihood of a continuation, and whether it is what greedy decoding gives."""
    tokens = torch.tensor([[*context, *continuation]])
    logprobs = torch.log_softmax(chat_model()(tokens)[0].double(), -1)[len(context) - 1 : -1]
    chosen = logprobs.gather(-1, torch.tensor(continuation)[:, None])[:, 0]
    return float(chosen.sum()), logprobs.argmax(-1).tolist() == continuation


@pytest.mark.slow
def test_log_likelihoods(folder, python, tmp_path):
    data, tasks = tmp_path / "documents.jsonl", tmp_path / "tasks"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    tasks.mkdir()
    (tasks / "choice.yaml").write_text(CHOICE.format(data=data))
    (tasks / "rolling.yaml").write_text(ROLLING.format(data=data))
    with serving(folder, f"tiny={tiny(folder)}", "--capacity", "2048", env={"VANTAGE_API_KEY": KEY}) as server:
        run_lm_eval(python, server.url, tiny(folder), tasks, tmp_path)
    samples = {
        file.name.split("_20")[0]: [json.loads(line) for line in file.read_text().splitlines()]
        for file in (tmp_path / "results").rglob("samples_*.jsonl")
    }
    check_choices(samples["samples_tiny_choice"])
    check_rolling(samples["samples_tiny_rolling"])


def run_lm_eval(python: Path, url: str, model: Path, tasks: Path, home: Path) -> None:
    arguments = (
        f"model=tiny,base_url={url}/v1/completions,tokenizer_backend=huggingface,tokenizer={model},max_retries=1"
    )
    command = [str(python), "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", arguments]
    command += ["--tasks", "tiny_choice,tiny_rolling", "--include_path", str(tasks), "--log_samples"]
    command += ["--output_path", str(home / "results"), "--batch_size", "2"]
    offline = {"HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": KEY}
    env = {**os.environ, **offline, "PYTHONPATH": "", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=home, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def check_choices(samples: list[dict]) -> None:
    assert len(samples) == len(DOCUMENTS)
    tokenizer = chat_model().tokenizer
    for sample in samples:
        document = sample["doc"]
        context = tokenizer.encode(document["question"])
        wanted = [
            direct(context, tokenizer.encode(document["question"] + choice)[len(context) :])
            for choice in document["choices"]
        ]
        got = [(float(resp[0][0]), str(resp[0][1]) == "True") for resp in sample["resps"]]
        assert [value for value, _ in got] == pytest.approx([value for value, _ in wanted], abs=1e-3)
        assert [greedy for _, greedy in got] == [greedy for _, greedy in wanted]
        best = max(range(len(wanted)), key=lambda i: wanted[i][0])
        assert sample["acc"] == float(best == document["answer"])


def check_rolling(samples: list[dict]) -> None:
    tokenizer = chat_model().tokenizer
    for sample in samples:
        tokens = tokenizer.encode(sample["doc"]["question"])
        wanted, _ = direct([tokenizer.bos], tokens)  # lm-eval begins a text with that token
        assert float(sample["resps"][0][0]) == pytest.approx(wanted, abs=1e-3)

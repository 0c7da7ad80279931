"""docs/families.md is what the families say, and the tests that it names are there."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parity.cases import ids
from vantage.checkpoints.config import Config
from vantage.families import families, table
from vantage.families.llama import spec as llama

ROOT = Path(__file__).parents[2]


@pytest.mark.sampled
def test_the_committed_page_is_the_generated_one():
    assert (ROOT / "docs" / "families.md").read_text(encoding="utf-8") == table.page(), (
        "docs/families.md is stale: python -m vantage.families.table > docs/families.md"
    )


# the systems that this project set out to have
NAMED = """Transformer, GPT-1, GPT-2, GPT-3, BERT, ViT, Gopher, PaLM, LLaMA 1, LLaMA 2, LLaMA 3, Mistral, Grok-1,
Grok-2, DeepSeek-V2, DeepSeek-V3, LLaMA-4, Qwen-3, Gemma 3, Qwen 2, MPNet, T5, BLOOM, MPT, GPT-NeoX, RoFormer,
SmolLM3, GPT-OSS, Phi-3, Mixtral"""


def test_the_systems_are_there():
    assert {name.strip() for name in NAMED.split(",")} <= {system.name for system in table.systems()}
    assert {system.config["model_type"] for system in table.systems()} <= set(families())


def test_the_tests_that_it_names_are_written():
    """By name; and by the id of the case where one test compares many."""
    cases = set(ids("decoder", "encoder", "image", "encoder-decoder"))
    for system in table.systems():
        file, _, rest = system.test.partition("::")
        name, _, case = rest.removesuffix("]").partition("[")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, system.test
        if "of_transformers" in name:
            assert case in cases, system.test


@pytest.mark.slow  # half a minute: pytest collects every parity test
def test_the_tests_that_it_names_are_run():
    """pytest itself is asked: it fails if an id selects nothing."""
    wanted = sorted({system.test for system in table.systems()})
    asked = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--collect-only", "-q"]
    done = subprocess.run([*asked, *wanted], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert set(wanted) <= set(done.stdout.splitlines())


def test_cache_bytes_are_the_published_ones():
    """Zhao et al. 2025 (Insights into DeepSeek-V3), table 1: kilobytes of cache a token in bfloat16."""
    by_name = {system.name: system for system in table.systems()}
    assert table.cache_bytes(by_name["DeepSeek-V3"].spec()) == "70,272"
    large = {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128}
    spec = llama(Config({**large, "num_key_value_heads": 8, "vocab_size": 128256}))
    assert table.cache_bytes(spec) == "516,096"


@pytest.mark.parametrize(
    ("name", "column", "says"),
    [
        ("GPT-3", "attention", "48 × multi-head, 96 / 96 × 128, Causal & Window(256)"),
        ("DeepSeek-V2", "attention", "latent, 128 × 192 over one of 576"),
        ("DeepSeek-V2", "position", "(on 64 of 192 dimensions)"),
        ("SmolLM3", "position", "9 × no position"),
        ("Mistral", "cache bytes a token", "all of it for 4,096 tokens at most"),
        ("Gemma 3", "cache bytes a token", "22,528 of it for 512 tokens at most"),
        ("T5", "cache bytes a token", "and 12,288 for each source token"),
        ("BERT", "cache bytes a token", "none"),
        ("PaLM", "norm", "LayerNorm, 1 before parts side by side"),
        ("GPT-OSS", "attention", "sinks"),
        ("Qwen3-Next", "position", "36 × no position; 12 × q/k norm, then RoPE"),
        ("Qwen3-Next", "attention", "12 × grouped-query, 16 / 2 × 256, Causal, gated output"),
        (
            "Gemma 3n",
            "attention",
            "12 × grouped-query, 8 / 2 × 256, Causal & Window(512), normed values, keys of an earlier",
        ),
        ("Gemma 3n", "norm", "RMSNorm before and after; 4 streams (AltUp), a residual of rank 64"),
        ("Gemma 3n", "feed-forward", "10 × gated gelu_tanh, 16,384, 95% of the gates 0; 25 × gated gelu_tanh, 16,384"),
        # 20 of 35 layers keep keys, of which 16 see 512 tokens
        ("Gemma 3n", "cache bytes a token", "40,960, 32,768 of it for 512 tokens at most"),
        # 36 matrices of 32 × 128 × 128 in float32, and 3 inputs of 8,192 channels in float16
        ("Qwen3-Next", "cache bytes a token", "24,576, and 77,266,944 once for each text"),
        ("Qwen3-Next", "feed-forward", "beside gated silu, 512 behind a gate"),
        (
            "Grok-2",
            "feed-forward",
            "2 by softmax of 8 experts (gated gelu_tanh, 16,384), beside gated gelu_tanh, 32,768",
        ),
    ],
)
def test_what_it_says(name, column, says):
    system = next(system for system in table.systems() if system.name == name)
    assert says in table.COLUMNS[column](system.spec())


def test_a_key_that_no_family_reads_is_refused():
    system = table.systems()[0]
    with pytest.raises(Exception, match="'invented' may change the model"):
        table.System(**{**vars(system), "config": {**system.config, "invented": 1}}).spec()

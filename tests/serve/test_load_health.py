"""/health answers at once, whatever the server is busy with."""

from __future__ import annotations

import pytest

from tests.serve.running import pulled, serving
from tests.serve.watching import polled

LONG = "The quick brown fox jumps over the lazy dog, and the sea was calm. " * 110  # some 1,900 tokens


@pytest.mark.slow  # it is timed, if only beside a process that does nothing
def test_health_while_models_load_and_a_long_prompt_is_read(folder):
    """There is room for one model at a time: each request loads one and unloads the other."""
    models = (pulled("smollm2"), pulled("minilm"))
    with serving(folder, *models, "--capacity", "2048", "--memory-bytes", str(170 * 2**20)) as server:
        with polled(server, 0.02) as health, server.http(None) as http:
            for prompt in (LONG, "a"):
                said = {"model": "smollm2", "prompt": prompt, "max_tokens": 1}
                answer = http.post("/v1/completions", json=said, timeout=300).raise_for_status().json()
                assert prompt == "a" or answer["usage"]["prompt_tokens"] > 1500
                embed = {"model": "minilm", "input": "a"}
                http.post("/v1/embeddings", json=embed, timeout=300).raise_for_status()
        print(health)
        assert server.metric("vantage_model_loads_total", None) == 4
        assert server.metric("vantage_model_unloads_total", None) == 3
        health.check()

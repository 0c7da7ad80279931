"""``--device`` of the verbs that run a model: a GPU where there is one, and a refusal in words."""

import pytest
import torch

from vantage.cli.main import main
from vantage.errors import BadInput
from vantage.spec.devices import generation_device

VERBS = {
    "generate": ["generate", "smollm2", "Hello"],
    "chat": ["chat", "smollm2"],
    "attention": ["inspect", "attention", "smollm2", "--text", "Hello", "--layer", "0"],
    "lens": ["inspect", "lens", "smollm2", "--text", "Hello"],
    "studio": ["studio", "smollm2", "--no-browser"],
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_device_that_is_none_is_refused(verb, capsys):
    assert main([*verb, "--device", "cudda"]) == 2
    assert "Use cpu, cuda" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_here_is_refused():
    with pytest.raises(BadInput, match="no GPU here"):
        generation_device("cuda")
    assert generation_device().type == "cpu"

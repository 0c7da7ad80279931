"""Looking into a model and changing it on a GPU: what the same does on a CPU. Needs a GPU."""

import pytest
import torch

import vantage as vt
from vantage.inspect import capturing
from vantage.interventions import ablate, attribute, knock_out, logit_lens, patch, steering_vector

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TOKENS, OTHER = [5, 6, 7, 8, 9, 5, 6, 7], [5, 6, 7, 3, 9, 5, 6, 7]


def pair():
    spec = vt.decoder(vocab=64, width=64, layers=2, heads=4, kv_heads=2)
    return vt.build(spec, seed=1).eval(), vt.build(spec, seed=1).eval().cuda()


def close(got, want):
    torch.testing.assert_close(torch.as_tensor(got).cpu(), torch.as_tensor(want), rtol=1e-3, atol=1e-4)


def captured(model):
    return vt.capture(model, TOKENS, layers=1, keep="weights").weights(1, head=0)


def while_generating(model):
    with capturing(model, keep="weights") as seen:
        answer = vt.generate(model, TOKENS, max_tokens=5, ends=False)
    assert len(answer.tokens) == 5
    return seen.weights(0, head=1)


def steered(model):
    vector = steering_vector(model, [TOKENS], [OTHER], activation="layers.0.residual_after")
    with vt.tracing(model, edits=vt.Edit("layers.0.residual_after", 4 * vector, add=True)):
        return torch.tensor(vt.generate(model, TOKENS, max_tokens=4, ends=False).tokens)


def knocked_out(model):
    with vt.tracing(model, edits=knock_out(model, [(7, 3)], layers=[1])):
        return model(torch.tensor([TOKENS], device=model.device))


LOOKS = {
    "capture": captured,
    "capture while it generates": while_generating,
    "trace": lambda model: vt.trace(model, TOKENS, read=["logits"])["logits"],
    "lens": lambda model: torch.tensor([float(row[-1]) for row in logit_lens(model, TOKENS).entropy]),
    "attribute": lambda model: torch.tensor([row[-1] for row in attribute(model, TOKENS, target=8).rows()]),
    "ablate": lambda model: ablate(model, TOKENS, target=8).effects,
    "patch": lambda model: patch(model, TOKENS, OTHER, target=8, against=9).effects,
    "knock out": knocked_out,
    "steer": steered,
    "swap": lambda model: vt.swap(model, "alibi")(torch.tensor([TOKENS], device=model.device)),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_the_same_as_on_a_cpu(look):
    cpu, gpu = pair()
    with torch.no_grad():
        close(look(gpu), look(cpu))

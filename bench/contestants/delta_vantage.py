"""A layer of ours, in chunks; or token by token, as the rule is written."""

import torch
from delta_shape import HEAD, HEADS, TAPS, WIDTH, check, inputs, timed

import vantage as vt
from vantage.attention import chunks
from vantage.cache.build import no_caches
from vantage.kernels import chooser
from vantage.spec.parts import Context
from vantage.spec.positions import Positions


def setup(tokens: int, training: bool, by_token: bool = False) -> None:
    global model, x, trains
    torch.manual_seed(0)
    layer = vt.GatedDelta(HEADS, vt.RMSNorm(), key_dim=HEAD, taps=TAPS)
    model = vt.build(vt.decoder(vocab=2, width=WIDTH, layers=1, attention=layer, position="none"))
    x, trains = inputs(tokens), training
    if by_token:
        chunks.FEW = tokens
    check(model.blocks[0].sublayers[0])


def forward() -> torch.Tensor:
    caches = no_caches(model.spec, None, model.dtype)
    pos = Positions.arange(1, x.shape[1])
    return model.blocks[0].sublayers[0](x, Context(pos, chooser("auto"), caches, caches, None, None))


def round() -> dict[str, list[float]]:
    return timed(forward, trains)

"""What models over processes send, counted while they run; and tensor times context as one mesh."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh

from tests.parallel.tensor_cells import spec_of
from vantage.conformance.factors import LENGTH, VOCAB
from vantage.conformance.scenarios import sharpen
from vantage.model import build
from vantage.parallel import ContextParallel, TensorParallel

BATCH, CONTEXT = 2, 12


def counted(
    cell: tuple[str, str, str], tensor: int, context: int
) -> tuple[dict[str, int], dict[str, int], float, float]:
    """Bytes of a prefill and of a training step, and how far logits and gradients are from those of one process."""
    mesh = init_device_mesh("cpu", (tensor, context), mesh_dim_names=("tensor", "context"))
    model = sharpen(build(spec_of(cell), kernel="reference")).double()
    tokens = torch.randint(VOCAB, (BATCH, CONTEXT), generator=torch.Generator().manual_seed(5))
    over_heads = TensorParallel(model.spec, mesh.get_group("tensor"))
    over_tokens = ContextParallel(mesh.get_group("context"))
    share = over_heads.cut(model)

    def sent() -> dict[str, int]:
        total = {name: sum(p.wire.bytes.values()) for name, p in (("tensor", over_heads), ("context", over_tokens))}
        for parallel in (over_heads, over_tokens):
            parallel.wire.bytes.clear()
        return total

    with torch.no_grad():
        over_tokens.hidden(share, tokens, length=LENGTH)
    prefill = sent()
    part = over_tokens.hidden(share, tokens, length=LENGTH)
    logits = share.head(part.hidden)
    logits.square().sum().backward()
    over_heads.sum_gradients(share)
    over_tokens.sum_gradients(share)
    step = sent()
    wanted = model(tokens, length=LENGTH)
    wanted.square().sum().backward()
    off = float((part.whole(logits) - wanted).detach().abs().max())
    gradients = [
        (over_heads.whole_tensor(name, p.grad), model.get_parameter(name).grad)
        for name, p in share.named_parameters()
        if p.grad is not None
    ]
    largest = max(float(w.abs().max()) for _, w in gradients if w is not None)
    return prefill, step, off, max(float((g - w).abs().max()) for g, w in gradients if w is not None) / largest

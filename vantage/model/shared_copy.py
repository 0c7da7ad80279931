"""The same weights behind other modules.

Looking inside puts hooks on modules, and whole native steps belong to one thread. So whoever looks at a model that
somebody else runs works on such a copy: it takes a tenth of a second and no memory for weights.
"""

from __future__ import annotations

import copy

from vantage.model import Model


def _kept(part: Model) -> tuple[object, ...]:
    """What the copy has of the model itself."""
    return part.tokenizer, part.config, part.spec, part.whole_steps, part.placement


def copy_sharing_weights(model: Model) -> Model:
    """A model that shares every weight with this one, and no module. Caches of one do not fit the other."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for part in model.modules():
        if isinstance(part, Model):  # an encoder is one too
            shared |= {id(kept): kept for kept in _kept(part)}
    copied = copy.deepcopy(model, shared)
    for part in copied.modules():
        if isinstance(part, Model):
            part.kernel = part.kernel  # whole steps of its own
    return copied

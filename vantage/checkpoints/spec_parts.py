"""Which parts a spec that was written down may hold, and where each fits: the registry of ``spec_json``."""

from __future__ import annotations

from vantage import position
from vantage.attention import GroupedQuery, Latent, LengthTemperature, QKNorm
from vantage.model.clamped import ClampedSwiGLU
from vantage.model.experts import Experts, RouterConfig, TopK
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm, RMSNorm
from vantage.model.patches import Patches
from vantage.model.pooling import First, Pooler, Transform
from vantage.model.routers import GroupLimited
from vantage.model.unit import UnitRMS
from vantage.position import scaling
from vantage.position.late_temperature import LateTemperature
from vantage.position.shaw import ShawKeys, ShawValues
from vantage.position.xl import ContentBias, DistanceTerm
from vantage.spec import masks
from vantage.spec.model import (
    AttentionConfig,
    FeedForwardConfig,
    InputConfig,
    NormConfig,
    TransformConfig,
)
from vantage.spec.parts import Encoding, Sampler

# What may stand where a field asks for a protocol. A new part is one more name here.
FITS: dict[type, tuple[type, ...]] = {
    AttentionConfig: (GroupedQuery, Latent),
    FeedForwardConfig: (FeedForward, ClampedSwiGLU, Experts),
    InputConfig: (Patches,),
    NormConfig: (RMSNorm, LayerNorm, UnitRMS),
    RouterConfig: (TopK, GroupLimited),
    Sampler: (position.Randomised,),
    TransformConfig: (First, Pooler, Transform),
    masks.Mask: (
        *(masks.Everything, masks.Nothing, masks.Causal, masks.Window, masks.Chunked, masks.Prefix),
        *(masks.SameSegment, masks.Filled, masks.And, masks.Or),
    ),
    scaling.Rule: (
        *(scaling.Default, scaling.Linear, scaling.Proportional, scaling.DynamicNTK, scaling.YaRN),
        *(scaling.LongRope, scaling.Llama3),
    ),
    Encoding: (
        *(position.NoPE, position.Sinusoidal, position.Learned, position.Shifted, position.Rope, position.XPos),
        *(position.Alibi, position.T5, position.Shaw, position.TransformerXL, position.Kerple, position.Fire),
        *(position.CoPE, position.Randomised),
    ),
}
# ``Buildable`` says too little: what may stand there goes by the field's name.
BUILDABLE: dict[str, tuple[type, ...]] = {
    "inputs": (position.Sinusoidal, position.Learned),
    "qk": (position.Rope, position.XPos, ContentBias, QKNorm, LengthTemperature),
    "bias": (
        *(position.Alibi, position.T5, position.Kerple, position.Fire, position.CoPE, position.Shifted),
        *(ShawKeys, DistanceTerm, LateTemperature),
    ),
    "value_bias": (ShawValues,),
}

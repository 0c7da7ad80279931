"""A bias or a window costs a CPU's attention nothing that is as large as queries times keys."""

from bench.harness import Bench, Contestant, Goal

KINDS = ("alibi", "t5", "window", "causal")

BENCH = Bench(
    name="tiles",
    title="Attention of 12 heads of 64 over 4,096 tokens, forward; the window is of 1,024",
    contestants=(
        *(Contestant(f"{kind}", "attention_kernel.py", params={"kind": kind}) for kind in KINDS),
        Contestant("torch, causal", "attention_kernel.py", params={"kind": "causal", "kernel": "sdpa"}),
        Contestant("torch, dense ALiBi", "attention_kernel.py", params={"kind": "alibi", "kernel": "sdpa"}),
    ),
    goals=(
        Goal("alibi", "torch, causal", 1.3),
        Goal("t5", "torch, causal", 1.3),
        Goal("window", "torch, causal", 1.0),
    ),
)

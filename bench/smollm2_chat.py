"""A turn pays for its new tokens only."""

from bench.harness import Bench, Contestant, Goal

BENCH = Bench(
    name="smollm2_chat",
    title="SmolLM2-135M: first token of turn 5 of a conversation of some 2,000 tokens",
    contestants=tuple(
        Contestant(how, "smollm2_chat.py", params={"how": how}) for how in ("conversation", "bare", "from nothing")
    ),
    goals=(Goal("conversation", "bare", 1.2), Goal("conversation", "from nothing", 1 / 10)),
    rounds=5,
    warmup=1,
)

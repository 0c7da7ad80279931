"""A model in a file, on a CPU whose memory is to hold none of its layers: as fast as the file can be read."""

from bench.harness import Bench, Contestant, Goal

BENCH = Bench(
    name="offload",
    title="A token of a model whose 12 layers (1.3 GiB) lie in a file, read anew for each token",
    contestants=(
        Contestant("vantage", "offload.py", params={"who": "vantage"}),
        Contestant("reading the file", "offload.py", params={"who": "file"}),
        Contestant("vantage, all in memory", "offload.py", params={"who": "memory"}),
    ),
    goals=(Goal("vantage", "reading the file", 1.5), Goal("vantage", "vantage, all in memory", 0.5, "peak_rss")),
    rounds=5,
    warmup=1,
    memory=True,
)

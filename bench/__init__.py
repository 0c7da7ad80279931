"""Side-by-side benchmarks: ours and the peers', interleaved in one run, reported as ratios.

A bench is one file ``bench/NAME.py`` with a ``BENCH``; what it measures are contestants, files in
``bench/contestants`` with ``setup(**params)`` and ``round()``. See ``harness.py``.
"""

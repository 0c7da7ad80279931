"""Some virtual machines announce AMX and then forbid it: a bfloat16 product there ends in an illegal instruction.
oneDNN reads this on its first use; the limit costs speed only, and only in these tests."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

"""Context extension of a loaded model: which scaling of RoPE reads on beyond the context it was trained with?"""

from vantage.compare.extension.conduct import carry_out
from vantage.compare.extension.settings import Extension
from vantage.compare.extension.told import facts_of

__all__ = ["Extension", "carry_out", "facts_of"]

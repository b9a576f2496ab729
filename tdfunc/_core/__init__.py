"""The data structure: schema, leaves, statics, batch size. Knows no operation."""

"""The client's step traced once and replayed as flat code over reused buffers."""

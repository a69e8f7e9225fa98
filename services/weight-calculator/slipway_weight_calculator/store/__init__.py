"""SQL in, frozen Structs out."""

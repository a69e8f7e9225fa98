"""Database access: SQL statements and their frozen Structs."""

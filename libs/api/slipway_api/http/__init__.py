"""Bodies of requests and answers of the HTTP APIs, a module per service; `service` has those that all have.

A request is refused for a field that its type does not have, a report is not. Answers are open: a client ignores fields
and keeps values of enumerations that it does not know, so that it works with a newer service.
"""

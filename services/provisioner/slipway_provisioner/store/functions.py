"""SQL functions of the schema."""

from typing import Final

# Uptime from a time to the newest pass, in seconds. It ends at the pass and not now: downtime that follows the pass is
# not known before the next one.
UPTIME: Final = """
CREATE FUNCTION uptime_since(since timestamptz) RETURNS double precision LANGUAGE sql STABLE AS $$
    SELECT extract(epoch FROM p.at - since)::float8 - coalesce((
        SELECT sum(extract(epoch FROM d.until_at - greatest(d.from_at, since)))::float8
        FROM downtime d WHERE d.until_at > since), 0)
    FROM deadline_pass p
$$"""

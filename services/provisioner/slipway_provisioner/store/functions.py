"""SQL functions of the provisioner, created after its tables, and expressions of derived columns."""

from typing import Final

# Columns of a launch config: keys of what it shares with others, as events/scopes makes them.
KEYS: Final = {
    "image_key": "'image/' || percent_encoded(CASE WHEN image <> '' THEN image ELSE image_revision END)",
    "quota_key": "'quota/' || percent_encoded(account_id) || '/' || percent_encoded(region) || '/' || "
    "percent_encoded(CASE WHEN quota_family <> '' THEN quota_family ELSE split_part(instance_type, '.', 1) END)",
    "credential_key": "'credential/' || percent_encoded(account_id)",
    "capacity_key": "'capacity/' || CASE WHEN capacity <> '' THEN capacity ELSE percent_encoded(account_id) || '/' || "
    "percent_encoded(region) || '/' || percent_encoded(zone) || '/' || percent_encoded(instance_type) || "
    "CASE settings ->> 'lifecycle' WHEN 'spot' THEN '/spot' ELSE '/on-demand' END END",
    "subnet_key": "CASE WHEN subnet <> '' THEN 'quota/' || percent_encoded(account_id) || '/' || "
    "percent_encoded(region) || '/subnet/' || percent_encoded(subnet) ELSE '' END",
}
# Shares of a config. Claims without claim evidence have no share.
SHARED_KEYS: Final = """
CREATE FUNCTION shared_keys(c launch_config) RETURNS TABLE (kind text, key text, stage text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT k.kind, k.key, k.stage FROM (VALUES
        ('image', c.image_key, 'boot'), ('image', c.image_key, 'claim'), ('image', c.image_key, 'launch'),
        ('quota', c.quota_key, 'launch'), ('credential', c.credential_key, 'launch'),
        ('capacity', c.capacity_key, 'launch'), ('quota', c.subnet_key, 'launch')
    ) AS k (kind, key, stage) WHERE k.key <> '' AND (k.stage <> 'claim' OR c.claim_evidence <> 'none')
$$"""
# Uptime from a time to the newest pass, in seconds. It ends at the pass and not now: downtime that follows the pass is
# not known before the next one.
UPTIME: Final = """
CREATE FUNCTION uptime_since(since timestamptz) RETURNS double precision LANGUAGE sql STABLE AS $$
    SELECT extract(epoch FROM p.at - since)::float8 - coalesce((
        SELECT sum(extract(epoch FROM d.until_at - greatest(d.from_at, since)))::float8
        FROM downtime d WHERE d.until_at > since), 0)
    FROM deadline_pass p
$$"""

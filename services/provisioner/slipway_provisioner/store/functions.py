"""SQL functions of the provisioner, created after its tables, and expressions of derived columns."""

from collections.abc import Iterable
from textwrap import fill
from typing import Final

from slipway_api.events.lifecycle import ASKED_TO_STOP, ENDED, IN_FLIGHT, LEAVING, REGISTERED, SERVING, WAITING
from slipway_api.events.scopes import NEW_SHARED_WINDOWS
from slipway_common.database.tables import PLANS_KEPT
from slipway_common.messaging.incarnation import TRUSTED
from slipway_provisioner.domain.fairness import WOKEN
from slipway_provisioner.domain.launching import BatchState, LeaseState
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.columns import states

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
# Start of the five minutes of a worker's last contact, found by an index, which four of five heartbeats do not write.
CONTACT_PERIOD: Final = "date_bin(interval '5 min', last_seen_at, timestamptz '2000-01-01 00:00+00')"
# Uptime from a time to the newest pass, in seconds. It ends at the pass and not now: downtime that follows the pass is
# not known before the next one.
UPTIME: Final = """
CREATE FUNCTION uptime_since(since timestamptz) RETURNS double precision LANGUAGE sql STABLE AS $$
    SELECT extract(epoch FROM p.at - since)::float8 - coalesce((
        SELECT sum(extract(epoch FROM d.until_at - greatest(d.from_at, since)))::float8
        FROM downtime d WHERE d.until_at > since), 0)
    FROM deadline_pass p
$$"""

LIMITED_KEYS: Final = ("image_key", "quota_key", "capacity_key", "subnet_key")
"""Keys of shared windows that limit starts."""
# Keys of the shared windows that a stage of a config fills. Shares without a window limit nothing.
LIMITED: Final = ", ".join(f"('{kind}', '{stage}')" for kind, stage in NEW_SHARED_WINDOWS)
WINDOW_KEYS: Final = f"""
CREATE FUNCTION window_keys(c launch_config, of text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(k.key ORDER BY k.key), '{{}}') FROM shared_keys(c) AS k
    WHERE k.stage = of AND (k.kind, k.stage) IN (
        {LIMITED})
$$"""
# Counters of a config, by the condition on a worker `w` that they count. The call of a stopping worker can still fail,
# but for one that is never answered: the windows that it fills are shared with other accounts.
COUNTED: Final = {
    "launch": f"""w.state IN ({states(IN_FLIGHT["launch"])})
        OR w.state IN ({states(ASKED_TO_STOP)}) AND w.instance_id IS NULL AND NOT w.account_unreachable""",
    "boot": f"w.state IN ({states(IN_FLIGHT['boot'])})",
    "claim": f"w.state IN ({states(IN_FLIGHT['claim'])}) AND w.first_claimed_at IS NULL AND w.awaits_claim",
    "running": f"w.state IN ({states(REGISTERED)})",
    "serving": f"w.state IN ({states(SERVING)})",
    "leaving": f"w.state IN ({states(LEAVING)})",
    "stuck": f"w.state IN ({states(LEAVING)}) AND w.stuck_at IS NOT NULL",
    "stranded": f"""w.state IN ({states(LEAVING)}) AND w.probe_permit IS NOT NULL AND w.registered_at IS NULL
        AND w.termination_refusals > 0""",
    "marked": f"w.state IN ({states(REGISTERED)}) AND w.leave_after_task",
}
# Columns of a worker on which its counters depend. All others, such as the time of its last contact, cost nothing.
_DEPENDS: Final = (
    "state",
    "instance_id",
    "registered_at",
    "first_claimed_at",
    "stuck_at",
    "termination_refusals",
    "leave_after_task",
    "awaits_claim",
    "account_unreachable",
    *LIMITED_KEYS,
)


def _lines(parts: Iterable[str], indent: int = 8) -> str:
    """A list in lines of at most 110 characters."""
    margin = " " * indent
    return fill(", ".join(parts), 110, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False).lstrip()


_CONDITIONS: Final = ",\n        ".join(f"({condition})::int" for condition in COUNTED.values())
CONFIG_USAGE_OF: Final = f"""
CREATE FUNCTION config_usage_of(w worker) RETURNS TABLE (
    {", ".join(f"{name} int" for name in COUNTED)}
) LANGUAGE sql IMMUTABLE AS $$ SELECT
        {_CONDITIONS}
$$"""
# Starts of an earlier stage will arrive in the later ones, so they count there too.
SHARED_USAGE_OF: Final = """
CREATE FUNCTION shared_usage_of(w worker) RETURNS TABLE (key text, stage text) LANGUAGE sql IMMUTABLE AS $$
    SELECT k.key, k.stage FROM config_usage_of(w) AS u CROSS JOIN LATERAL (VALUES
        (w.image_key, 'boot', u.launch + u.boot), (w.quota_key, 'launch', u.launch),
        (w.image_key, 'claim', CASE WHEN w.awaits_claim THEN u.launch + u.boot + u.claim END),
        (w.capacity_key, 'launch', u.launch), (w.subnet_key, 'launch', u.launch)
    ) AS k (key, stage, starts) WHERE k.starts > 0 AND k.key <> ''
$$"""


def _of_rows(name: str, rows: str, sign: str) -> str:
    """Trigger function that counts the `rows` of a statement that inserts or deletes them."""
    return f"""
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO config_usage (
        pool_id, launch_config_id, {", ".join(COUNTED)}
    ) SELECT w.pool_id, w.launch_config_id,
        {_lines(f"{sign}sum(u.{counted})" for counted in COUNTED)}
    FROM {rows} w CROSS JOIN LATERAL config_usage_of(w) AS u WHERE w.state NOT IN ({states(ENDED)})
    GROUP BY w.pool_id, w.launch_config_id;
    INSERT INTO shared_usage (key, stage, in_flight) SELECT k.key, k.stage, {sign}count(*)
    FROM {rows} w CROSS JOIN LATERAL shared_usage_of(w) AS k WHERE w.state NOT IN ({states(ENDED)})
    GROUP BY k.key, k.stage;
    RETURN NULL;
END $$"""


# Lock the pools that have been dirty longest and that no planner holds, and delete their marks that are due, in a
# statement that begins after the locks; all else is read later. Under READ COMMITTED each statement sees what committed
# before it began, so the changes behind every deleted mark are visible to the reads. A mark that commits later stays
# and makes the pool dirty again.
# In the order of an index, so that it ends at the first free pools, however many are dirty, or will be later. `most`
# marks are looked at, of which several may be of one pool.
# Nothing is planned before the relay has compared this database with the log on the running server.
# A pool is left out while a call under a lease of its last launches, of less than `launching_seconds` ago, has not
# begun. One ahead of the clock is of before the clock was set back, perhaps by hours.
# `more`: other pools are due as well.
# The rest of the transaction waits for no lock longer than `timeout`. To plan the statements of one decision anew would
# take longer than to execute them.
CLAIM_DIRTY: Final = f"""
CREATE FUNCTION claim_dirty(
    timeout text, most integer, launching_seconds float8,
    OUT claimed_id text, OUT reasons text[], OUT since timestamptz, OUT more boolean
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    claimed text[];
BEGIN
    PERFORM set_config('lock_timeout', timeout, true), {PLANS_KEPT};
    claimed := ARRAY(
        SELECT p.id FROM dirty_pool d JOIN worker_pool p ON p.id = d.pool_id
        WHERE d.due_at <= (SELECT slipway_clock())
            AND ({TRUSTED})
            AND NOT EXISTS (
                SELECT FROM worker w JOIN launch_config c ON c.id = w.launch_config_id AND c.state = 'active'
                WHERE w.pool_id = p.id AND w.state IN ({states(WAITING)}) AND w.lease_id IS NOT NULL
                    AND w.requested_at > (SELECT slipway_clock()) - launching_seconds * interval '1 s'
                    AND w.requested_at <= (SELECT slipway_clock()))
        ORDER BY d.due_at, d.id LIMIT most FOR UPDATE OF p SKIP LOCKED);
    RETURN QUERY WITH unmarked AS (
        DELETE FROM dirty_pool WHERE pool_id = ANY(claimed) AND due_at <= slipway_clock()
        RETURNING pool_id, reason, coalesce(dirty_since, due_at) AS dirty_since)
    SELECT c.id, coalesce(array_agg(u.reason) FILTER (WHERE u.reason IS NOT NULL), '{{}}'), min(u.dirty_since),
        coalesce(slipway_clock() >= (SELECT min(due_at) FROM dirty_pool WHERE pool_id <> ALL(claimed)), false)
    FROM (SELECT id, min(place) AS place FROM unnest(claimed) WITH ORDINALITY AS g (id, place) GROUP BY id) AS c
    LEFT JOIN unmarked u ON u.pool_id = c.id GROUP BY c.id, c.place ORDER BY c.place;
END $$"""
# Shared windows of the revisions of the pool $1, over all pools. In one statement, so that a start that fails at this
# moment counts either as in flight or as failed. {since}: since when the pool has been dirty; {rivals}: those of a key
# `m` with the window `s` and the usage `u`, on which `others` pools wait; {dirty}: a table of them.
_SHARED: Final = f"""
WITH mine AS MATERIALIZED (
    SELECT DISTINCT k.kind, k.key, k.stage FROM launch_config c CROSS JOIN LATERAL shared_keys(c) AS k
    WHERE c.pool_id = $1 AND c.state <> 'archived'){{dirty}}
SELECT m.kind, m.key, m.stage, s.size,
    coalesce(u.in_flight, 0) AS in_flight, coalesce(u.unfolded, 0) AS unfolded,
    coalesce(u.counter_rows, 0) AS counter_rows,
    coalesce(s.state = 'tripped', false) AS tripped, coalesce(s.reason, '') AS reason,
    coalesce(s.unconfirmed, 0) AS unconfirmed, coalesce(f.unconfirmed, 0) AS forgiven,
    w.waiting_since, coalesce(w.units, 0) AS waiting_units, o.others, (
        SELECT count(*)::int FROM (
            SELECT FROM waiting_pool o WHERE (o.key, o.stage) = (m.key, m.stage) AND o.pool_id <> $1
                AND (o.waiting_since, o.pool_id) < (coalesce(w.waiting_since, {{since}}::timestamptz), $1)
            LIMIT {WOKEN}::bigint * greatest(1, s.size)) AS o) AS ahead, {{rivals}} AS rivals
FROM mine m LEFT JOIN shared_window s USING (key, stage)
LEFT JOIN (
    SELECT key, stage, sum(in_flight)::int AS in_flight, sum(unfolded)::int AS unfolded, count(*)::int AS counter_rows
    FROM shared_usage WHERE key = ANY(ARRAY(SELECT key FROM mine)) GROUP BY key, stage) AS u USING (key, stage)
LEFT JOIN forgiven f ON f.pool_id = $1 AND f.key = m.key AND f.stage = m.stage
LEFT JOIN waiting_pool w ON w.pool_id = $1 AND w.key = m.key AND w.stage = m.stage
CROSS JOIN LATERAL (
    SELECT count(*)::int AS others FROM (
        SELECT FROM waiting_pool o WHERE (o.key, o.stage) = (m.key, m.stage) AND o.pool_id <> $1
        LIMIT greatest(1, s.size)) AS o) AS o
ORDER BY m.key, m.stage"""


def shared_of_pool(since: str) -> str:
    """Query of a pool's shared windows without rivals; `since`: since when it has been dirty."""
    return _SHARED.format(since=since, rivals="0", dirty="")


# Rivals are the pools that have been dirty longest: more than a few would only make the part of each smaller than one.
# They are read only if a window, of at most $4, is so full that the part of as many might be less than the $3 units
# planned.
RIVALS_MAX: Final = 100
_DIRTY: Final = f""", dirty AS MATERIALIZED (
    SELECT DISTINCT d.pool_id, k.key FROM (
        SELECT pool_id FROM dirty_pool WHERE due_at <= {NOW} ORDER BY due_at, id LIMIT {RIVALS_MAX}) AS d
    JOIN launch_config c ON c.pool_id = d.pool_id AND c.state = 'active'
    CROSS JOIN LATERAL (VALUES {", ".join(f"(c.{key})" for key in LIMITED_KEYS)}) AS k (key)
    WHERE d.pool_id <> $1)"""
_RIVALS: Final = f"""CASE
        WHEN least($4, coalesce(s.size, 0)) - coalesce(u.in_flight + u.unfolded, 0)
            <= $3::bigint * (o.others + {RIVALS_MAX})
        THEN (SELECT count(*)::int FROM dirty d WHERE d.key = m.key AND NOT EXISTS (
            SELECT FROM waiting_pool o WHERE (o.pool_id, o.key, o.stage) = (d.pool_id, m.key, m.stage))) ELSE 0 END"""
# Lock the shared windows of some keys, then read those of a pool by a statement that begins after the locks.
LOCK_SHARED: Final = f"""
CREATE FUNCTION lock_shared(pool_id text, dirty_since timestamptz, units bigint, window_max bigint, keys text[])
RETURNS TABLE (
    kind text, key text, stage text, size int, in_flight int, unfolded int, counter_rows int,
    tripped boolean, reason text, unconfirmed int, forgiven int,
    waiting_since timestamptz, waiting_units int, others int, ahead int, rivals int
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM shared_window w WHERE w.key = ANY(keys) ORDER BY w.key, w.stage FOR UPDATE;
    RETURN QUERY {_SHARED.format(since="$2", dirty=_DIRTY, rivals=_RIVALS).strip()};
END $$"""
# Mark the pools dirty whose last plan lacked headroom of their own launch configs, and those that a planner holds: it
# may be making such a plan of older usage. The others are locked until the caller commits what may be planned then.
MARK_SHORT: Final = """
CREATE FUNCTION mark_short(pool_ids text[], reason text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    free text[] := ARRAY(SELECT id FROM worker_pool WHERE id = ANY(pool_ids) FOR SHARE SKIP LOCKED);
BEGIN
    INSERT INTO dirty_pool (pool_id, reason) SELECT given.id, mark_short.reason FROM unnest(pool_ids) AS given (id)
    WHERE given.id <> ALL(free) OR EXISTS (SELECT FROM pool_balance b WHERE b.pool_id = given.id AND b.short)
    ORDER BY given.id;
END $$"""
# Lock leases, then requests.
LOCK_LEASES: Final = """
CREATE FUNCTION lock_leases(lease_ids text[], request_ids text[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    PERFORM FROM lease WHERE id = ANY(lease_ids) ORDER BY id FOR UPDATE;
    PERFORM FROM lease_request WHERE id = ANY(request_ids) ORDER BY id FOR UPDATE;
END $$"""
# Lock batches whose outcome is not recorded, then their intents, and read them with their accounts by a statement that
# begins after the locks: a row for each intent, or one without if there is none. Nothing in the transaction waits
# longer than `timeout` for a lock, if it is given, and its statements have kept plans.
LOCK_CALLS: Final = f"""
CREATE FUNCTION lock_calls(batch_ids uuid[], timeout text, OUT call_id uuid, OUT called account, OUT intent worker)
RETURNS SETOF record LANGUAGE plpgsql AS $$ BEGIN
    PERFORM set_config('lock_timeout', coalesce(timeout, current_setting('lock_timeout')), true),
        {PLANS_KEPT};
    PERFORM FROM launch_batch WHERE id = ANY(batch_ids) AND state = '{BatchState.CALLING}' ORDER BY id FOR UPDATE;
    PERFORM FROM worker WHERE batch_id = ANY(batch_ids) ORDER BY id FOR UPDATE;
    RETURN QUERY SELECT b.id, a, w FROM launch_batch b LEFT JOIN account a ON a.id = b.account_id
        LEFT JOIN worker w ON w.batch_id = b.id
        WHERE b.id = ANY(batch_ids) AND b.state = '{BatchState.CALLING}' ORDER BY b.id, w.id;
END $$"""
# Shared with every other start; excluded by a pause, freeze, drain, archive, launch stop or change of mode.
FOR_START: Final = "FOR SHARE OF p, n, c, g"
# Lock the launch configs of leases against commands that forbid a start, then the leases and their waiting intents,
# except for those that others have locked. A lease alone waits for its launch config and its safety limits. Of several,
# those whose launch config is locked are left out, and those that are `limited`, whose starts are counted in turn.
# All of the transaction has kept plans: to plan this for each start takes longer than to execute it.
LOCK_STARTS: Final = f"""
CREATE FUNCTION lock_starts(lease_ids text[], OUT leased lease, OUT intent worker, OUT limited boolean)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    shared text[];
    pool text;
    of_account text;
BEGIN
    PERFORM {PLANS_KEPT};
    limited := false;
    IF cardinality(lease_ids) = 1 THEN
        SELECT ARRAY[l.id], c.pool_id, c.account_id INTO shared, pool, of_account
        FROM lease l, worker_pool p, launch_config_name n, launch_config c, launch_stop_guard g
        WHERE l.id = lease_ids[1] AND c.id = l.launch_config_id AND p.id = c.pool_id AND n.name = c.name
        {FOR_START};
        PERFORM FROM launch_limit WHERE scope = 'account' AND scope_id = of_account FOR UPDATE;
        limited := FOUND;
        PERFORM FROM launch_limit WHERE scope = 'pool' AND scope_id = pool FOR UPDATE;
        limited := limited OR FOUND;
    ELSE
        shared := ARRAY(
            SELECT l.id FROM lease l, worker_pool p, launch_config_name n, launch_config c, launch_stop_guard g
            WHERE l.id = ANY(lease_ids) AND c.id = l.launch_config_id AND p.id = c.pool_id AND n.name = c.name
                AND NOT EXISTS (SELECT FROM launch_limit WHERE scope = 'pool' AND scope_id = c.pool_id)
                AND NOT EXISTS (SELECT FROM launch_limit WHERE scope = 'account' AND scope_id = c.account_id)
            {FOR_START} SKIP LOCKED);
    END IF;
    RETURN QUERY SELECT l, w, lock_starts.limited FROM lease l JOIN worker w ON w.lease_id = l.id
        WHERE l.id = ANY(shared) AND w.lease_id = ANY(shared) AND l.state <> '{LeaseState.ENDED}'
            AND w.state IN ({states(WAITING)})
        ORDER BY l.id, w.id FOR UPDATE OF l, w SKIP LOCKED;
END $$"""
LOCKING: Final = (CLAIM_DIRTY, LOCK_SHARED, MARK_SHORT, LOCK_CALLS, LOCK_LEASES, LOCK_STARTS)
# Transition tables have no column list, so a statement trigger on updates would fire for each heartbeat. This one does
# not: a heartbeat sets none of its columns.
COUNTERS: Final = (
    CONFIG_USAGE_OF,
    SHARED_USAGE_OF,
    _of_rows("count_inserted", "new_rows", ""),
    _of_rows("count_deleted", "old_rows", "-"),
    f"""
CREATE FUNCTION count_updated() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO config_usage (
        pool_id, launch_config_id, {", ".join(COUNTED)}
    ) SELECT new.pool_id, new.launch_config_id,
        {_lines(f"n.{counted} - o.{counted}" for counted in COUNTED)}
    FROM config_usage_of(new) AS n CROSS JOIN config_usage_of(old) AS o WHERE n IS DISTINCT FROM o;
    INSERT INTO shared_usage (key, stage, in_flight) SELECT key, stage, sum(change) FROM (
        SELECT key, stage, 1 AS change FROM shared_usage_of(new)
        UNION ALL SELECT key, stage, -1 FROM shared_usage_of(old)) AS c
    GROUP BY key, stage HAVING sum(change) <> 0;
    RETURN NULL;
END $$""",
    """
CREATE TRIGGER worker_inserted AFTER INSERT ON worker REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION count_inserted()""",
    """
CREATE TRIGGER worker_deleted AFTER DELETE ON worker REFERENCING OLD TABLE AS old_rows
FOR EACH STATEMENT EXECUTE FUNCTION count_deleted()""",
    f"""
CREATE TRIGGER worker_updated AFTER UPDATE OF
    {_lines(_DEPENDS, 4)}
ON worker FOR EACH ROW WHEN ((
    {_lines((f"old.{name}" for name in _DEPENDS), 4)}
) IS DISTINCT FROM (
    {_lines((f"new.{name}" for name in _DEPENDS), 4)}
)) EXECUTE FUNCTION count_updated()""",
    """
CREATE FUNCTION count_unfolded() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO shared_usage (key, stage, unfolded) SELECT key, stage, sum(change) FROM (
        SELECT unnest(new.keys) AS key, new.stage, new.unfolded AS change
        UNION ALL SELECT unnest(old.keys), old.stage, -old.unfolded) AS c
    GROUP BY key, stage HAVING sum(change) <> 0;
    RETURN NULL;
END $$""",
    """
CREATE TRIGGER outcomes_inserted AFTER INSERT ON launch_config_outcomes FOR EACH ROW
WHEN (new.unfolded > 0) EXECUTE FUNCTION count_unfolded()""",
    """
CREATE TRIGGER outcomes_updated AFTER UPDATE ON launch_config_outcomes FOR EACH ROW
WHEN ((old.unfolded, old.keys) IS DISTINCT FROM (new.unfolded, new.keys)) EXECUTE FUNCTION count_unfolded()""",
    """
CREATE TRIGGER outcomes_deleted AFTER DELETE ON launch_config_outcomes FOR EACH ROW
WHEN (old.unfolded > 0) EXECUTE FUNCTION count_unfolded()""",
)
# Spend of a worker: in the periods in which its machine began and ended. An ended one has run a minute at least. Its
# batch never changes the time at which it started and the price. It is looked up for one worker after another: joined
# as a table, all batches would be read for the workers of a pool.
SPEND_PERIOD_MINUTES: Final = 5
SPEND_SINCE: Final = "timestamptz '2000-01-01 00:00+00'"
_ENDED_WITH_INSTANCE: Final = f"w.state IN ({states(ENDED)}) AND w.instance_id IS NOT NULL AND w.ended_at IS NOT NULL"
_BEGAN: Final = "least(b.started_at, w.ended_at - b.minute_seconds * interval '1 s')"
SPEND_OF: Final = f"""
CREATE FUNCTION spend_of(w worker) RETURNS TABLE (
    price numeric, at timestamptz, live int, began int, ended int, seconds numeric
) LANGUAGE sql STABLE AS $$
    SELECT b.price, date_bin(b.minute_seconds * interval '{SPEND_PERIOD_MINUTES} s', p.at, {SPEND_SINCE}),
        p.live, p.began, p.ended, (p.ended - p.began) * extract(epoch FROM p.at)
    FROM (SELECT * FROM launch_batch WHERE id = w.batch_id LIMIT 1) AS b CROSS JOIN LATERAL (
        SELECT b.started_at, 1, 0, 0 WHERE w.state NOT IN ({states(ENDED)})
        UNION ALL SELECT {_BEGAN}, 0, 1, 0 WHERE {_ENDED_WITH_INSTANCE}
        UNION ALL SELECT w.ended_at, 0, 0, 1 WHERE {_ENDED_WITH_INSTANCE}
    ) AS p (at, live, began, ended)
$$"""
SPENT: Final = ("live", "began", "ended", "seconds")
_SPENDS: Final = ("state", "batch_id", "instance_id", "ended_at")
# For each row, since workers are inserted without a batch. A deleted worker that has ended keeps its part.
SPEND: Final = (
    SPEND_OF,
    f"""
CREATE FUNCTION count_spend() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO spend_usage (account_id, pool_id, price, at, {", ".join(SPENT)})
    SELECT c.account_id, p.pool_id, c.price, c.at, {", ".join(f"sum(sign * {name})" for name in SPENT)}
    FROM (SELECT 1 AS sign, new.account_id, new.pool_id, s.* FROM spend_of(new) AS s
        UNION ALL SELECT -1, old.account_id, old.pool_id, s.* FROM spend_of(old) AS s) AS c
    CROSS JOIN LATERAL (VALUES (''), (c.pool_id)) AS p (pool_id)
    GROUP BY 1, 2, 3, 4 HAVING {" OR ".join(f"sum(sign * {name}) <> 0" for name in SPENT)};
    RETURN NULL;
END $$""",
    """
CREATE TRIGGER spend_inserted AFTER INSERT ON worker FOR EACH ROW
WHEN (new.batch_id IS NOT NULL) EXECUTE FUNCTION count_spend()""",
    f"""
CREATE TRIGGER spend_updated AFTER UPDATE OF {", ".join(_SPENDS)} ON worker FOR EACH ROW
WHEN (old.batch_id IS DISTINCT FROM new.batch_id OR (new.batch_id IS NOT NULL
    AND (old.state IN ({states(ENDED)}) OR new.state IN ({states(ENDED)}))))
EXECUTE FUNCTION count_spend()""",
    f"""
CREATE TRIGGER spend_deleted AFTER DELETE ON worker FOR EACH ROW
WHEN (old.batch_id IS NOT NULL AND old.state NOT IN ({states(ENDED)})) EXECUTE FUNCTION count_spend()""",
)
# A start that frees headroom marks the pools dirty that have waited longest, in its own transaction.
WAKE_WAITING: Final = (
    f"""
CREATE FUNCTION wake_waiting() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO dirty_pool (pool_id, reason) SELECT pool_id, 'headroom' FROM waiting_pool
    WHERE (key, stage) = (new.key, new.stage)
    ORDER BY waiting_since, pool_id LIMIT {WOKEN} * -(new.in_flight + new.unfolded);
    RETURN NULL;
END $$""",
    """
CREATE TRIGGER headroom_freed AFTER INSERT ON shared_usage FOR EACH ROW
WHEN (new.in_flight + new.unfolded < 0) EXECUTE FUNCTION wake_waiting()""",
)

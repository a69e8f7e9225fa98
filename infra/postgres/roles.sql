-- A role and a schema for each service. An administrator runs it in the database of Slipway; it is safe to run it again.
--
--   psql "$ADMINISTRATOR" -f infra/postgres/roles.sql
--
-- Each role owns its schema and nothing else: it migrates its own tables, and cannot read those of another service. It
-- has no password; set one (`\password slipway_provisioner`), or map a client certificate to it in pg_hba.conf.
DO $$
DECLARE
    service text;
    role_name text;
BEGIN
    EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', current_database());
    REVOKE CREATE ON SCHEMA public FROM PUBLIC;
    FOREACH service IN ARRAY ARRAY['provisioner', 'weight_calculator', 'lease_broker'] LOOP
        role_name := 'slipway_' || service;
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I', role_name);
        END IF;
        EXECUTE format('ALTER ROLE %I LOGIN NOCREATEDB NOCREATEROLE CONNECTION LIMIT 100', role_name);
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), role_name);
        EXECUTE format('GRANT %I TO CURRENT_USER', role_name);
        EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I AUTHORIZATION %I', service, role_name);
    END LOOP;
END $$;

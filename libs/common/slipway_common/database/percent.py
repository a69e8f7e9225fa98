"""SQL function that percent-encodes one part of a key, like `encoded` in slipway_api.percent."""

from typing import Final

# Every byte but those of the unreserved characters of RFC 3986 and "@" is encoded.
PERCENT_ENCODED: Final = r"""
CREATE FUNCTION percent_encoded(given text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN given ~ '^[A-Za-z0-9_.~@-]*$' THEN given ELSE (
        SELECT string_agg(CASE WHEN c ~ '^[A-Za-z0-9_.~@-]$' THEN c ELSE
            regexp_replace(upper(encode(convert_to(c, 'UTF8'), 'hex')), '(..)', '%\1', 'g') END, '' ORDER BY place)
        FROM regexp_split_to_table(given, '') WITH ORDINALITY AS t (c, place)) END
$$"""

-- Register a content; one of that reference that is there stays as it is.
-- $1 content_ref, $2 hash, $3 media_type, $4 size in bytes, $5 schema_version.
-- Gives whether it was added, and what stands there now.
WITH added AS (
    INSERT INTO lease.contents (content_ref, hash, media_type, size_bytes, schema_version)
    VALUES ($1::text, $2::text, $3::text, $4::int8, $5::int4)
    ON CONFLICT (content_ref) DO NOTHING
    RETURNING content_ref, hash, media_type, size_bytes, schema_version
)
SELECT true, content_ref, hash, media_type, size_bytes, schema_version FROM added
UNION ALL
SELECT false, c.content_ref, c.hash, c.media_type, c.size_bytes, c.schema_version
  FROM lease.contents c
 WHERE c.content_ref = $1::text AND NOT EXISTS (SELECT FROM added);

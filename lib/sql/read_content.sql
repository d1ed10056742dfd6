-- What a content is known by. $1 content_ref. The first column is always false.
SELECT false, c.content_ref, c.hash, c.media_type, c.size_bytes, c.schema_version
  FROM lease.contents c
 WHERE c.content_ref = $1::text;

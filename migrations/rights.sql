-- Rights, applied anew by every migration. Applications may insert and call the writer functions, workers may call theirs,
-- readers may look at the views; nobody else may do anything.
revoke all on schema @schema@ from public;
revoke all on all tables in schema @schema@ from public, @app@, @worker@, @reader@;
revoke all on all functions in schema @schema@ from public, @app@, @worker@, @reader@;
revoke all on all sequences in schema @schema@ from public, @app@, @worker@, @reader@;
revoke all on type receipt, outbox_slot, outbox_fetched from public;
grant usage on schema @schema@ to @app@, @worker@, @reader@;

grant insert on outbox to @app@;
grant select (name, direction, ordering, max_message_bytes) on endpoint to @app@;
grant usage on sequence message_position to @app@;
grant execute on function new_message_id() to @app@;
grant execute on function enqueue(text, text, text, text, text, text, text, text, text, jsonb, text, timestamptz, interval, timestamptz, text, text, text, uuid) to @app@;
grant execute on function enqueue(text, text, jsonb, text, text, text, text, text, text, jsonb, text, timestamptz, interval, timestamptz, text, text, text, uuid) to @app@;
grant execute on function enqueue_bytes(text, text, bytea, text, text, text, text, text, text, jsonb, text, timestamptz, interval, timestamptz, text, text, text, uuid) to @app@;
grant execute on function store_outbox_messages(text, jsonb) to @app@;
grant execute on function explain_message(text, text) to @app@, @worker@, @reader@;

grant execute on function register_endpoint(text, text, text, text, text, int, boolean, jsonb, text, bigint) to @worker@;
grant execute on function register_retention(numeric, numeric) to @worker@;
grant execute on function claim_work(uuid, text, text, interval, text[], int, jsonb, jsonb) to @worker@;
grant execute on function poll_outbox() to @worker@;
grant execute on function fetch_outbox_batch(text, smallint[], xid8[], bigint[], xid8[], int, bigint) to @worker@;
grant execute on function complete_outbox_published(uuid, text, smallint[], bigint[], xid8[], bigint[], uuid[]) to @worker@;
grant execute on function defer_messages(uuid, text, smallint[], bigint[], xid8[], bigint[], uuid[], interval[], boolean[], boolean[], text[], text[]) to @worker@;
grant execute on function bury_messages(uuid, text, smallint[], bigint[], xid8[], bigint[], uuid[], boolean[], text[], text[]) to @worker@;
grant execute on function release_work(uuid, text, smallint[], bigint[], xid8[], xid8[], bigint[]) to @worker@;
grant execute on function deregister_worker(uuid) to @worker@;
grant execute on function perform_maintenance(int, interval) to @worker@;
grant select on schema_version, setting, deduplication_bucket to @worker@, @reader@;
-- A view reads tables as its owner, but calls functions as whoever asks.
grant execute on function stream_key(text, text, text) to @worker@, @reader@;
grant select on backlog, blocked_stream, lease_holder, dead_letter_summary, deduplication_memory to @worker@, @reader@;

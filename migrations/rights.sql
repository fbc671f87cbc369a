-- Rights, applied anew by every migration. Applications may insert and call the writer functions, workers may call theirs,
-- readers may look at the views; nobody else may do anything.
revoke all on schema @schema@ from public;
revoke all on all tables in schema @schema@ from public, @app@, @worker@, @reader@;
revoke all on all functions in schema @schema@ from public, @app@, @worker@, @reader@;
revoke all on all sequences in schema @schema@ from public, @app@, @worker@, @reader@;
revoke all on type receipt, message_slot, fetched, inbox_message from public;
grant usage on schema @schema@ to @app@, @worker@, @reader@;

-- Workers may what applications may: what a handler enqueues is written by the worker that runs it.
grant insert on outbox to @app@, @worker@;
grant select (name, direction, ordering, max_message_bytes) on endpoint to @app@, @worker@;
grant usage on sequence message_position to @app@, @worker@;
grant execute on function new_message_id() to @app@, @worker@;
grant execute on function enqueue(text, text, text, text, text, text, text, text, text, jsonb, text, timestamptz, interval, timestamptz, text, text, text, uuid) to @app@, @worker@;
grant execute on function enqueue(text, text, jsonb, text, text, text, text, text, text, jsonb, text, timestamptz, interval, timestamptz, text, text, text, uuid) to @app@, @worker@;
grant execute on function enqueue_bytes(text, text, bytea, text, text, text, text, text, text, jsonb, text, timestamptz, interval, timestamptz, text, text, text, uuid) to @app@, @worker@;
grant execute on function store_outbox_messages(text, jsonb) to @app@, @worker@;
grant execute on function store_inbox_messages(text, jsonb) to @app@, @worker@;
grant execute on function begin_request(text, text, text, bytea) to @app@, @worker@;
grant execute on function finish_request(text, text, text, text, jsonb) to @app@, @worker@;
grant execute on function request_outcome(text, text, text) to @app@, @worker@;
grant execute on function record_delivery(uuid, text, jsonb) to @app@, @worker@;
grant execute on function explain_request(text, text, text) to @app@, @worker@, @reader@;
grant execute on function canonical_meaning(json) to @app@, @worker@;
grant execute on function canonical_text(json, text) to @app@, @worker@;
grant execute on function take_inbox(text, int, text) to @app@;
grant execute on function complete_inbox(text, text[]) to @app@;
grant execute on function fail_inbox(text, text, text, interval) to @app@;
grant execute on function explain_message(text, text) to @app@, @worker@, @reader@;

grant execute on function register_endpoint(text, text, text, text, text, int, boolean, jsonb, text, bigint, text, text) to @worker@;
grant execute on function register_retention(numeric, numeric, numeric) to @worker@;
grant execute on function claim_work(uuid, text, text, interval, text[], int, jsonb, jsonb, text[]) to @worker@;
grant execute on function poll_outbox() to @worker@;
--@ each box
grant execute on function fetch_@box@_batch(text, smallint[], xid8[], bigint[], xid8[], int, bigint, boolean) to @worker@;
grant execute on function complete_@box@_@done@(uuid, text, smallint[], bigint[], xid8[], bigint[], uuid[]) to @worker@;
--@ end
grant execute on function store_inbox_messages(uuid, text, bigint, boolean, uuid[], text[], text[], text[], text[], text[], text[], text[], text[], text[], bytea[], text[], text[], text[], text[], text[]) to @worker@;
grant execute on function run_inbox_handler(uuid, text, smallint[], bigint[], xid8[], bigint[], uuid[], interval) to @worker@;
grant execute on function take_inbox_message(text, smallint, xid8, bigint, uuid) to @worker@;
grant execute on function inbox_handler(text) to @worker@;
grant execute on function hold_partitions(uuid, text, smallint[], bigint[]) to @worker@;
grant execute on function clear_handled(text, smallint[], xid8[], bigint[], uuid[]) to @worker@;
grant usage on type inbox_message to @worker@, @app@;
grant execute on function defer_messages(uuid, text, smallint[], bigint[], xid8[], bigint[], uuid[], interval[], boolean[], boolean[], text[], text[]) to @worker@;
grant execute on function bury_messages(uuid, text, smallint[], bigint[], xid8[], bigint[], uuid[], boolean[], text[], text[]) to @worker@;
grant execute on function release_work(uuid, text, smallint[], bigint[], xid8[], xid8[], bigint[]) to @worker@;
grant execute on function deregister_worker(uuid) to @worker@;
grant execute on function perform_maintenance(int, interval) to @worker@;
grant select on schema_version, setting, deduplication_bucket, request_bucket to @worker@, @reader@;
-- A view reads tables as its owner, but calls functions as whoever asks.
grant execute on function stream_key(text, text, text) to @worker@, @reader@;
grant select on backlog, blocked_stream, lease_holder, dead_letter_summary, deduplication_memory, request_memory to @worker@, @reader@;

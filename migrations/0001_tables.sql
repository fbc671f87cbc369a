-- The tables. One set serves every endpoint of the schema: a new endpoint is a row, not DDL.
--
-- Placeholders, replaced by the migration runner with quoted identifiers: @schema@ @owner@ @worker@ @app@ @reader@.
-- Every file runs with search_path = @schema@, pg_temp.

create table setting (
    key            text primary key,
    value          text,
    resource_value text,
    default_value  text not null,
    type           text not null default 'number' check (type in ('number', 'text')),
    description    text not null default '',
    check (type <> 'number' or value is null or value ~ '^[0-9]{1,9}(\.[0-9]{1,9})?$')
);
comment on table setting is 'What a person sets (value) wins over what the resource says (resource_value), which wins over default_value.';
insert into setting (key, default_value, description) values
    ('dedup_retention_days', '30', 'days in which a repeated message id or key is recognised'),
    ('request_retention_days', '30', 'days in which a repeated request gets the recorded outcome'),
    ('dead_retention_days', '30', 'days a dead letter is kept');

create table endpoint (
    name              text collate "C" primary key check (name ~ '^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$'),
    direction         text not null check (direction in ('Outbox', 'Inbox')),
    ordering          text not null check (ordering in ('None', 'PerStream', 'Total')),
    on_failure        text not null check (on_failure in ('BlockStream', 'Skip')),
    on_scheduled      text not null check (on_scheduled in ('Hold', 'Pass')),
    max_message_bytes integer not null check (max_message_bytes > 0),
    paused            boolean not null,
    handler           text check (handler in ('sqlFunction', 'pull')),
    handler_name      text,
    settings          jsonb not null,
    resource          text not null,
    generation        bigint not null,
    written_at        timestamptz not null default clock_timestamp(),
    check ((direction = 'Inbox') = (handler is not null)),
    check ((handler = 'sqlFunction') = (handler_name is not null))
);
comment on column endpoint.handler is 'who handles the messages of an inbox; handler_name is the function of a sqlFunction, as schema.name';
comment on column endpoint.generation is 'generation of the resource that wrote this row; an older one never overwrites it';

-- One sequence numbers the messages of all endpoints. No cache: the poll compares its last value.
create sequence message_position cache 1;

--@ each box
-- The messages, one table for each direction. Written once, deleted once. The key is the reading order: transaction number, then position.
-- No status, no lease column, no foreign key, no second index: each would be paid by every producer.
create table @box@ (
    endpoint        text collate "C" not null,
    partition       smallint not null,
    xact            xid8 not null,
    id              bigint not null,
    message_id      uuid not null,
    tenant          text collate "C" not null default '',
    stream          text collate "C",
    type            text not null,
    routing_key     text,
    content_type    text not null,
    headers         jsonb,
    payload         text,
    payload_bytes   bytea,
    correlation_id  text,
    causation_id    text,
    traceparent     text,
    request_id      uuid,
    foreign_id      text,
    idempotency_key text,
    created_at      timestamptz not null,
    available_at    timestamptz,
    expires_at      timestamptz,
    primary key (endpoint, partition, xact, id),
    check ((payload is null) <> (payload_bytes is null))
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
comment on column @box@.foreign_id is 'the text a caller gave as message id when it was not a uuid';
--@ end
comment on table outbox is 'Messages to be published, committed and not settled yet. xact, id and partition are always filled in by the trigger.';
comment on table inbox is 'Messages to be handled, accepted and not settled yet. Written by store_inbox_messages alone; created_at is the time of acceptance.';

-- A message that waits for a time: it failed, or it is scheduled.
create table deferral (
    endpoint        text collate "C" not null,
    partition       smallint not null,
    xact            xid8 not null,
    id              bigint not null,
    message_id      uuid not null,
    stream_key      text collate "C",
    blocking        boolean not null,
    due_at          timestamptz not null,
    attempts        integer not null default 0,
    deferrals       integer not null default 0,
    reason          text not null,
    error           text,
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
    worker          uuid,
    primary key (endpoint, partition, xact, id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- Is there an earlier message that blocks this stream?
create index deferral_stream on deferral (endpoint, partition, stream_key, xact, id);
-- What is due, and when is the next one?
create index deferral_due on deferral (endpoint, partition, due_at);
comment on column deferral.attempts is 'failures that count against the limit; deferrals counts all of them';

create table dead_letter (
    dead_letter_id  bigint generated always as identity primary key,
    endpoint        text collate "C" not null,
    direction       text not null,
    partition       smallint not null,
    xact            xid8 not null,
    id              bigint not null,
    message_id      uuid not null,
    tenant          text collate "C" not null,
    stream          text collate "C",
    type            text not null,
    routing_key     text,
    content_type    text not null,
    headers         jsonb,
    payload         text,
    payload_bytes   bytea,
    correlation_id  text,
    causation_id    text,
    traceparent     text,
    request_id      uuid,
    foreign_id      text,
    idempotency_key text,
    created_at      timestamptz not null,
    available_at    timestamptz,
    expires_at      timestamptz,
    reason          text not null,
    error           text,
    attempts        integer not null,
    digest          bytea,
    buried_at       timestamptz not null default clock_timestamp(),
    buried_by       uuid
);
comment on column dead_letter.digest is 'what a delivery meant that was refused: it is kept once, however often the broker delivers it';
create unique index dead_letter_refused on dead_letter (endpoint, tenant, message_id, reason, digest) where digest is not null;
create index dead_letter_time on dead_letter (buried_at);
create index dead_letter_message on dead_letter (message_id);

-- The right to work a partition; partition -1 of an inbox is the right to receive for it, where messages keep an order.
-- epoch grows with every claim and never shrinks.
create table lease (
    endpoint   text collate "C" not null,
    partition  smallint not null check (partition between -1 and 63),
    owner      uuid,
    epoch      bigint not null default 0,
    low_mark   xid8 not null default '0',
    removals   bigint not null default 0,
    suspect    boolean not null default false,
    primary key (endpoint, partition)
) with (fillfactor = 30, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
comment on column lease.low_mark is 'every message of a lower transaction is settled or deferred; a new owner starts reading here';
comment on column lease.removals is 'counts removed blocking deferrals, so that a reader knows in its own snapshot that a stream was freed behind its cursor';
comment on column lease.suspect is 'the owner before this one vanished without a release';

create table worker (
    id          uuid primary key,
    host        text not null,
    version     text not null,
    endpoints   text[] not null,
    in_flight   jsonb not null default '{}',
    lease_until timestamptz not null,
    started_at  timestamptz not null default clock_timestamp(),
    seen_at     timestamptz not null default clock_timestamp()
) with (fillfactor = 30, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- Memory of accepted identities, apart from the messages, so that it outlives them. A ring of four buckets by
-- time: one is written, the older ones are only read, the oldest is emptied by TRUNCATE when the ring turns.
-- The memory of requests has a ring of its own.
--@ each ring
create table @ring@_bucket (
    number    smallint primary key check (number between 0 and 3),
    opened_at timestamptz,
    current   boolean not null
);
insert into @ring@_bucket values (0, clock_timestamp(), true), (1, null, false), (2, null, false), (3, null, false);
--@ end

-- The bucket comes last in the keys: who looks for an identity does not know in which one it is.
create table message_deduplication (
    bucket        smallint not null,
    endpoint      text collate "C" not null,
    tenant        text collate "C" not null,
    message_id    uuid not null,
    digest        bytea not null,
    position      bigint not null,
    first_seen_at timestamptz not null,
    primary key (endpoint, tenant, message_id, bucket)
) partition by list (bucket);

create table idempotency_key (
    bucket        smallint not null,
    endpoint      text collate "C" not null,
    tenant        text collate "C" not null,
    key           text collate "C" not null,
    digest        bytea not null,
    message_id    uuid not null,
    position      bigint not null,
    first_seen_at timestamptz not null,
    primary key (endpoint, tenant, key, bucket)
) partition by list (bucket);

create table message_deduplication_0 partition of message_deduplication for values in (0);
create table message_deduplication_1 partition of message_deduplication for values in (1);
create table message_deduplication_2 partition of message_deduplication for values in (2);
create table message_deduplication_3 partition of message_deduplication for values in (3);
create table idempotency_key_0 partition of idempotency_key for values in (0);
create table idempotency_key_1 partition of idempotency_key for values in (1);
create table idempotency_key_2 partition of idempotency_key for values in (2);
create table idempotency_key_3 partition of idempotency_key for values in (3);

-- Which server this is, and since which crash or promotion it runs. Transaction numbers are only comparable
-- within one system identifier; positions and numbers may be given out again after a crash with asynchronous commits.
create table server (
    one               boolean primary key default true check (one),
    system_identifier bigint not null
);
create unlogged table incarnation (
    one boolean primary key default true check (one),
    id  uuid not null
);

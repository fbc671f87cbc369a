-- What applications call. Everything here runs inside the application's own transaction.

create type receipt as (slot int, message_id uuid, outcome text, "position" bigint, first_seen_at timestamptz);

-- The small functions are parsed here and now, so that nothing a session has in its search path can get into them.

-- A time-ordered id (RFC 9562, version 7).
create function new_message_id() returns uuid language sql volatile
    return encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid;

-- The id of a message whose sender has ids of its own: a uuid as it is, any other text by its hash (version 8).
create function message_id_of(endpoint text, foreign_id text) returns uuid language sql immutable
    return (select case when foreign_id ~ '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$' then foreign_id::uuid
    else encode(set_byte(set_byte(substring(h from 1 for 16),
            6, get_byte(h, 6) & 15 | 128), 8, get_byte(h, 8) & 63 | 128), 'hex')::uuid end
    from (select sha256(convert_to(endpoint || E'\n' || foreign_id, 'UTF8'))) s(h));

-- What keeps its order together: nothing (null), one stream of one tenant, or the whole endpoint.
create function stream_key(ordering text, tenant text, stream text) returns text language sql immutable
    return case ordering when 'PerStream' then tenant || E'\n' || stream when 'Total' then '' end;

-- What a message means, for the comparison of repeats: type, content type and body.
create function message_digest(type text, content_type text, body bytea) returns bytea language sql immutable
    return sha256(int4send(octet_length(type)) || convert_to(type, 'UTF8')
        || int4send(octet_length(content_type)) || convert_to(content_type, 'UTF8') || body);

-- Fills in and checks a new message. It runs as whoever inserts, with the search path of that session, and a SET clause
-- would cost 4 microseconds a row: so every type, function and operator is qualified.
-- The transaction number is taken before the position: a transaction that a snapshot does not list as running
-- has then no position yet either, and the reader cannot have passed it.
create function fill_message() returns trigger language plpgsql as $$
declare
    direction pg_catalog.text;
    ordering  pg_catalog.text;
    most      pg_catalog.int8;
    size      pg_catalog.int8;
    x         pg_catalog.xid8 := pg_catalog.pg_current_xact_id();
    box       pg_catalog.text := tg_argv[0];
    cause     pg_catalog.text;
begin
    select e.direction, e.ordering, e.max_message_bytes into direction, ordering, most from @schema@.endpoint e where e.name operator(pg_catalog.=) new.endpoint;
    if direction is null or pg_catalog.lower(direction) operator(pg_catalog.<>) box then
        raise exception using errcode = 'PR004',
            message = pg_catalog.format('endpoint %L is not an %s', new.endpoint, box),
            hint = pg_catalog.format('Declare it under spec.%ses of the resource and run the migration, or correct the name.', box);
    end if;
    -- The writer functions have drawn their positions already. They alone run as a role that may delete here; what anybody
    -- else gives is replaced.
    if new.id is null or new.xact is null or new.xact operator(pg_catalog.<>) x or not pg_catalog.has_table_privilege(tg_relid, 'DELETE') then
        new.id := pg_catalog.nextval('@schema@.message_position'::pg_catalog.regclass);
    end if;
    new.xact := x;
    if new.message_id is null then new.message_id := @schema@.new_message_id(); end if;
    if new.tenant is null or pg_catalog.btrim(new.tenant) operator(pg_catalog.=) '' then new.tenant := ''; end if;
    if new.stream operator(pg_catalog.=) '' then new.stream := null; end if;
    if new.content_type is null then
        new.content_type := case when new.payload is null then 'application/octet-stream' else 'application/json' end;
    end if;
    -- What a handler writes was caused by the message it handles, see run_inbox_handler.
    cause := pg_catalog.current_setting('postroom.message_id', true);
    if cause operator(pg_catalog.<>) '' and box operator(pg_catalog.=) 'outbox' then
        new.causation_id := coalesce(new.causation_id, cause);
        new.correlation_id := coalesce(new.correlation_id, pg_catalog.current_setting('postroom.correlation_id', true));
        new.traceparent := coalesce(new.traceparent, nullif(pg_catalog.current_setting('postroom.traceparent', true), ''));
    end if;
    if new.created_at is null then new.created_at := pg_catalog.clock_timestamp(); end if;
    if new.available_at operator(pg_catalog.<=) pg_catalog.clock_timestamp() then new.available_at := null; end if;
    if new.type is null or (new.payload is null) operator(pg_catalog.=) (new.payload_bytes is null)
        or pg_catalog.jsonb_typeof(new.headers) operator(pg_catalog.<>) 'object' then
        raise exception using errcode = 'PR010',
            message = case when new.type is null then 'type is missing'
                when pg_catalog.jsonb_typeof(new.headers) operator(pg_catalog.<>) 'object' then 'headers must be a JSON object'
                else 'exactly one of payload and payload_bytes must be given' end;
    end if;
    if greatest(pg_catalog.octet_length(new.type), pg_catalog.octet_length(new.routing_key), pg_catalog.octet_length(new.content_type),
            pg_catalog.octet_length(new.correlation_id), pg_catalog.octet_length(new.causation_id), pg_catalog.octet_length(new.traceparent),
            pg_catalog.octet_length(new.stream), pg_catalog.octet_length(new.tenant)) operator(pg_catalog.>) 255 then
        raise exception using errcode = 'PR005', message = (select pg_catalog.format('%s has %s bytes, at most 255 are allowed', n, pg_catalog.octet_length(v))
            from (values ('type', new.type), ('routing_key', new.routing_key), ('content_type', new.content_type), ('correlation_id', new.correlation_id),
                ('causation_id', new.causation_id), ('traceparent', new.traceparent), ('stream', new.stream), ('tenant', new.tenant)) f(n, v)
            where pg_catalog.octet_length(v) operator(pg_catalog.>) 255 limit 1);
    end if;
    size := coalesce(pg_catalog.octet_length(new.payload), pg_catalog.octet_length(new.payload_bytes));
    if new.headers is not null and box operator(pg_catalog.=) 'outbox' then size := size operator(pg_catalog.+) pg_catalog.octet_length(new.headers::pg_catalog.text); end if;
    if size operator(pg_catalog.>) most then
        raise exception using errcode = 'PR005', message = pg_catalog.format('%s bytes, endpoint %L allows %s (%s.maxMessageBytes)',
            case box when 'outbox' then 'body and headers have ' else 'the body has ' end operator(pg_catalog.||) size, new.endpoint, most, case box when 'outbox' then 'delivery' else 'consumer' end);
    end if;
    -- One of 64 slices: the hash of the stream, or the position where nothing has to stay together.
    new.partition := case
        when ordering operator(pg_catalog.=) 'Total' then 0
        when ordering operator(pg_catalog.=) 'None' or new.stream is null then new.id operator(pg_catalog.&) 63::pg_catalog.int8
        else pg_catalog.get_byte(pg_catalog.sha256(pg_catalog.convert_to(new.tenant operator(pg_catalog.||) E'\n' operator(pg_catalog.||) new.stream, 'UTF8')), 0)
            operator(pg_catalog.&) 63 end;
    return new;
end $$;
-- A scheduled message is stored with its deferral, in the same transaction.
create function schedule_message() returns trigger language plpgsql security definer set search_path from current as $$
declare
    e record;
begin
    select ordering, on_scheduled into e from endpoint where name = new.endpoint;
    insert into deferral (endpoint, partition, xact, id, message_id, stream_key, blocking, due_at, reason)
    values (new.endpoint, new.partition, new.xact, new.id, new.message_id, stream_key(e.ordering, new.tenant, new.stream),
        e.on_scheduled = 'Hold' and stream_key(e.ordering, new.tenant, new.stream) is not null, new.available_at, 'Scheduled');
    return null;
end $$;

-- store_inbox_messages fills in and checks deliveries itself, and says so by their partition.
create trigger fill before insert on outbox for each row execute function fill_message('outbox');
create trigger fill before insert on inbox for each row when (new.partition is null) execute function fill_message('inbox');
--@ each box
create trigger schedule after insert on @box@ for each row when (new.available_at is not null) execute function schedule_message();
--@ end

-- One message of a batch, as the writer functions pass it on.
create type message_slot as (
    message_id text, key text, conflict text, tenant text, stream text, type text, routing_key text, content_type text, headers jsonb,
    payload text, payload_bytes bytea, correlation_id text, causation_id text, traceparent text, request_id uuid,
    available_at timestamptz, delay interval, expires_at timestamptz);

-- Remembers one identity: a key, or a message id where key is null. Answers the row that was first, or nothing when this one is.
-- The caller holds the ring's lock, so only the bucket `current_bucket` is written meanwhile.
create function remember(current_bucket smallint, p_endpoint text, p_tenant text, p_key text, p_message_id uuid, p_digest bytea, p_position bigint, p_now timestamptz,
    out digest bytea, out message_id uuid, out "position" bigint, out first_seen_at timestamptz)
language plpgsql as $$
#variable_conflict use_column
declare
    inserted int;
begin
    if p_key is not null then
        select k.digest, k.message_id, k.position, k.first_seen_at into remember.digest, remember.message_id, remember.position, remember.first_seen_at
        from @schema@.idempotency_key k where k.bucket <> current_bucket and k.endpoint = p_endpoint and k.tenant = p_tenant and k.key = p_key;
        if found then return; end if;
        insert into @schema@.idempotency_key as k values (current_bucket, p_endpoint, p_tenant, p_key, p_digest, p_message_id, p_position, p_now)
        on conflict do nothing;
        get diagnostics inserted = row_count;
        if inserted = 0 then
            select k.digest, k.message_id, k.position, k.first_seen_at into remember.digest, remember.message_id, remember.position, remember.first_seen_at
            from @schema@.idempotency_key k where k.bucket = current_bucket and k.endpoint = p_endpoint and k.tenant = p_tenant and k.key = p_key;
        end if;
    else
        select k.digest, k.message_id, k.position, k.first_seen_at into remember.digest, remember.message_id, remember.position, remember.first_seen_at
        from @schema@.message_deduplication k where k.bucket <> current_bucket and k.endpoint = p_endpoint and k.tenant = p_tenant and k.message_id = p_message_id;
        if found then return; end if;
        insert into @schema@.message_deduplication as k values (current_bucket, p_endpoint, p_tenant, p_message_id, p_digest, p_position, p_now)
        on conflict do nothing;
        get diagnostics inserted = row_count;
        if inserted = 0 then
            select k.digest, k.message_id, k.position, k.first_seen_at into remember.digest, remember.message_id, remember.position, remember.first_seen_at
            from @schema@.message_deduplication k where k.bucket = current_bucket and k.endpoint = p_endpoint and k.tenant = p_tenant and k.message_id = p_message_id;
        end if;
    end if;
end $$;

-- The lock of a ring: shared for writers, until their transaction ends; exclusive for the turn.
create function ring_lock_key(ring text) returns bigint language sql stable set search_path from current as $$
    select ('x' || substr(encode(sha256(convert_to('postroom ' || ring || ' ring ' || current_schema(), 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint
$$;

-- The bucket to write, under the shared lock. Above READ COMMITTED the snapshot may be older than the last turn of
-- the ring; the row lock then fails with 40001 instead of accepting a repeat.
--@ each ring
create function open_@ring@_bucket() returns smallint language plpgsql set search_path from current as $$
declare
    b smallint;
begin
    perform pg_advisory_xact_lock_shared(ring_lock_key('@ring@'));
    if current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
        select number into strict b from @ring@_bucket where current;
    else
        select number into strict b from @ring@_bucket where current for share;
    end if;
    return b;
end $$;
--@ end

-- Stores the slots of one batch and answers one receipt per slot. Identities are remembered in sorted order (keys,
-- then ids), so that two batches with the same ones cannot dead-lock; rows are inserted in slot order.
-- A slot with a remembered identity and another meaning is an error; among deliveries of a broker it gets the outcome Conflict.
create function put_messages(p_box text, p_endpoint text, slots message_slot[], deliveries boolean default false, keep_conflicts boolean default true) returns setof receipt
language plpgsql set search_path from current as $$
declare
    n         int := coalesce(cardinality(slots), 0);
    receipts  receipt[] := array_fill(null::receipt, array[n]);
    ids       uuid[] := array_fill(null::uuid, array[n]);
    positions bigint[] := array_fill(null::bigint, array[n]);
    digests   bytea[] := array_fill(null::bytea, array[n]);
    stored    text := case p_box when 'outbox' then 'Enqueued' else 'Accepted' end;
    s         message_slot;
    seen      record;
    open      smallint;
    began     timestamptz := clock_timestamp();
    i         int;
    by_key    boolean;
begin
    if not exists (select from endpoint where name = p_endpoint and lower(direction) = p_box) then
        raise exception using errcode = 'PR004', message = format('endpoint %L is not an %s', p_endpoint, p_box),
            hint = format('Declare it under spec.%ses of the resource and run the migration, or correct the name.', p_box);
    end if;
    perform pg_current_xact_id();
    for i in 1 .. n loop
        s := slots[i];
        if not deliveries then perform check_slot(i - 1, s); end if;   -- a delivery was checked when it was received
        s.tenant := case when btrim(coalesce(s.tenant, '')) = '' then '' else s.tenant end;
        s.content_type := coalesce(s.content_type, case when s.payload is null then 'application/octet-stream' else 'application/json' end);
        if s.delay is not null then s.available_at := clock_timestamp() + s.delay; end if;
        slots[i] := s;
        ids[i] := coalesce(message_id_of(p_endpoint, nullif(btrim(s.message_id), '')), new_message_id());
        positions[i] := nextval('message_position');
        if s.key is not null or btrim(s.message_id) <> '' then
            digests[i] := message_digest(s.type, s.content_type, coalesce(s.payload_bytes, convert_to(s.payload, 'UTF8')));
        end if;
    end loop;

    for i, by_key in
        select o.i, o.by_key from (
            select k as i, true as by_key, (slots[k]).tenant as tenant, (slots[k]).key collate "C" as identity from generate_subscripts(slots, 1) k where (slots[k]).key is not null
            union all
            select k, false, (slots[k]).tenant, ids[k]::text collate "C" from generate_subscripts(slots, 1) k where btrim((slots[k]).message_id) <> '') o
        order by o.by_key desc, o.tenant collate "C", o.identity, o.i
    loop
        continue when receipts[i] is not null;
        s := slots[i];
        open := coalesce(open, open_deduplication_bucket());
        select * into seen from remember(open, p_endpoint, s.tenant, case when by_key then s.key end, ids[i], digests[i], positions[i], began);
        continue when seen.message_id is null and seen.position is null;
        if seen.digest <> digests[i] and deliveries then
            if keep_conflicts then perform quarantine(p_endpoint, ids[i], s, digests[i], format('%s; remembered since %s with digest %s, this one has %s',
                case when by_key then format('key %L', s.key) else 'same message id' end, seen.first_seen_at, encode(seen.digest, 'hex'), encode(digests[i], 'hex')));
            end if;
            receipts[i] := row(i - 1, ids[i], 'Conflict', seen.position, seen.first_seen_at);
        elsif seen.digest <> digests[i] then
            raise exception using errcode = 'PR002', message = format('%s %L was stored before with another meaning (type, content type or payload differ)',
                case when by_key then 'key' else 'message id' end, case when by_key then s.key else s.message_id end),
                detail = format('slot %s, stored %s', i - 1, seen.first_seen_at), hint = 'A new intent needs a new identity.';
        elsif s.conflict = 'strict' then
            raise exception using errcode = 'PR001', message = format('%s %L was stored before',
                case when by_key then 'key' else 'message id' end, case when by_key then s.key else s.message_id end),
                detail = format('slot %s, message %s, stored %s', i - 1, coalesce(seen.message_id, ids[i]), seen.first_seen_at);
        else
            receipts[i] := row(i - 1, coalesce(seen.message_id, ids[i]), 'Already' || stored, seen.position, seen.first_seen_at);
        end if;
        if not by_key and s.key is not null then   -- the key is new, but the message is not: it names the first one
            update idempotency_key k set message_id = coalesce(seen.message_id, ids[i]), position = seen.position, first_seen_at = seen.first_seen_at, digest = seen.digest
            where k.bucket = open and k.endpoint = p_endpoint and k.tenant = s.tenant and k.key = s.key and k.position = positions[i];
            for j in 1 .. n loop   -- and so do the slots that repeated the key
                if (receipts[j])."position" = positions[i] then
                    receipts[j] := row(j - 1, coalesce(seen.message_id, ids[i]), 'Already' || stored, seen.position, seen.first_seen_at);
                end if;
            end loop;
        end if;
    end loop;

--@ each box
    if p_box = '@box@' then
        insert into @box@ (endpoint, partition, xact, id, message_id, tenant, stream, type, routing_key, content_type, headers, payload, payload_bytes,
            correlation_id, causation_id, traceparent, request_id, foreign_id, idempotency_key, available_at, expires_at)
        select p_endpoint, null, pg_current_xact_id(), positions[k], ids[k], t.tenant, t.stream, t.type, t.routing_key, t.content_type, t.headers, t.payload, t.payload_bytes,
            t.correlation_id, t.causation_id, t.traceparent, t.request_id,
            case when lower(btrim(t.message_id)) is distinct from ids[k]::text then nullif(btrim(t.message_id), '') end, t.key, t.available_at, t.expires_at
        from unnest(slots) with ordinality t(message_id, key, conflict, tenant, stream, type, routing_key, content_type, headers, payload, payload_bytes,
            correlation_id, causation_id, traceparent, request_id, available_at, delay, expires_at, k)
        where receipts[k] is null order by k;
    end if;
--@ end

    for i in 1 .. n loop
        return next coalesce(receipts[i], row(i - 1, ids[i], stored, positions[i], began)::receipt);
    end loop;
end $$;

-- Keeps a delivery that was refused, once however often it comes, for people to decide about.
create function quarantine(p_endpoint text, p_message_id uuid, s message_slot, p_digest bytea, p_error text, p_reason text default 'Conflict') returns void
language plpgsql set search_path from current as $$
begin
    insert into dead_letter (endpoint, direction, partition, xact, id, message_id, tenant, stream, type, routing_key, content_type, headers, payload, payload_bytes,
        correlation_id, causation_id, traceparent, foreign_id, idempotency_key, created_at, reason, error, attempts, digest)
    values (p_endpoint, 'Inbox', 0, pg_current_xact_id(), nextval('message_position'), p_message_id, s.tenant, s.stream, s.type, s.routing_key, s.content_type, s.headers, s.payload, s.payload_bytes,
        s.correlation_id, s.causation_id, s.traceparent, s.message_id, s.key, clock_timestamp(), p_reason, left(p_error, 2000), 0, p_digest)
    on conflict (endpoint, tenant, message_id, reason, digest) where digest is not null do nothing;
end $$;

-- Refuses a slot that cannot become a message, by the number of the slot and the name of the field.
create function check_slot(slot int, s message_slot) returns void language plpgsql set search_path from current as $$
declare
    problem text := case
        when s.type is null or s.type = '' then 'type is missing'
        when (s.payload is null) = (s.payload_bytes is null) then 'exactly one of payload and payload bytes must be given'
        when s.conflict is not null and s.conflict not in ('return_existing', 'strict') then format('conflict is %L, must be ''return_existing'' or ''strict''', s.conflict)
        when s.conflict = 'strict' and s.key is null and btrim(coalesce(s.message_id, '')) = '' then 'conflict ''strict'' needs a key or a message_id'
        when s.key = '' then 'key is empty'
        when s.delay is not null and s.available_at is not null then 'only one of delay and available_at may be given'
        when s.delay < interval '0' then format('delay is %s, must not be negative', s.delay)
        when s.delay > interval '1000 years' then format('delay is %s, at most 1000 years are allowed; give available_at instead', s.delay) end;
begin
    if problem is not null then
        raise exception using errcode = 'PR010', message = format('slot %s: %s', slot, problem);
    end if;
    if greatest(octet_length(s.key), octet_length(s.message_id), octet_length(s.tenant)) > 255 then
        raise exception using errcode = 'PR005', message = (select format('slot %s: %s has %s bytes, at most 255 are allowed', slot, n, octet_length(v))
            from (values ('key', s.key), ('message_id', s.message_id), ('tenant', s.tenant)) f(n, v) where octet_length(v) > 255 limit 1);
    end if;
end $$;

create function enqueue(endpoint text, type text, payload text, stream text default null, tenant text default null, message_id text default null,
    key text default null, conflict text default 'return_existing', routing_key text default null, headers jsonb default null, content_type text default null,
    available_at timestamptz default null, delay interval default null, expires_at timestamptz default null, correlation_id text default null,
    causation_id text default null, traceparent text default null, request_id uuid default null) returns receipt
language sql security definer set search_path from current as $$
    select * from put_messages('outbox', endpoint, array[row(message_id, key, conflict, tenant, stream, type, routing_key, content_type, headers, payload, null,
        correlation_id, causation_id, traceparent, request_id, available_at, delay, expires_at)::message_slot])
$$;

create function enqueue(endpoint text, type text, payload jsonb, stream text default null, tenant text default null, message_id text default null,
    key text default null, conflict text default 'return_existing', routing_key text default null, headers jsonb default null, content_type text default null,
    available_at timestamptz default null, delay interval default null, expires_at timestamptz default null, correlation_id text default null,
    causation_id text default null, traceparent text default null, request_id uuid default null) returns receipt
language sql security definer set search_path from current as $$
    select * from put_messages('outbox', endpoint, array[row(message_id, key, conflict, tenant, stream, type, routing_key, content_type, headers, payload::text, null,
        correlation_id, causation_id, traceparent, request_id, available_at, delay, expires_at)::message_slot])
$$;

create function enqueue_bytes(endpoint text, type text, payload bytea, stream text default null, tenant text default null, message_id text default null,
    key text default null, conflict text default 'return_existing', routing_key text default null, headers jsonb default null, content_type text default null,
    available_at timestamptz default null, delay interval default null, expires_at timestamptz default null, correlation_id text default null,
    causation_id text default null, traceparent text default null, request_id uuid default null) returns receipt
language sql security definer set search_path from current as $$
    select * from put_messages('outbox', endpoint, array[row(message_id, key, conflict, tenant, stream, type, routing_key, content_type, headers, null, payload,
        correlation_id, causation_id, traceparent, request_id, available_at, delay, expires_at)::message_slot])
$$;

-- One text value of a slot; an object or array where text belongs is refused, except for payload, which may be any JSON.
create function slot_text(slot int, message jsonb, name text) returns text language plpgsql immutable set search_path from current as $$
begin
    if jsonb_typeof(message -> name) in ('object', 'array') then
        raise exception using errcode = 'PR010', message = format('slot %s: %s must be text', slot, name);
    end if;
    return message ->> name;
end $$;

-- Reads one slot; an unknown key, a wrong type or a value that cannot be read is refused by name.
create function parse_slot(slot int, message jsonb) returns message_slot language plpgsql stable set search_path from current as $$
declare
    s       message_slot;
    field   text;
    unknown text;
begin
    if jsonb_typeof(message) is distinct from 'object' then
        raise exception using errcode = 'PR010', message = format('slot %s: must be a JSON object', slot);
    end if;
    select k into unknown from jsonb_object_keys(message) k where k not in ('message_id', 'key', 'conflict', 'tenant', 'stream', 'type', 'routing_key',
        'content_type', 'headers', 'payload', 'payload_base64', 'correlation_id', 'causation_id', 'traceparent', 'request_id', 'available_at', 'delay', 'expires_at') limit 1;
    if unknown is not null then
        raise exception using errcode = 'PR010', message = format('slot %s: unknown key %L', slot, unknown),
            hint = 'A slot has the columns of the outbox, payload or payload_base64, and key, conflict, delay.';
    end if;
    s.message_id := slot_text(slot, message, 'message_id');
    s.key := slot_text(slot, message, 'key');
    s.conflict := slot_text(slot, message, 'conflict');
    s.tenant := slot_text(slot, message, 'tenant');
    s.stream := slot_text(slot, message, 'stream');
    s.type := slot_text(slot, message, 'type');
    s.routing_key := slot_text(slot, message, 'routing_key');
    s.content_type := slot_text(slot, message, 'content_type');
    s.correlation_id := slot_text(slot, message, 'correlation_id');
    s.causation_id := slot_text(slot, message, 'causation_id');
    s.traceparent := slot_text(slot, message, 'traceparent');
    s.payload := message ->> 'payload';
    if message -> 'headers' <> 'null' then s.headers := message -> 'headers'; end if;
    if s.headers is not null and jsonb_typeof(s.headers) <> 'object' then
        raise exception using errcode = 'PR010', message = format('slot %s: headers must be a JSON object', slot);
    end if;
    field := 'payload_base64'; s.payload_bytes := decode(slot_text(slot, message, field), 'base64');
    field := 'request_id'; s.request_id := slot_text(slot, message, field)::uuid;
    field := 'available_at'; s.available_at := slot_text(slot, message, field)::timestamptz;
    field := 'delay'; s.delay := slot_text(slot, message, field)::interval;
    field := 'expires_at'; s.expires_at := slot_text(slot, message, field)::timestamptz;
    return s;
exception when data_exception then
    raise exception using errcode = 'PR010', message = format('slot %s: %s cannot be read: %s', slot, field, sqlerrm);
end $$;

--@ each box
create function store_@box@_messages(endpoint text, messages jsonb) returns setof receipt
language plpgsql security definer set search_path from current as $$
begin
    if jsonb_typeof(messages) is distinct from 'array' then
        raise exception using errcode = 'PR010', message = 'messages must be a JSON array';
    end if;
    return query select * from put_messages('@box@', store_@box@_messages.endpoint,
        array(select parse_slot((k - 1)::int, m) from jsonb_array_elements(messages) with ordinality t(m, k) order by k));
end $$;
--@ end

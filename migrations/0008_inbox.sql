-- The inbox: accepting deliveries, running handlers, and messages that applications take themselves.

-- Stores a batch of deliveries in the order in which they were received; the caller acknowledges them once this is committed.
-- The arrays are parallel; null where a delivery lacks something. message_ids holds ids that are uuids, foreign_ids any other. The caller has checked what it passes: nothing here may fail
-- because of what a message contains, since the broker would deliver it again for ever.
--
-- ingress_epoch is the caller's right to receive, 0 where everybody may; lost says that it is the caller's no more, and nothing was
-- stored. refusals holds a reason code where a delivery cannot be accepted: it becomes one dead letter, however often it comes.
-- outcomes: Accepted, AlreadyAccepted, Conflict (same identity, other meaning), Refused. Demands W-20..W-25, T-24, T-25.
create function store_inbox_messages(worker uuid, endpoint text, ingress_epoch bigint, keep_conflicts boolean, message_ids uuid[], foreign_ids text[], keys text[], tenants text[], streams text[],
    types text[], routing_keys text[], content_types text[], headers text[], payloads text[], payload_bytes bytea[], correlation_ids text[], causation_ids text[],
    traceparents text[], refusals text[], errors text[])
returns table (lost boolean, outcomes text[], incarnation uuid)
language plpgsql security definer set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_column
declare
    box       text := store_inbox_messages.endpoint;
    mode      text;
    slots     message_slot[];
    numbers   int[];      -- of the deliveries that are not refused
    names     text[];     -- their tenants
    ids       uuid[];
    digests   bytea[];
    positions bigint[];
    added     bigint[];   -- positions of those that are new
    open      smallint;
    began     timestamptz := clock_timestamp();
    known     record;
    k         int;
begin
    mode := (select e.ordering from endpoint e where e.name = box and e.direction = 'Inbox');
    if mode is null then
        raise exception using errcode = 'PR004', message = format('endpoint %L is not an inbox', box);
    end if;
    lost := false;
    incarnation := (select i.id from incarnation i);
    if ingress_epoch <> 0 then
        perform from lease l where l.endpoint = box and l.partition = -1 for key share;
        lost := lost_partitions(store_inbox_messages.worker, box, array[-1::smallint], array[ingress_epoch]) <> '{}';
        if lost then return next; return; end if;
    end if;
    perform pg_current_xact_id();
    outcomes := array_fill('Refused'::text, array[cardinality(message_ids)]);

    -- Refused ones, and whole batches in which a sender gives keys of its own, take the way that goes one by one.
    if exists (select from unnest(refusals, keys) u(refusal, key) where refusal is not null or key is not null) then
        select array_agg(row(coalesce(u.id::text, u.m), u.key, null, u.tenant, u.stream, u.type, u.routing_key, u.content_type, u.headers::jsonb, u.payload, u.bytes, u.correlation_id, u.causation_id,
            u.traceparent, null, null, null, null)::message_slot order by u.k) into slots
        from unnest(message_ids, foreign_ids, keys, tenants, streams, types, routing_keys, content_types, headers, payloads, payload_bytes, correlation_ids, causation_ids, traceparents)
            with ordinality u(id, m, key, tenant, stream, type, routing_key, content_type, headers, payload, bytes, correlation_id, causation_id, traceparent, k);
        for k in select i from generate_subscripts(slots, 1) i where refusals[i] is not null loop
            slots[k].tenant := coalesce(slots[k].tenant, '');
            digests[k] := message_digest(slots[k].type, slots[k].content_type, coalesce(slots[k].payload_bytes, convert_to(slots[k].payload, 'UTF8')));
            perform quarantine(box, message_id_of(box, coalesce(slots[k].message_id, encode(digests[k], 'hex'))), slots[k], digests[k], errors[k], refusals[k]);
        end loop;
        select array_agg(u.k order by u.k) into numbers from unnest(refusals) with ordinality u(refusal, k) where refusal is null;
        for known in select r.slot, r.outcome from put_messages('inbox', box, array(select slots[n] from unnest(numbers) n), true, keep_conflicts) r loop
            outcomes[numbers[known.slot + 1]] := known.outcome;
        end loop;
        return next;
        return;
    end if;

    open := open_deduplication_bucket();
    select array_agg(s.tenant order by s.k), array_agg(s.id order by s.k), array_agg(s.digest order by s.k), array_agg(s.position order by s.k) into names, ids, digests, positions
    from (select u.k, case when btrim(coalesce(u.tenant, '')) = '' then '' else u.tenant end as tenant, coalesce(u.id, message_id_of(box, u.m)) as id,
            sha256(int4send(octet_length(u.type)) || convert_to(u.type, 'UTF8') || int4send(octet_length(u.content_type)) || convert_to(u.content_type, 'UTF8')
                || coalesce(u.bytes, convert_to(u.payload, 'UTF8'))) as digest,
            nextval('message_position') as position
        from unnest(message_ids, foreign_ids, tenants, types, content_types, payloads, payload_bytes) with ordinality u(id, m, tenant, type, content_type, payload, bytes, k)) s;

    -- The unique key decides what is new, and nothing else. Sorted, so that two batches with the same identities cannot dead-lock.
    with added as (
        insert into message_deduplication (bucket, endpoint, tenant, message_id, digest, position, first_seen_at)
        select open, box, f.tenant, f.id, f.digest, f.position, began
        from (select distinct on (u.tenant collate "C", u.id) * from unnest(names, ids, digests, positions) with ordinality u(tenant, id, digest, position, k)
            order by u.tenant collate "C", u.id, u.k) f
        where (select 1 from message_deduplication d where d.bucket <> open and d.endpoint = box and d.tenant = f.tenant and d.message_id = f.id limit 1) is null   -- a probe, never a hash of all
        order by f.tenant collate "C", f.id
        on conflict do nothing
        returning position)
    select coalesce(array_agg(a.position), '{}') into added from added a;

    insert into inbox (endpoint, partition, xact, id, message_id, tenant, stream, type, routing_key, content_type, headers, payload, payload_bytes,
        correlation_id, causation_id, traceparent, foreign_id, idempotency_key, created_at)
    select box, case when mode = 'Total' then 0 when mode = 'None' or u.stream is null then u.position & 63
            else get_byte(sha256(convert_to(u.tenant || E'\n' || u.stream, 'UTF8')), 0) & 63 end,
        pg_current_xact_id(), u.position, u.id, u.tenant, u.stream, u.type, u.routing_key, u.content_type, u.headers::jsonb, u.payload, u.bytes,
        u.correlation_id, u.causation_id, u.traceparent, u.m, null, began
    from unnest(positions, ids, names, streams, types, routing_keys, content_types, headers, payloads, payload_bytes, correlation_ids, causation_ids, traceparents, foreign_ids)
        with ordinality u(position, id, tenant, stream, type, routing_key, content_type, headers, payload, bytes, correlation_id, causation_id, traceparent, m, k)
    where u.position = any (added) order by u.k;

    if cardinality(added) = cardinality(ids) then
        outcomes := array_fill('Accepted'::text, array[cardinality(ids)]);
    else
        for known in
            select u.k::int as k, u.position = any (added) as fresh, u.digest, d.digest as first_digest, d.first_seen_at
            from unnest(positions, ids, names, digests) with ordinality u(position, id, tenant, digest, k)
            left join lateral (select d.* from message_deduplication d where d.endpoint = box and d.tenant = u.tenant and d.message_id = u.id limit 1) d on true
        loop
            k := known.k;
            outcomes[k] := case when known.fresh then 'Accepted' when known.digest = known.first_digest then 'AlreadyAccepted' else 'Conflict' end;
            if outcomes[k] = 'Conflict' and keep_conflicts then
                perform quarantine(box, ids[k], row(foreign_ids[k], null, null, names[k], streams[k], types[k], routing_keys[k], content_types[k], headers[k]::jsonb, payloads[k],
                    payload_bytes[k], correlation_ids[k], causation_ids[k], traceparents[k], null, null, null, null)::message_slot, digests[k],
                    format('same message id; remembered since %s with digest %s, this one has %s', known.first_seen_at, encode(known.first_digest, 'hex'), encode(known.digest, 'hex')));
            end if;
        end loop;
    end if;
    return next;
end $$;

-- What a handler gets. payload is the body as text, null where the body is not text: then payload_bytes has it.
-- correlation_id, causation_id and traceparent are passed on to what the handler enqueues, see run_inbox_handler.
create type inbox_message as (endpoint text, message_id uuid, tenant text, stream text, type text, payload text, payload_bytes bytea, content_type text, headers jsonb,
    routing_key text, correlation_id text, causation_id text, traceparent text, request_id uuid, foreign_id text, idempotency_key text, "position" bigint,
    accepted_at timestamptz, attempts int);

-- The key of a message whose sender gave none (L-41).
create function ingress_key(p_endpoint text, foreign_id text, message_id uuid) returns text language plpgsql stable set search_path from current as $$
begin
    return format('ingress:%s:%s', (select coalesce(e.settings ->> 'queue', e.name) from endpoint e where e.name = p_endpoint), coalesce(foreign_id, message_id::text));
end $$;

-- Deletes one message and answers it: whoever does that in a transaction is the only one whose effect can commit.
create function take_inbox_message(p_endpoint text, p smallint, x xid8, i bigint, m uuid) returns inbox_message
language plpgsql security definer set search_path from current set plan_cache_mode = force_generic_plan set jit = off as $$
declare
    taken inbox_message;
begin
    delete from inbox b where b.endpoint = p_endpoint and b.partition = p and b.xact = x and b.id = i and b.message_id = m
    returning b.endpoint, b.message_id, b.tenant, b.stream, b.type, b.payload, b.payload_bytes, b.content_type, b.headers, b.routing_key, b.correlation_id, b.causation_id,
        b.traceparent, b.request_id, b.foreign_id, coalesce(b.idempotency_key, ingress_key(b.endpoint, b.foreign_id, b.message_id)), b.id, b.created_at,
        coalesce((select d.attempts from deferral d where d.endpoint = p_endpoint and d.partition = p and d.xact = x and d.id = i), 0) into taken;
    return taken;
end $$;

-- The handler of an inbox, quoted; an error where there is none.
create function inbox_handler(p_endpoint text) returns text language plpgsql stable security definer set search_path from current as $$
declare
    name text := (select e.handler_name from endpoint e where e.name = p_endpoint and e.handler = 'sqlFunction');
    call text := format('%I.%I', split_part(name, '.', 1), split_part(name, '.', 2));
begin
    if name is null then
        raise exception using errcode = 'PR004', message = format('endpoint %L has no SQL handler', p_endpoint);
    end if;
    return call;
end $$;

-- Keeps the leases of the partitions from being taken over until the transaction ends, and answers those that are lost already.
-- A key share: moving a low mark does not wait for it, a take-over goes round it.
create function hold_partitions(worker uuid, endpoint text, partitions smallint[], epochs bigint[]) returns smallint[]
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
begin
    perform from lease l where l.endpoint = hold_partitions.endpoint and l.partition = any (hold_partitions.partitions) order by l.partition for key share;
    return lost_partitions(hold_partitions.worker, hold_partitions.endpoint, hold_partitions.partitions, hold_partitions.epochs);
end $$;

-- Removes the deferrals of handled messages; in the transaction in which they were handled.
create function clear_handled(p_endpoint text, partitions smallint[], xacts xid8[], ids bigint[], message_ids uuid[], out freed_partitions smallint[], out freed_removals bigint[])
language plpgsql security definer set search_path from current as $$
begin
    select f.* into freed_partitions, freed_removals from remove_deferrals(p_endpoint, partitions, xacts, ids, message_ids) f;
end $$;

-- Runs the SQL handler for a batch, one savepoint for each message. Effect, completion and the messages that the handler enqueues
-- commit together, whoever holds the lease (W-79, T-24): the row goes first, and where it is gone nothing is run.
-- It runs as the caller, with the caller's search path.
--
-- outcomes: handled; gone (settled before); failed, with code, error and detail; left (not begun after `longest`); lost (the partition).
-- A serialisation failure, a dead-lock or a lock that was not available ends the whole call where several messages are in it: none of
-- them is known to be the cause.
create function run_inbox_handler(worker uuid, endpoint text, partitions smallint[], epochs bigint[], xacts xid8[], ids bigint[], message_ids uuid[],
    longest interval default '200 milliseconds')
returns table (outcomes text[], codes text[], errors text[], details text[], freed_partitions smallint[], freed_removals bigint[], incarnation uuid)
language plpgsql as $$
declare
    name    pg_catalog.text := @schema@.inbox_handler(run_inbox_handler.endpoint);
    call    pg_catalog.text := pg_catalog.format('select %s($1)', name);
    handler pg_catalog.oid := pg_catalog.to_regprocedure(pg_catalog.format('%s(%s)', name, '@schema@.inbox_message'));
    lost    pg_catalog.int2[] := @schema@.hold_partitions(run_inbox_handler.worker, run_inbox_handler.endpoint, run_inbox_handler.partitions, run_inbox_handler.epochs);
    n       pg_catalog.int4 := pg_catalog.cardinality(run_inbox_handler.ids);
    stop    pg_catalog.timestamptz := pg_catalog.clock_timestamp() operator(pg_catalog.+) run_inbox_handler.longest;
    done    pg_catalog.int4[] := '{}';
    message @schema@.inbox_message;
    state   pg_catalog.text;
    problem pg_catalog.text;
    more    pg_catalog.text;
begin
    outcomes := pg_catalog.array_fill('left'::pg_catalog.text, array[n]);
    if handler is null then
        raise exception using errcode = '42883', message = pg_catalog.format('function %s(%s) does not exist', name, '@schema@.inbox_message');
    elsif not pg_catalog.has_function_privilege(handler, 'execute') then
        raise exception using errcode = '42501', message = pg_catalog.format('%s may not execute function %s', current_user, name);
    end if;
    codes := pg_catalog.array_fill(null::pg_catalog.text, array[n]);
    errors := codes;
    details := codes;
    for i in 1 .. n loop
        if partitions[i] operator(pg_catalog.=) any (lost) then
            outcomes[i] := 'lost';
            continue;
        end if;
        exit when i operator(pg_catalog.>) 1 and pg_catalog.clock_timestamp() operator(pg_catalog.>) stop;
        begin
            message := @schema@.take_inbox_message(run_inbox_handler.endpoint, partitions[i], xacts[i], ids[i], message_ids[i]);
            if message.message_id is null then
                outcomes[i] := 'gone';
            else
                perform pg_catalog.set_config('postroom.message_id', message.message_id::pg_catalog.text, true),
                    pg_catalog.set_config('postroom.correlation_id', coalesce(message.correlation_id, message.message_id::pg_catalog.text), true),
                    pg_catalog.set_config('postroom.traceparent', coalesce(message.traceparent, ''), true);
                execute call using message;
                outcomes[i] := 'handled';
            end if;
            done := pg_catalog.array_append(done, i);
        exception when others then
            get stacked diagnostics state = returned_sqlstate, problem = message_text, more = pg_exception_detail;
            if n operator(pg_catalog.>) 1 and (state operator(pg_catalog.~) '^40' or state operator(pg_catalog.=) '55P03') then
                raise;
            end if;
            outcomes[i] := 'failed';
            codes[i] := state;
            errors[i] := pg_catalog.left(problem, 2000);
            details[i] := pg_catalog.left(more, 200);
        end;
    end loop;
    perform pg_catalog.set_config('postroom.message_id', '', true);
    select f.freed_partitions, f.freed_removals, (select s.incarnation from @schema@.poll_outbox() s) into freed_partitions, freed_removals, incarnation
    from @schema@.clear_handled(run_inbox_handler.endpoint, array(select partitions[d] from pg_catalog.unnest(done) d), array(select xacts[d] from pg_catalog.unnest(done) d),
        array(select ids[d] from pg_catalog.unnest(done) d), array(select message_ids[d] from pg_catalog.unnest(done) d)) f;
    return next;
end $$;

-- Gives a message of a pull inbox up: a full copy goes to dead_letter, the message and its deferral go away.
create function give_up_taken(b inbox, p_reason text, p_error text, p_attempts int) returns void
language plpgsql set search_path from current as $$
begin
    insert into dead_letter (endpoint, direction, partition, xact, id, message_id, tenant, stream, type, routing_key, content_type, headers, payload, payload_bytes,
        correlation_id, causation_id, traceparent, request_id, foreign_id, idempotency_key, created_at, available_at, expires_at, reason, error, attempts)
    values (b.endpoint, 'Inbox', b.partition, b.xact, b.id, b.message_id, b.tenant, b.stream, b.type, b.routing_key, b.content_type, b.headers, b.payload, b.payload_bytes,
        b.correlation_id, b.causation_id, b.traceparent, b.request_id, b.foreign_id, b.idempotency_key, b.created_at, b.available_at, b.expires_at, p_reason, left(p_error, 2000), p_attempts);
    delete from inbox o where o.endpoint = b.endpoint and o.partition = b.partition and o.xact = b.xact and o.id = b.id and o.message_id = b.message_id;
    perform remove_deferrals(b.endpoint, array[b.partition], array[b.xact], array[b.id], array[b.message_id]);
end $$;

-- Takes up to `max` messages of an inbox whose handler is pull, for the length of the caller's transaction; what is not completed or
-- failed in it is there again when it ends, however it ends. Partitions are locked, so that nobody else gets a message of the same
-- stream meanwhile; only the first message of a stream is given out, none that waits for a time or behind one that blocks its stream.
--
-- A partition is looked at 1,000 messages at a time, further on only where none of them can be taken, and 100,000 at most. Above
-- READ COMMITTED a snapshot that is older than a failure in the partition gets 40001.
create function take_inbox(endpoint text, max int default 1, tenant text default null)
returns table (ticket text, message_id uuid, message_tenant text, stream text, type text, payload text, payload_bytes bytea, content_type text, headers jsonb, routing_key text,
    correlation_id text, causation_id text, traceparent text, request_id uuid, foreign_id text, idempotency_key text, "position" bigint, accepted_at timestamptz, attempts int)
language plpgsql security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
declare
    box      text := take_inbox.endpoint;
    whose    text := case when btrim(take_inbox.tenant) = '' then '' else take_inbox.tenant end;
    wants    int := take_inbox.max;
    at_once  constant int := 1000;
    at_most  constant int := 100000;
    now_     timestamptz := clock_timestamp();
    e        record;
    p        smallint;
    deferred boolean;
    looked   int;
    window_  record;
    late     inbox;
begin
    select * into e from endpoint x where x.name = box and x.handler = 'pull';
    if e.name is null then
        raise exception using errcode = 'PR004', message = format('endpoint %L is not an inbox that applications take from', box),
            hint = 'Declare it under spec.inboxes with handler.pull.';
    elsif max is null or max < 1 then
        raise exception using errcode = 'PR010', message = format('max is %s, must be at least 1', coalesce(max::text, 'null'));
    end if;
    if e.paused then return; end if;
    for p in select l.partition from lease l where l.endpoint = box and l.partition >= 0
        and exists (select from inbox b where b.endpoint = box and b.partition = l.partition) order by random()
    loop
        exit when wants <= 0;
        perform from lease l where l.endpoint = box and l.partition = p for update skip locked;
        continue when not found;
        -- New statements: they see what the last holder of the lock has committed.
        deferred := exists (select from deferral d where d.endpoint = box and d.partition = p);
        looked := 0;
        select '0'::xid8 as x, 0::bigint as i into window_;
        loop
            -- passed: a message that the rest of its stream goes past. open: it could be taken, whoever's it is. Deferrals are asked for in the order of the index
            -- that finds them, without sorting: a plan that was made when the table was empty would else take any index.
            select count(*) as n, (array_agg(w.xact order by w.xact desc, w.id desc))[1] as x, (array_agg(w.id order by w.xact desc, w.id desc))[1] as i, coalesce(bool_or(w.open), false) as found_some,
                array_agg(w.xact order by w.xact, w.id) filter (where w.open and (whose is null or w.tenant = whose)) as xacts,
                array_agg(w.id order by w.xact, w.id) filter (where w.open and (whose is null or w.tenant = whose)) as ids into window_
            from (select k.*, not k.waiting and not k.behind
                    and (k.passed or k.key is null or row_number() over (partition by k.key, k.passed order by k.xact, k.id) = 1) as open
                from (select o.*, d.blocking is not null and not d.blocking as passed, coalesce(d.due_at > now_, false) as waiting,
                        deferred and o.key is not null and (select true from deferral b where b.endpoint = box and b.partition = p and b.blocking
                            and (b.stream_key, b.xact, b.id) >= (o.key, '0'::xid8, 0::bigint) and (b.stream_key, b.xact, b.id) < (o.key, o.xact, o.id)
                            and (select h.message_id from inbox h where h.endpoint = box and h.partition = p and h.xact = b.xact and h.id = b.id) = b.message_id
                            order by b.stream_key, b.xact, b.id limit 1) is not null as behind
                    from (select o.xact, o.id, o.message_id, o.tenant, stream_key(e.ordering, o.tenant, o.stream) as key from inbox o
                        where o.endpoint = box and o.partition = p and (o.xact, o.id) > (window_.x, window_.i) and (whose is null or e.ordering = 'Total' or o.tenant = whose)
                        order by o.xact, o.id limit at_once) o
                    left join lateral (select f.blocking, f.due_at from (select d.* from deferral d where deferred and d.endpoint = box and d.partition = p and (d.xact, d.id) >= (o.xact, o.id)
                        order by d.xact, d.id limit 1) f where f.xact = o.xact and f.id = o.id and f.message_id = o.message_id) d on true) k) w;
            for late in select b.* from unnest(window_.xacts[: wants], window_.ids[: wants]) k(x, i)
                join inbox b on b.endpoint = box and b.partition = p and b.xact = k.x and b.id = k.i where b.expires_at <= now_
            loop
                perform give_up_taken(late, 'Expired', 'its time of expiry had passed before its turn came',
                    coalesce((select d.attempts from deferral d where d.endpoint = box and d.partition = p and d.xact = late.xact and d.id = late.id), 0));
            end loop;
            return query
                select format('%s.%s.%s.%s', b.partition, b.xact, b.id, b.message_id), b.message_id, b.tenant, b.stream, b.type, b.payload, b.payload_bytes, b.content_type, b.headers,
                    b.routing_key, b.correlation_id, b.causation_id, b.traceparent, b.request_id, b.foreign_id, coalesce(b.idempotency_key, ingress_key(b.endpoint, b.foreign_id, b.message_id)), b.id,
                    b.created_at, coalesce(d.attempts, 0)
                from unnest(window_.xacts[: wants], window_.ids[: wants]) with ordinality k(x, i, n)
                join inbox b on b.endpoint = box and b.partition = p and b.xact = k.x and b.id = k.i
                left join deferral d on d.endpoint = box and d.partition = p and d.xact = k.x and d.id = k.i
                order by k.n;
            wants := wants - least(wants, coalesce(cardinality(window_.ids), 0));
            looked := looked + at_once;
            exit when window_.found_some or window_.n < at_once or looked >= at_most;
        end loop;
    end loop;
end $$;

-- Reads a ticket of take_inbox.
create function read_ticket(ticket text, out p smallint, out x xid8, out i bigint, out m uuid) language plpgsql immutable set search_path from current as $$
begin
    begin
        p := split_part(ticket, '.', 1)::smallint;
        x := split_part(ticket, '.', 2)::xid8;
        i := split_part(ticket, '.', 3)::bigint;
        m := split_part(ticket, '.', 4)::uuid;
    exception when data_exception then
        m := null;
    end;
    if ticket is null or m is null or format('%s.%s.%s.%s', p, x, i, m) <> ticket then
        raise exception using errcode = 'PR010', message = format('ticket %L is none that take_inbox gave out', ticket);
    end if;
end $$;

-- The messages are handled: they go, in the caller's transaction. Answers how many there were; fewer than tickets means that somebody
-- else has settled one, and the caller's effect must not be committed.
create function complete_inbox(endpoint text, tickets text[]) returns bigint
language plpgsql security definer set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
    keys record;
    n    bigint;
begin
    if not exists (select from endpoint e where e.name = complete_inbox.endpoint and e.handler = 'pull') then
        raise exception using errcode = 'PR004', message = format('endpoint %L is not an inbox that applications take from', complete_inbox.endpoint);
    end if;
    select array_agg(t.p) as p, array_agg(t.x) as x, array_agg(t.i) as i, array_agg(t.m) as m into keys
    from (select r.* from unnest(tickets) k cross join lateral read_ticket(k) r order by r.p, r.x, r.i) t;
    delete from inbox b using unnest(keys.p, keys.x, keys.i, keys.m) k(p, x, i, m)
    where b.endpoint = complete_inbox.endpoint and b.partition = k.p and b.xact = k.x and b.id = k.i and b.message_id = k.m;
    get diagnostics n = row_count;
    perform remove_deferrals(complete_inbox.endpoint, keys.p, keys.x, keys.i, keys.m);
    return n;
end $$;

-- The message could not be handled: it is tried again after `retry_in`, or after the endpoint's back-off, and given up at the endpoint's
-- limit of attempts. Answers 'Deferred', 'Buried' or 'Gone'. Called after a rollback, it waits for whoever has taken from the same partition since.
create function fail_inbox(endpoint text, ticket text, error text, retry_in interval default null) returns text
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    e      endpoint;
    k      record;
    b      inbox;
    tried  int;
    most   int;
    pause  interval;
begin
    select * into e from endpoint x where x.name = fail_inbox.endpoint and x.handler = 'pull';
    if e.name is null then
        raise exception using errcode = 'PR004', message = format('endpoint %L is not an inbox that applications take from', fail_inbox.endpoint);
    elsif retry_in < interval '0' or retry_in > interval '1000 years' then
        raise exception using errcode = 'PR010', message = format('retry_in is %s, must not be negative or longer than 1000 years', retry_in);
    end if;
    select * into k from read_ticket(ticket);
    -- The lease before the message, as take_inbox and complete_inbox lock them. It is written, so that a snapshot from before this
    -- failure cannot take from the partition any more: it would not see the deferral, and leave it behind.
    update lease l set removals = l.removals + 1, low_mark = least(l.low_mark, k.x) where l.endpoint = e.name and l.partition = k.p;
    select * into b from inbox o where o.endpoint = e.name and o.partition = k.p and o.xact = k.x and o.id = k.i and o.message_id = k.m for update;
    if b.id is null then return 'Gone'; end if;
    tried := coalesce((select d.attempts from deferral d where d.endpoint = b.endpoint and d.partition = b.partition and d.xact = b.xact and d.id = b.id), 0) + 1;
    most := (e.settings #>> '{retry,maxAttempts}')::int;
    if most > 0 and tried >= most then
        perform give_up_taken(b, 'HandlerFailed', error, tried);
        return 'Buried';
    end if;
    pause := coalesce(retry_in, least((e.settings #>> '{retry,maxDelaySeconds}')::float8,
        (e.settings #>> '{retry,initialDelaySeconds}')::float8 * 2 ^ least(tried - 1, 20)) * interval '1 second' * case e.settings #>> '{retry,jitter}' when 'Full' then random() else 1 end);
    insert into deferral as d (endpoint, partition, xact, id, message_id, stream_key, blocking, due_at, attempts, deferrals, reason, error, first_failed_at, last_failed_at)
    values (b.endpoint, b.partition, b.xact, b.id, b.message_id, stream_key(e.ordering, b.tenant, b.stream),
        e.on_failure = 'BlockStream' and stream_key(e.ordering, b.tenant, b.stream) is not null, clock_timestamp() + pause, 1, 1, 'HandlerFailed', left(error, 2000),
        clock_timestamp(), clock_timestamp())
    on conflict (endpoint, partition, xact, id) do update set due_at = excluded.due_at, attempts = d.attempts + 1, deferrals = d.deferrals + 1, blocking = excluded.blocking,
        reason = excluded.reason, error = excluded.error, first_failed_at = coalesce(d.first_failed_at, excluded.first_failed_at), last_failed_at = excluded.last_failed_at,
        message_id = excluded.message_id, stream_key = excluded.stream_key;
    return 'Deferred';
end $$;

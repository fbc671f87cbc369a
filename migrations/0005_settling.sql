-- Recording what became of a message. Every settle names the whole key and the message id: after a crash with asynchronous
-- commits numbers and positions are given out again, and a late completion must not delete another message.
-- Arrays are parallel; the caller sorts them by key, so that two settles lock in the same order.
-- All in PL/pgSQL with generic plans: a function in SQL would be parsed and planned in every call, which costs more than
-- the deletion of a hundred rows.

-- Refuses arrays that are not parallel. lengths is {"name": length or null}; one that is null has a null among its elements.
create function check_parallel(function text, lengths jsonb) returns void language plpgsql immutable set search_path from current as $$
begin
    if (select count(distinct value) <> 1 or bool_or(value = 'null') from jsonb_each(lengths)) then
        raise exception using errcode = 'PR010', message = format('%s: arrays of the same length and without nulls are needed; lengths are %s', function, lengths),
            hint = 'One element of each array for each message; null stands here for an array that is null or has a null in it.';
    end if;
end $$;

-- The length of an array, null if it has a null in it.
create function length_of(a anyarray) returns int language plpgsql immutable set search_path from current as $$
begin
    return case when array_position(a, null) is null then cardinality(a) end;
end $$;

-- Removes deferrals and, where they blocked a stream, tells the readers: low mark and counter move in this transaction.
create function remove_deferrals(p_endpoint text, partitions smallint[], xacts xid8[], ids bigint[], message_ids uuid[],
    out freed_partitions smallint[], out freed_removals bigint[])
language plpgsql set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off as $$
begin
    freed_partitions := '{}';
    freed_removals := '{}';
    if not exists (select from deferral d where d.endpoint = p_endpoint) then return; end if;
    with gone as (
        delete from deferral d using unnest(partitions, xacts, ids, message_ids) k(p, x, i, m)
        where d.endpoint = p_endpoint and d.partition = k.p and d.xact = k.x and d.id = k.i and d.message_id = k.m
        returning d.partition, d.xact, d.blocking
    ), freed as (
        update lease l set low_mark = least(l.low_mark, g.xact), removals = l.removals + 1
        from (select partition, min(xact::text::bigint)::text::xid8 as xact from gone where blocking group by partition order by partition) g
        where l.endpoint = p_endpoint and l.partition = g.partition
        returning l.partition, l.removals
    )
    select coalesce(array_agg(f.partition order by f.partition), '{}'), coalesce(array_agg(f.removals order by f.partition), '{}')
    into freed_partitions, freed_removals from freed f;
end $$;

-- Deletes what was published and confirmed, each row once; unknown ones are no-ops. Deleting the very message that was
-- confirmed is right whoever does it; partitions that are no longer the worker's are named all the same.
-- The commit is asynchronous: a crash repeats at most what was completed in the last moments.
--@ each box
create function complete_@box@_@done@(worker uuid, endpoint text, partitions smallint[], epochs bigint[], xacts xid8[], ids bigint[], message_ids uuid[])
returns table (deleted bigint, lost_partitions smallint[], freed_partitions smallint[], freed_removals bigint[], incarnation uuid)
language plpgsql security definer set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_column
begin
    perform check_parallel('complete_@box@_@done@', jsonb_build_object('partitions', length_of(partitions), 'epochs', length_of(epochs), 'xacts', length_of(xacts),
        'ids', length_of(ids), 'message_ids', length_of(message_ids)));
    perform set_config('synchronous_commit', 'off', true);
    delete from @box@ o using unnest(partitions, xacts, ids, message_ids) k(p, x, i, m)
    where o.endpoint = complete_@box@_@done@.endpoint and o.partition = k.p and o.xact = k.x and o.id = k.i and o.message_id = k.m;
    get diagnostics deleted = row_count;
    -- A second statement: a deferral that was written while the first one waited for the row is seen here.
    select f.freed_partitions, f.freed_removals into freed_partitions, freed_removals
    from remove_deferrals(complete_@box@_@done@.endpoint, partitions, xacts, ids, message_ids) f;
    lost_partitions := lost_partitions(worker, complete_@box@_@done@.endpoint, partitions, epochs);
    incarnation := (select i.id from incarnation i);
    return next;
end $$;
--@ end

-- The partitions whose lease is not (worker, epoch) any more.
create function lost_partitions(worker uuid, endpoint text, partitions smallint[], epochs bigint[]) returns smallint[]
language plpgsql stable set search_path from current as $$
begin
    return array(select k.p from (select distinct p, e from unnest(partitions, epochs) u(p, e)) k
        where not exists (select from lease l where l.endpoint = lost_partitions.endpoint and l.partition = k.p and l.owner = lost_partitions.worker and l.epoch = k.e)
        order by k.p);
end $$;

-- Locks the leases of the given partitions against a take-over until the transaction ends, then answers which are lost.
create function fence(worker uuid, endpoint text, partitions smallint[], epochs bigint[]) returns smallint[]
language plpgsql set search_path from current as $$
#variable_conflict use_column
begin
    perform from lease l where l.endpoint = fence.endpoint and l.partition = any (fence.partitions) order by l.partition for share;
    return lost_partitions(fence.worker, fence.endpoint, fence.partitions, fence.epochs);
end $$;

-- Puts messages off until a time from now. counted failures count against the endpoint's limit; blocking ones hold their
-- stream back; one that stops to do so counts as a removal, as in remove_deferrals. The message row is locked first: without that a deferral could outlive a message that is deleted at this moment.
create function defer_messages(worker uuid, endpoint text, partitions smallint[], epochs bigint[], xacts xid8[], ids bigint[], message_ids uuid[],
    delays interval[], counted boolean[], blocking boolean[], reasons text[], errors text[])
returns table (deferred bigint, lost_partitions smallint[], incarnation uuid)
language plpgsql security definer set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_column
declare
    box text := (select lower(e.direction) from endpoint e where e.name = defer_messages.endpoint);
begin
    perform check_parallel('defer_messages', jsonb_build_object('partitions', length_of(partitions), 'epochs', length_of(epochs), 'xacts', length_of(xacts), 'ids', length_of(ids),
        'message_ids', length_of(message_ids), 'delays', length_of(delays), 'counted', length_of(counted), 'blocking', length_of(blocking), 'reasons', length_of(reasons),
        'errors', cardinality(errors)));
    -- Lost in a crash of the server, a deferral only means that the message is tried sooner.
    perform set_config('synchronous_commit', 'off', true);
    lost_partitions := fence(worker, endpoint, partitions, epochs);
    deferred := 0;
--@ each box
    if box = '@box@' then
        with locked as materialized (
            select o.partition, o.xact, o.id, o.message_id, stream_key(e.ordering, o.tenant, o.stream) as stream_key, k.delay, k.counted, k.blocking, k.reason, k.error
            from unnest(partitions, xacts, ids, message_ids, delays, counted, blocking, reasons, errors) k(p, x, i, m, delay, counted, blocking, reason, error)
            join @box@ o on o.endpoint = defer_messages.endpoint and o.partition = k.p and o.xact = k.x and o.id = k.i and o.message_id = k.m
            join endpoint e on e.name = o.endpoint
            where k.p <> all (lost_partitions)
            for update of o
        ), freed as (   -- a message that blocked its stream and does so no longer
            select l.partition, min(l.xact::text::bigint)::text::xid8 as xact
            from locked l join deferral d on d.endpoint = defer_messages.endpoint and d.partition = l.partition and d.xact = l.xact and d.id = l.id
            where d.blocking and not l.blocking group by l.partition order by l.partition
        ), told as (
            update lease l set low_mark = least(l.low_mark, f.xact), removals = l.removals + 1
            from freed f where l.endpoint = defer_messages.endpoint and l.partition = f.partition
        )
        insert into deferral as d (endpoint, partition, xact, id, message_id, stream_key, blocking, due_at, attempts, deferrals, reason, error, first_failed_at, last_failed_at, worker)
        select defer_messages.endpoint, partition, xact, id, message_id, stream_key, blocking and stream_key is not null, clock_timestamp() + delay, counted::int, 1, reason, left(error, 2000),
            clock_timestamp(), clock_timestamp(), defer_messages.worker
        from locked
        on conflict (endpoint, partition, xact, id) do update set due_at = excluded.due_at, attempts = d.attempts + excluded.attempts, deferrals = d.deferrals + 1,
            blocking = excluded.blocking, reason = excluded.reason, error = excluded.error, first_failed_at = coalesce(d.first_failed_at, excluded.first_failed_at),
            last_failed_at = excluded.last_failed_at, worker = excluded.worker, message_id = excluded.message_id, stream_key = excluded.stream_key;
        get diagnostics deferred = row_count;
    end if;
--@ end
    incarnation := (select i.id from incarnation i);
    return next;
end $$;

-- Gives messages up: a full copy goes to dead_letter with the reason, the message and its deferral go away, its stream is free.
-- A counted failure, the last one, is added to the attempts that the deferral knows of.
create function bury_messages(worker uuid, endpoint text, partitions smallint[], epochs bigint[], xacts xid8[], ids bigint[], message_ids uuid[],
    counted boolean[], reasons text[], errors text[])
returns table (buried bigint, lost_partitions smallint[], freed_partitions smallint[], freed_removals bigint[], incarnation uuid)
language plpgsql security definer set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_column
declare
    box  text := (select lower(e.direction) from endpoint e where e.name = bury_messages.endpoint);
    kept smallint[];
begin
    perform check_parallel('bury_messages', jsonb_build_object('partitions', length_of(partitions), 'epochs', length_of(epochs), 'xacts', length_of(xacts), 'ids', length_of(ids),
        'message_ids', length_of(message_ids), 'counted', length_of(counted), 'reasons', length_of(reasons), 'errors', cardinality(errors)));
    lost_partitions := fence(worker, endpoint, partitions, epochs);
    kept := array(select p from unnest(partitions) p where p <> all (lost_partitions));
    buried := 0;
--@ each box
    if box = '@box@' then
        with locked as materialized (
            select o.*, k.counted, k.reason, k.error from unnest(partitions, xacts, ids, message_ids, counted, reasons, errors) k(p, x, i, m, counted, reason, error)
            join @box@ o on o.endpoint = bury_messages.endpoint and o.partition = k.p and o.xact = k.x and o.id = k.i and o.message_id = k.m
            where k.p = any (kept)
            for update of o
        ), copied as (
            insert into dead_letter (endpoint, direction, partition, xact, id, message_id, tenant, stream, type, routing_key, content_type, headers, payload, payload_bytes,
                correlation_id, causation_id, traceparent, request_id, foreign_id, idempotency_key, created_at, available_at, expires_at, reason, error, attempts, buried_by)
            select l.endpoint, initcap(box), l.partition, l.xact, l.id, l.message_id, l.tenant, l.stream, l.type, l.routing_key, l.content_type, l.headers, l.payload, l.payload_bytes,
                l.correlation_id, l.causation_id, l.traceparent, l.request_id, l.foreign_id, l.idempotency_key, l.created_at, l.available_at, l.expires_at, l.reason, left(l.error, 2000),
                coalesce((select d.attempts from deferral d where d.endpoint = l.endpoint and d.partition = l.partition and d.xact = l.xact and d.id = l.id), 0) + l.counted::int, bury_messages.worker
            from locked l
        )
        delete from @box@ o using locked l where o.endpoint = l.endpoint and o.partition = l.partition and o.xact = l.xact and o.id = l.id and o.message_id = l.message_id;
        get diagnostics buried = row_count;
    end if;
--@ end
    select f.freed_partitions, f.freed_removals into freed_partitions, freed_removals from remove_deferrals(bury_messages.endpoint,
        array(select p from unnest(partitions, xacts, ids, message_ids) k(p, x, i, m) where p = any (kept)),
        array(select x from unnest(partitions, xacts, ids, message_ids) k(p, x, i, m) where p = any (kept)),
        array(select i from unnest(partitions, xacts, ids, message_ids) k(p, x, i, m) where p = any (kept)),
        array(select m from unnest(partitions, xacts, ids, message_ids) k(p, x, i, m) where p = any (kept))) f;
    incarnation := (select i.id from incarnation i);
    return next;
end $$;

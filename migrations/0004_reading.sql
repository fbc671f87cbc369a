-- Reading outbox and inbox. Read README.md, "How a message is read", before changing anything here.

-- The idle poll: one tiny read. position moves with every message written and every act that frees one.
-- incarnation is null after a crash of the server, until the next claim.
create function poll_outbox() returns table ("position" bigint, snapshot pg_snapshot, incarnation uuid)
language plpgsql stable security definer set search_path from current as $$
begin
    select case when s.is_called then s.last_value else 0 end, pg_current_snapshot(), (select i.id from incarnation i)
    into poll_outbox."position", poll_outbox.snapshot, poll_outbox.incarnation from message_position s;
    return next;
end $$;

-- A row of a fetch; `kind` says what it is.
create type fetched as (kind smallint, partition smallint, xact xid8, id bigint, message_id uuid, tenant text, stream text, type text, routing_key text,
    content_type text, headers text, body bytea, correlation_id text, causation_id text, traceparent text, idempotency_key text, created_at timestamptz, expired boolean,
    attempts int, deferrals int, snapshot pg_snapshot, next_due_in float8, incarnation uuid, low_marks xid8[], removals bigint[]);

-- The next messages of the given partitions, all in one snapshot.
--
-- xacts and ids are the cursor of each partition: everything up to it has been read. running are the transactions that
-- earlier snapshots listed as running and that the cursor may have passed.
--
-- kind  0  header, always first: snapshot, next_due_in (seconds, null when nothing waits for a time), incarnation,
--          low_marks and removals of the partitions, in the order given
--       1  late: written by one of `running` that has ended meanwhile, behind the cursor; to be handed out first
--       2  next: after the cursor, in the order of (xact, id)
--       3  due: deferred, behind the cursor, and its time has come
--       4  skipped: after the cursor, but deferred or behind an earlier deferred message of its stream (key only)
--       5  orphan: a deferral whose message is gone (key only)
--       6  too many late rows for one batch: the reader moves its cursors back before the oldest of `running` that has ended
--
-- At most max_rows rows after the cursors, about the same share of each partition, and no further row once max_bytes of
-- body are reached; those that are skipped have none. deferrals is above 0 where the message has a deferral, if only for its time.
-- The cursor of a partition is the last row of kind 2 or 4 that was returned.
--
-- Without `bodies` the bodies stay where they are: a handler inside the database does not need them here.
--
-- Rows after the cursors go out one by one, so that the bytes can be counted: a window function over them costs twice as much
-- as the rest of the query.
--@ each box
create function fetch_@box@_batch(endpoint text, partitions smallint[], xacts xid8[], ids bigint[], running xid8[], max_rows int, max_bytes bigint, bodies boolean default true)
returns setof fetched language plpgsql stable security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
declare
    box      text := fetch_@box@_batch.endpoint;
    parts    smallint[] := fetch_@box@_batch.partitions;
    now_     timestamptz := clock_timestamp();
    mode     text;
    deferred smallint[];
    ended    xid8[];
    share    int := greatest(16, 2 * max_rows / greatest(1, cardinality(fetch_@box@_batch.partitions)));
    bytes    bigint := 0;
    n        int;
    f        fetched;
begin
    select e.ordering into mode from endpoint e where e.name = box and lower(e.direction) = '@box@';
    if mode is null then
        raise exception using errcode = 'PR004', message = format('endpoint %L is not an @box@', box);
    end if;
    deferred := array(select p from unnest(parts) p where exists (select from deferral d where d.endpoint = box and d.partition = p));
    ended := array(select x from unnest(running) x where pg_visible_in_snapshot(x, pg_current_snapshot()));

    f.kind := 0;
    f.snapshot := pg_current_snapshot();
    f.next_due_in := (select extract(epoch from min(d.due_at) - now_) from unnest(deferred) p
        cross join lateral (select d.due_at from deferral d where d.endpoint = box and d.partition = p and d.due_at > now_ and d.due_at < 'infinity' order by d.due_at limit 1) d);
    f.incarnation := (select i.id from incarnation i);
    select array_agg(l.low_mark order by k), array_agg(l.removals order by k) into f.low_marks, f.removals
    from unnest(parts) with ordinality t(p, k) cross join lateral (select * from lease l where l.endpoint = box and l.partition = t.p) l;
    return next f;

    if ended <> '{}' then
        return query
        select 1::smallint, o.partition, o.xact, o.id, o.message_id, o.tenant, o.stream, o.type, o.routing_key, o.content_type, o.headers::text,
            case when bodies then coalesce(o.payload_bytes, convert_to(o.payload, 'UTF8')) end, o.correlation_id, o.causation_id, o.traceparent, o.idempotency_key, o.created_at,
            coalesce(o.expires_at <= now_, false), 0, 0, null::pg_snapshot, null::float8, null::uuid, null::xid8[], null::bigint[]
        from unnest(parts, xacts) c(p, x) cross join unnest(ended) t(late)
        cross join lateral (select * from @box@ o where o.endpoint = box and o.partition = c.p and o.xact = t.late order by o.id limit max_rows + 1) o
        where t.late < c.x
          and not (c.p = any (deferred) and (
              exists (select from deferral d where d.endpoint = box and d.partition = o.partition and d.xact = o.xact and d.id = o.id)
              or exists (select from deferral d where d.endpoint = box and d.partition = o.partition and d.stream_key = stream_key(mode, o.tenant, o.stream)
                  and d.blocking and (d.xact, d.id) < (o.xact, o.id))))
        order by o.xact, o.id limit max_rows + 1;
        get diagnostics n = row_count;
        if n > max_rows then
            f := null;
            f.kind := 6;
            return next f;
            return;
        end if;
    end if;

    for f in
        select case when r.skipped then 4 else 2 end, r.partition, r.xact, r.id, r.message_id,
            case when not r.skipped then r.tenant end, case when not r.skipped then r.stream end, case when not r.skipped then r.type end,
            case when not r.skipped then r.routing_key end, case when not r.skipped then r.content_type end, case when not r.skipped then r.headers::text end,
            case when bodies and not r.skipped then coalesce(r.payload_bytes, convert_to(r.payload, 'UTF8')) end,
            r.correlation_id, r.causation_id, r.traceparent, r.idempotency_key, r.created_at, coalesce(r.expires_at <= now_, false),
            coalesce(r.attempts, 0), case when r.due_at is null then 0 else greatest(r.deferrals, 1) end, null, null, null, null, null
        from (
            select o.*, d.attempts, d.deferrals, d.due_at,
                case when c.p = any (deferred) then
                    coalesce(d.due_at > now_, false)
                    or exists (select from deferral b where b.endpoint = box and b.partition = o.partition and b.stream_key = stream_key(mode, o.tenant, o.stream)
                        and b.blocking and (b.xact, b.id) < (o.xact, o.id))
                else false end as skipped
            from unnest(parts, xacts, ids) c(p, x, i)
            cross join lateral (select * from @box@ o where o.endpoint = box and o.partition = c.p and (o.xact, o.id) > (c.x, c.i) order by o.xact, o.id limit share) o
            left join lateral (select d.* from deferral d where c.p = any (deferred) and d.endpoint = box and d.partition = o.partition and d.xact = o.xact and d.id = o.id) d on true
            limit max_rows) r
    loop
        return next f;
        bytes := bytes + coalesce(octet_length(f.body), 0);
        exit when bytes >= max_bytes;
    end loop;

    if deferred <> '{}' then
        return query
        select case when o.id is null then 5 else 3 end::smallint, d.partition, d.xact, d.id, d.message_id, o.tenant, o.stream, o.type, o.routing_key, o.content_type,
            o.headers::text, case when bodies then coalesce(o.payload_bytes, convert_to(o.payload, 'UTF8')) end, o.correlation_id, o.causation_id, o.traceparent, o.idempotency_key, o.created_at,
            coalesce(o.expires_at <= now_, false), d.attempts, greatest(d.deferrals, 1), null::pg_snapshot, null::float8, null::uuid, null::xid8[], null::bigint[]
        from unnest(parts, xacts, ids) c(p, x, i)
        cross join lateral (select * from deferral d where d.endpoint = box and d.partition = c.p and d.due_at <= now_ and (d.xact, d.id) <= (c.x, c.i)
            and not exists (select from deferral b where b.endpoint = box and b.partition = d.partition and b.stream_key = d.stream_key and b.blocking and (b.xact, b.id) < (d.xact, d.id))
            order by d.due_at limit share) d
        left join lateral (select * from @box@ o where o.endpoint = box and o.partition = d.partition and o.xact = d.xact and o.id = d.id and o.message_id = d.message_id) o on true
        where c.p = any (deferred)
        order by d.xact, d.id limit max_rows;
    end if;
end $$;
--@ end

-- Reading the outbox. Read README.md, "How a message is read", before changing anything here.

-- The idle poll: one tiny read. position moves with every message written and every act that frees one.
-- incarnation is null after a crash of the server, until the next claim.
create function poll_outbox() returns table ("position" bigint, snapshot pg_snapshot, incarnation uuid)
language sql stable security definer set search_path from current as $$
    select case when s.is_called then s.last_value else 0 end, pg_current_snapshot(), (select id from incarnation) from message_position s
$$;

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
-- body are reached; those that are skipped have none. deferrals is above 0 where the message has a deferral, if only for its time. The cursor of a partition is the last row of kind 2 or 4 that was returned.
create function fetch_outbox_batch(endpoint text, partitions smallint[], xacts xid8[], ids bigint[], running xid8[], max_rows int, max_bytes bigint)
returns table (kind smallint, partition smallint, xact bigint, id bigint, message_id uuid, tenant text, stream text, type text, routing_key text, content_type text,
    headers text, body bytea, correlation_id text, causation_id text, traceparent text, idempotency_key text, created_at timestamptz, expired boolean,
    attempts int, deferrals int, full_partition boolean, snapshot pg_snapshot, next_due_in float8, incarnation uuid, low_marks bigint[], removals bigint[])
language plpgsql stable security definer
set search_path from current set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_column
declare
    box      text := fetch_outbox_batch.endpoint;
    parts    smallint[] := fetch_outbox_batch.partitions;
    now_     timestamptz := clock_timestamp();
    mode     text;
    deferred smallint[];
    ended    xid8[];
    share    int := greatest(16, 2 * max_rows / greatest(1, cardinality(fetch_outbox_batch.partitions)));
    n        int;
begin
    select e.ordering into mode from endpoint e where e.name = box and e.direction = 'Outbox';
    if mode is null then
        raise exception using errcode = 'PR004', message = format('endpoint %L is not an outbox', box);
    end if;
    deferred := array(select p from unnest(parts) p where exists (select from deferral d where d.endpoint = box and d.partition = p));
    ended := array(select x from unnest(running) x where pg_visible_in_snapshot(x, pg_current_snapshot()));

    return query select 0::smallint, null::smallint, null::bigint, null::bigint, null::uuid, null, null, null, null, null, null, null::bytea, null, null, null, null,
        null::timestamptz, null::boolean, null::int, null::int, null::boolean, pg_current_snapshot(),
        (select extract(epoch from min(d.due_at) - now_)::float8 from unnest(deferred) p
            cross join lateral (select d.due_at from deferral d where d.endpoint = box and d.partition = p and d.due_at > now_ and d.due_at < 'infinity' order by d.due_at limit 1) d),
        (select i.id from incarnation i),
        array(select l.low_mark::text::bigint from unnest(parts) with ordinality t(p, k) cross join lateral (select * from lease l where l.endpoint = box and l.partition = t.p) l order by k),
        array(select l.removals from unnest(parts) with ordinality t(p, k) cross join lateral (select * from lease l where l.endpoint = box and l.partition = t.p) l order by k);

    if ended <> '{}' then
        return query
        select 1::smallint, o.partition, o.xact::text::bigint, o.id, o.message_id, o.tenant, o.stream, o.type, o.routing_key, o.content_type, o.headers::text,
            coalesce(o.payload_bytes, convert_to(o.payload, 'UTF8')), o.correlation_id, o.causation_id, o.traceparent, o.idempotency_key, o.created_at,
            coalesce(o.expires_at <= now_, false), 0, 0, false, null::pg_snapshot, null::float8, null::uuid, null::bigint[], null::bigint[]
        from unnest(parts, xacts) c(p, x) cross join unnest(ended) t(late)
        cross join lateral (select * from outbox o where o.endpoint = box and o.partition = c.p and o.xact = t.late order by o.id limit max_rows + 1) o
        where t.late < c.x
          and not (c.p = any (deferred) and (
              exists (select from deferral d where d.endpoint = box and d.partition = o.partition and d.xact = o.xact and d.id = o.id)
              or exists (select from deferral d where d.endpoint = box and d.partition = o.partition and d.stream_key = stream_key(mode, o.tenant, o.stream)
                  and d.blocking and (d.xact, d.id) < (o.xact, o.id))))
        order by o.xact, o.id limit max_rows + 1;
        get diagnostics n = row_count;
        if n > max_rows then
            return query select 6::smallint, null::smallint, null::bigint, null::bigint, null::uuid, null, null, null, null, null, null, null::bytea, null, null, null, null,
                null::timestamptz, null::boolean, null::int, null::int, null::boolean, null::pg_snapshot, null::float8, null::uuid, null::bigint[], null::bigint[];
            return;
        end if;
    end if;

    return query
    select case when r.skipped then 4 else 2 end::smallint, r.partition, r.xact::text::bigint, r.id, r.message_id,
        case when not r.skipped then r.tenant end, case when not r.skipped then r.stream end, case when not r.skipped then r.type end,
        case when not r.skipped then r.routing_key end, case when not r.skipped then r.content_type end, case when not r.skipped then r.headers::text end,
        case when not r.skipped then coalesce(r.payload_bytes, convert_to(r.payload, 'UTF8')) end,
        r.correlation_id, r.causation_id, r.traceparent, r.idempotency_key, r.created_at, coalesce(r.expires_at <= now_, false),
        coalesce(r.attempts, 0), case when r.due_at is null then 0 else greatest(r.deferrals, 1) end, r.nth >= share, null::pg_snapshot, null::float8, null::uuid, null::bigint[], null::bigint[]
    from (
        select b.*, sum(case when b.skipped then 0 else b.bytes end) over (rows between unbounded preceding and current row) as total from (
            select o.*, d.attempts, d.deferrals, d.due_at,
                case when c.p = any (deferred) then
                    coalesce(d.due_at > now_, false)
                    or exists (select from deferral b where b.endpoint = box and b.partition = o.partition and b.stream_key = stream_key(mode, o.tenant, o.stream)
                        and b.blocking and (b.xact, b.id) < (o.xact, o.id))
                else false end as skipped,
                coalesce(octet_length(o.payload_bytes), octet_length(o.payload)) as bytes
            from unnest(parts, xacts, ids) c(p, x, i)
            cross join lateral (select o.*, row_number() over () as nth from (select * from outbox o where o.endpoint = box and o.partition = c.p and (o.xact, o.id) > (c.x, c.i)
                order by o.xact, o.id limit share) o) o
            left join lateral (select d.* from deferral d where c.p = any (deferred) and d.endpoint = box and d.partition = o.partition and d.xact = o.xact and d.id = o.id) d on true
            limit max_rows) b) r
    where r.total - case when r.skipped then 0 else r.bytes end < max_bytes;

    if deferred <> '{}' then
        return query
        select case when o.id is null then 5 else 3 end::smallint, d.partition, d.xact::text::bigint, d.id, d.message_id, o.tenant, o.stream, o.type, o.routing_key, o.content_type,
            o.headers::text, coalesce(o.payload_bytes, convert_to(o.payload, 'UTF8')), o.correlation_id, o.causation_id, o.traceparent, o.idempotency_key, o.created_at,
            coalesce(o.expires_at <= now_, false), d.attempts, greatest(d.deferrals, 1), d.nth >= share, null::pg_snapshot, null::float8, null::uuid, null::bigint[], null::bigint[]
        from unnest(parts, xacts, ids) c(p, x, i)
        cross join lateral (select d.*, row_number() over () as nth from (select * from deferral d where d.endpoint = box and d.partition = c.p and d.due_at <= now_ and (d.xact, d.id) <= (c.x, c.i)
            and not exists (select from deferral b where b.endpoint = box and b.partition = d.partition and b.stream_key = d.stream_key and b.blocking and (b.xact, b.id) < (d.xact, d.id))
            order by d.due_at limit share) d) d
        left join lateral (select * from outbox o where o.endpoint = box and o.partition = d.partition and o.xact = d.xact and o.id = d.id and o.message_id = d.message_id) o on true
        where c.p = any (deferred)
        order by d.xact, d.id limit max_rows;
    end if;
end $$;

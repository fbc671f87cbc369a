-- What people look at.

-- The messages of both directions.
create view message as
    select o.* from outbox o
    union all
    select i.* from inbox i;

-- Messages held back because an earlier one of their stream is deferred.
create view parked_message as
    select o.endpoint, o.partition, o.xact, o.id, o.message_id, o.tenant, o.stream, h.id as head_id, h.message_id as head_message_id
    from (select distinct on (d.endpoint, d.partition, d.stream_key) d.* from deferral d where d.blocking order by d.endpoint, d.partition, d.stream_key, d.xact, d.id) h
    join endpoint e on e.name = h.endpoint
    join message o on o.endpoint = h.endpoint and o.partition = h.partition and (o.xact, o.id) > (h.xact, h.id) and stream_key(e.ordering, o.tenant, o.stream) = h.stream_key
    where not exists (select from deferral d where d.endpoint = o.endpoint and d.partition = o.partition and d.xact = o.xact and d.id = o.id);

-- pending counts everything that is not settled and not deferred or parked; in flight is what the workers reported last.
create view backlog as
    select e.name as endpoint, e.direction,
        greatest(0, m.total - d.deferred - p.parked) as pending,
        (select coalesce(sum((w.in_flight ->> e.name)::bigint), 0)::bigint from worker w where w.lease_until > clock_timestamp()) as in_flight,
        d.deferred, p.parked,
        (select count(*) from dead_letter l where l.endpoint = e.name) as dead,
        m.oldest as oldest_pending_time, e.paused
    from endpoint e
    cross join lateral (select count(*) as total, (select min(f.created_at) from generate_series(0, 63) s cross join lateral (
            select o.created_at from message o where o.endpoint = e.name and o.partition = s
              and not exists (select from deferral d where d.endpoint = o.endpoint and d.partition = o.partition and d.xact = o.xact and d.id = o.id)
              and not exists (select from deferral d where d.endpoint = o.endpoint and d.partition = o.partition and d.stream_key = stream_key(e.ordering, o.tenant, o.stream)
                  and d.blocking and (d.xact, d.id) < (o.xact, o.id))
            order by o.xact, o.id limit 1) f) as oldest
        from message o where o.endpoint = e.name) m
    cross join lateral (select count(*) as deferred from deferral d where d.endpoint = e.name) d
    cross join lateral (select count(*) as parked from parked_message p where p.endpoint = e.name) p;

-- The memory by which repeats are recognised; rows is the server's last estimate.
create view deduplication_memory as
    select coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint as rows, coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint as bytes,
        (select extract(epoch from coalesce(s.value, s.resource_value, s.default_value)::numeric * interval '1 day')::float8
         from setting s where s.key = 'dedup_retention_days') as horizon_seconds
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent in ('@schema@.message_deduplication'::regclass, '@schema@.idempotency_key'::regclass);

create view blocked_stream as
    select d.endpoint, o.tenant, o.stream, d.message_id, d.id as position, d.reason, d.error, d.attempts, d.due_at, d.last_failed_at,
        (select count(*) from parked_message p where p.endpoint = d.endpoint and p.partition = d.partition and p.head_id = d.id) as parked
    from deferral d join message o on o.endpoint = d.endpoint and o.partition = d.partition and o.xact = d.xact and o.id = d.id
    where d.blocking and not exists (select from deferral b where b.endpoint = d.endpoint and b.partition = d.partition and b.stream_key = d.stream_key
        and b.blocking and (b.xact, b.id) < (d.xact, d.id));

create view lease_holder as
    select l.endpoint, l.partition, l.owner, w.host, w.version, l.epoch, w.lease_until, coalesce(w.lease_until > clock_timestamp(), false) as alive, l.low_mark, l.suspect
    from lease l left join worker w on w.id = l.owner;

create view dead_letter_summary as
    select endpoint, reason, md5(regexp_replace(coalesce(error, ''), '[0-9]+', '#', 'g')) as error_fingerprint, min(error) as example, count(*) as messages,
        min(buried_at) as first_time, max(buried_at) as last_time
    from dead_letter group by 1, 2, 3;

-- Where a message is and what happens next, one sentence per place it is found. Looks through the partitions one by one
-- and gives up after two seconds; the answer says so.
create function explain_message(message_id text, tenant text default null) returns setof text
language plpgsql stable security definer set search_path from current set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    stop  timestamptz := clock_timestamp() + interval '2 seconds';
    asked text := explain_message.message_id;
    e     record;
    p     int;
    m     record;
    done  text;
    found_any boolean := false;
    looked int := 0;
begin
    for e in select * from endpoint order by name loop
        done := case e.direction when 'Outbox' then 'published' else 'handled' end;
        for p in 0 .. 63 loop
            if clock_timestamp() > stop then
                return next format('Stopped looking after 2 seconds and %s partitions; there may be more to find. Ask again when the backlog is smaller, or query the tables outbox and inbox by endpoint and partition.', looked);
                return;
            end if;
            looked := looked + 1;
            for m in
                select o.*, d.due_at, d.attempts, d.reason, d.error, d.blocking, l.owner, w.host, coalesce(w.lease_until > clock_timestamp(), false) as alive,
                    (select b.message_id from deferral b where b.endpoint = o.endpoint and b.partition = o.partition and b.stream_key = stream_key(e.ordering, o.tenant, o.stream)
                        and b.blocking and (b.xact, b.id) < (o.xact, o.id) order by b.xact, b.id limit 1) as head
                from message o
                left join deferral d on d.endpoint = o.endpoint and d.partition = o.partition and d.xact = o.xact and d.id = o.id
                left join lease l on l.endpoint = o.endpoint and l.partition = o.partition
                left join worker w on w.id = l.owner
                where o.endpoint = e.name and o.partition = p and o.message_id = message_id_of(e.name, asked)
                    and (explain_message.tenant is null or o.tenant = explain_message.tenant)
            loop
                found_any := true;
                return next format('Message %s is in %s %L (partition %s, position %s): %s', m.message_id, lower(e.direction), e.name, m.partition, m.id, case
                    when e.paused then 'the endpoint is paused; it will be ' || done || ' after the endpoint is resumed.'
                    when m.due_at is not null and m.reason = 'Scheduled' then format('scheduled; it will be %s from %s on.', done, m.due_at)
                    when m.due_at is not null then format('deferred after %s counted failures (%s: %s); it will be tried again at %s.', m.attempts, m.reason, coalesce(m.error, 'no detail'), m.due_at)
                    when m.head is not null then format('parked behind message %s of its stream, which is deferred; it will be %s after that one is settled.', m.head, done)
                    when e.handler = 'pull' then 'waiting for an application to take it with take_inbox.'
                    when m.owner is null or not m.alive then 'waiting for a worker; no living worker holds its partition. Start one, or look at the view lease_holder.'
                    else format('waiting to be %s, or being %s now, by worker %s on %s.', done, done, m.owner, m.host) end);
            end loop;
        end loop;
    end loop;
    for m in select * from dead_letter d where d.message_id = message_id_of(d.endpoint, asked) and (explain_message.tenant is null or d.tenant = explain_message.tenant) order by d.dead_letter_id loop
        found_any := true;
        return next format('Message %s of %s %L was given up at %s after %s counted failures: %s (%s). It is kept in dead_letter.', m.message_id, lower(m.direction), m.endpoint, m.buried_at, m.attempts, m.reason, coalesce(m.error, 'no detail'));
    end loop;
    if not found_any then
        return next format('No message %s is waiting or given up in this schema: it was published or handled, never committed, or its id is wrong.', asked);
    end if;
end $$;

-- Who works what. Leases decide only that; correctness rests on the rows and their keys.

-- Registers or updates an endpoint. False when a newer generation of the resource wrote it already.
create function register_endpoint(name text, direction text, ordering text, on_failure text, on_scheduled text, max_message_bytes int,
    paused boolean, settings jsonb, resource text, generation bigint, handler text default null, handler_name text default null) returns boolean
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    known record;
begin
    select e.direction, e.generation, e.resource into known from endpoint e where e.name = register_endpoint.name for update;
    if known.direction <> register_endpoint.direction then
        raise exception using errcode = 'PR004', message = format('endpoint %L exists as %s and cannot become %s', register_endpoint.name, known.direction, register_endpoint.direction);
    end if;
    if known.resource = register_endpoint.resource and known.generation > register_endpoint.generation then
        return false;
    end if;
    insert into endpoint as e (name, direction, ordering, on_failure, on_scheduled, max_message_bytes, paused, settings, resource, generation, handler, handler_name)
    values (register_endpoint.name, register_endpoint.direction, register_endpoint.ordering, register_endpoint.on_failure, register_endpoint.on_scheduled,
        register_endpoint.max_message_bytes, register_endpoint.paused, register_endpoint.settings, register_endpoint.resource, register_endpoint.generation,
        register_endpoint.handler, register_endpoint.handler_name)
    on conflict (name) do update set ordering = excluded.ordering, on_failure = excluded.on_failure, on_scheduled = excluded.on_scheduled,
        max_message_bytes = excluded.max_message_bytes, paused = excluded.paused, settings = excluded.settings, resource = excluded.resource,
        generation = excluded.generation, handler = excluded.handler, handler_name = excluded.handler_name, written_at = clock_timestamp()
    where (e.ordering, e.on_failure, e.on_scheduled, e.max_message_bytes, e.paused, e.settings, e.resource, e.generation, e.handler, e.handler_name) is distinct from
        (excluded.ordering, excluded.on_failure, excluded.on_scheduled, excluded.max_message_bytes, excluded.paused, excluded.settings, excluded.resource, excluded.generation,
        excluded.handler, excluded.handler_name);
    insert into lease (endpoint, partition)
    select register_endpoint.name, p from generate_series(case register_endpoint.direction when 'Inbox' then -1 else 0 end, 63) p on conflict do nothing;
    return true;
end $$;

-- The retention windows of the resource, in days; a value that a person has set stays in force.
create function register_retention(deduplication_days numeric, dead_days numeric, request_days numeric default 30) returns void
language sql security definer set search_path from current as $$
    update setting s set resource_value = v.days::text
    from (values ('dedup_retention_days', deduplication_days), ('dead_retention_days', dead_days), ('request_retention_days', request_days)) v(key, days)
    where s.key = v.key and s.resource_value is distinct from v.days::text
$$;

-- Transaction numbers belong to one server. On another one (dump and restore, logical replica) all rows that are
-- there go by position alone, before everything newer. One transaction; nothing is handed out before it commits.
create function adopt_server() returns void language plpgsql set search_path from current as $$
declare
    here bigint := (select system_identifier from pg_control_system());
begin
    if exists (select from server where system_identifier = here) then return; end if;
    insert into server (system_identifier) values (here) on conflict do nothing;
    perform from server where one for update;
    if exists (select from server where system_identifier = here) then return; end if;
    update outbox set xact = '0' where xact <> '0';
    update inbox set xact = '0' where xact <> '0';
    update deferral set xact = '0' where xact <> '0';
    update request_message set xact = '0' where xact <> '0';
    update lease set low_mark = '0', owner = null, epoch = epoch + 1, suspect = false;
    delete from worker;
    update server set system_identifier = here;
end $$;

-- The incarnation of the running server. A crash or a promotion empties the table.
create function current_incarnation() returns uuid language plpgsql set search_path from current as $$
declare
    i uuid;
begin
    select id into i from incarnation;
    if i is null then
        insert into incarnation (id) values (gen_random_uuid()) on conflict do nothing;
        select id into i from incarnation;
    end if;
    return i;
end $$;

-- Gives `taker` up to `wanted` partitions from `lowest` on that nobody holds, or whose owner's lease has run out. The owner's row is
-- locked and looked at again under the lock, so that a renewal that is on its way wins or is over.
create function take_partitions(p_endpoint text, taker uuid, lowest int, highest int, wanted int) returns void language plpgsql set search_path from current as $$
declare
    gone uuid[] := array(
        select w.id from worker w
        where w.id in (select l.owner from lease l where l.endpoint = p_endpoint) and w.lease_until < clock_timestamp() and w.id <> taker
        for update skip locked);
    free smallint[] := array(
        select l.partition from lease l
        where l.endpoint = p_endpoint and l.partition between lowest and highest
          and (l.owner is null or l.owner = any (gone) or not exists (select from worker w where w.id = l.owner))
        order by l.partition limit wanted
        for update of l skip locked);
begin
    -- Asked again in a new statement, now that the rows are locked: a worker that registered and claimed since the snapshot
    -- above was taken looks in it as if it did not exist.
    update lease l set owner = taker, epoch = l.epoch + 1, suspect = l.suspect or l.owner is not null
    where l.endpoint = p_endpoint and l.partition = any (free)
      and (l.owner is null or l.owner = any (gone) or not exists (select from worker w where w.id = l.owner));
end $$;

-- The right to receive for an inbox (partition -1): given up where the worker does not want it, taken where it is free.
-- Answers its epoch, or null for one who does not have it.
create function claim_ingress(p_endpoint text, me uuid, wanted boolean) returns bigint language plpgsql set search_path from current as $$
declare
    held bigint := (select l.epoch from lease l where l.endpoint = p_endpoint and l.partition = -1 and l.owner = me);
begin
    if held is not null and not wanted then
        update lease l set owner = null where l.endpoint = p_endpoint and l.partition = -1 and l.owner = me;
        return null;
    elsif held is null and wanted then
        perform take_partitions(p_endpoint, me, -1, -1, 1);
        held := (select l.epoch from lease l where l.endpoint = p_endpoint and l.partition = -1 and l.owner = me);
    end if;
    return held;
end $$;

-- One call of a worker's heart: renews its lease, takes what is free up to its fair share, names what it should hand
-- over, and answers all it holds, one row per endpoint it asked for.
--
-- lease is granted from the database's clock. low_marks is {"endpoint": [[partition, "seen", "new", removals], ...]}; a mark is
-- only moved from the value the caller has seen. A draining worker passes no endpoints and keeps what it holds.
-- consumes names the inboxes for which it can receive now; ingress_epoch is the epoch of the right to do so, null for one who
-- does not have it, and 0 where messages keep no order and everybody may.
create function claim_work(worker uuid, host text, version text, lease interval, endpoints text[], max_partitions int default null,
    in_flight jsonb default '{}', low_marks jsonb default '{}', consumes text[] default '{}')
returns table (endpoint text, direction text, partitions smallint[], epochs bigint[], low_marks_now xid8[], removals bigint[], hand_over smallint[],
    suspects smallint[], ingress_epoch bigint, lease_until timestamptz, incarnation uuid)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    me      uuid := claim_work.worker;
    e       record;
    fleet   int;
    rank    int;
    held    smallint[];
    share   int;
    granted timestamptz;
begin
    if claim_work.lease is null or claim_work.lease < interval '1 second' or me is null or endpoints is null or claim_work.host is null or claim_work.version is null then
        raise exception using errcode = 'PR010', message = format('worker is %L, host is %L, version is %L, lease is %L, endpoints is %L: '
            'a worker with host and version, a lease of at least 1 second and a list of endpoints are needed', me, claim_work.host, claim_work.version, claim_work.lease, endpoints);
    end if;
    perform adopt_server();
    update worker w set lease_until = clock_timestamp() + claim_work.lease, host = claim_work.host, version = claim_work.version,
        endpoints = claim_work.endpoints, in_flight = coalesce(claim_work.in_flight, '{}'), seen_at = clock_timestamp()
    where w.id = me and w.lease_until > clock_timestamp() returning w.lease_until into granted;
    if granted is null then
        -- New, or its lease has run out: what it held is lost before it can hold anything again. It asks itself, so none of
        -- its messages has ended it; suspect is what another worker takes over.
        perform from worker w where w.id = me for update;
        update lease l set owner = null where l.owner = me;
        insert into worker as w (id, host, version, endpoints, in_flight, lease_until)
        values (me, claim_work.host, claim_work.version, claim_work.endpoints, coalesce(claim_work.in_flight, '{}'), clock_timestamp() + claim_work.lease)
        on conflict (id) do update set lease_until = excluded.lease_until, host = excluded.host, version = excluded.version, endpoints = excluded.endpoints,
            in_flight = excluded.in_flight, seen_at = clock_timestamp()
        returning w.lease_until into granted;
    elsif low_marks <> '{}' then
        begin
            update lease l set low_mark = m.new
            from (select k as endpoint, (v ->> 0)::smallint as partition, (v ->> 1)::xid8 as seen, (v ->> 2)::xid8 as new, (v ->> 3)::bigint as removals
                  from jsonb_each(low_marks) t(k, a), jsonb_array_elements(a) v order by 1, 2) m
            where l.endpoint = m.endpoint and l.partition = m.partition and l.owner = me and l.low_mark = m.seen
              and l.removals = coalesce(m.removals, l.removals);
        exception when data_exception then
            raise exception using errcode = 'PR010', message = format('low_marks: %s', sqlerrm),
                hint = 'It is {"endpoint": [[partition, "seen", "new", removals], ...]}.';
        end;
    end if;

    for e in
        select n.name, n.direction, n.ordering, n.name = any (claim_work.endpoints) as wanted, n.handler is not distinct from 'pull' as pulled from endpoint n
        where n.name = any (claim_work.endpoints) or exists (select from lease l where l.owner = me and l.endpoint = n.name) order by n.name
    loop
        held := array(select l.partition from lease l where l.endpoint = e.name and l.owner = me and l.partition >= 0 order by l.partition);
        share := 0;
        if e.wanted and not e.pulled then
            select count(*), count(*) filter (where w.id < me) into fleet, rank from worker w where w.lease_until > clock_timestamp() and e.name = any (w.endpoints);
            share := 64 / fleet + (rank < 64 % fleet)::int;
            if e.ordering = 'Total' then   -- goes whole to whoever holds partition 0
                share := case when exists (select from lease l join worker w on w.id = l.owner
                    where l.endpoint = e.name and l.partition = 0 and l.owner <> me and w.lease_until > clock_timestamp()) then 0 else 64 end;
            end if;
            share := least(share, coalesce(max_partitions, 64));
            if cardinality(held) < share then
                perform take_partitions(e.name, me, 0, 63, share - cardinality(held));
            end if;
        end if;
        return query
            select e.name, e.direction, coalesce(array_agg(l.partition order by l.partition), '{}'), coalesce(array_agg(l.epoch order by l.partition), '{}'),
                coalesce(array_agg(l.low_mark order by l.partition), '{}'), coalesce(array_agg(l.removals order by l.partition), '{}'),
                coalesce((array_agg(l.partition order by l.partition))[share + 1 :], '{}'), coalesce(array_agg(l.partition order by l.partition) filter (where l.suspect), '{}'),
                case when e.direction = 'Inbox' then case when e.ordering = 'None' then 0 else claim_ingress(e.name, me, e.name = any (consumes)) end end,
                granted, current_incarnation()
            from lease l where l.endpoint = e.name and l.owner = me and l.partition >= 0;
    end loop;
end $$;

-- Gives partitions back, with the low marks reached. Answers the partitions that were still the worker's.
create function release_work(worker uuid, endpoint text, partitions smallint[], epochs bigint[], seen xid8[], low_marks xid8[], removals bigint[] default null) returns smallint[]
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    released smallint[];
begin
    with mine as (
        update lease l set owner = null, suspect = false, low_mark = case when l.low_mark = r.seen and l.removals = coalesce(r.removals, l.removals) then r.low_mark else l.low_mark end
        from (select * from unnest(partitions, epochs, seen, low_marks, release_work.removals) u(partition, epoch, seen, low_mark, removals) order by 1) r
        where l.endpoint = release_work.endpoint and l.partition = r.partition and l.owner = release_work.worker and l.epoch = r.epoch
        returning l.partition)
    select coalesce(array_agg(partition order by partition), '{}') into released from mine;
    return released;
end $$;

-- Takes a worker off the list; whatever it still held is free at once and starts as after a crash.
create function deregister_worker(worker uuid) returns void
language plpgsql security definer set search_path from current as $$
begin
    update lease l set owner = null, suspect = true where l.owner = deregister_worker.worker;
    delete from worker w where w.id = deregister_worker.worker;
end $$;

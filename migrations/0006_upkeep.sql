-- Upkeep. Nothing here touches a message that is not settled.

-- A retention setting in force: a person's value, else the resource's, else the default; all in days.
create function retention(p_key text) returns interval language sql stable set search_path from current as $$
    select coalesce(value, resource_value, default_value)::numeric * interval '1 day' from setting where key = p_key
$$;

-- Turns a ring when the current bucket has had its third of the window, and the bucket to be
-- emptied was closed a whole window ago. Waits at most 40 ms for the lock; a busy moment only puts the turn off.
--@ each ring
create function turn_@ring@_ring() returns bigint language plpgsql set search_path from current as $$
declare
    horizon interval := retention('@setting@');
    now_    @ring@_bucket;
    next_   smallint;
    closed  timestamptz;
    dropped bigint := 0;
begin
    select * into now_ from @ring@_bucket where current;
    next_ := (now_.number + 1) % 4;
    closed := (select opened_at from @ring@_bucket where number = (next_ + 1) % 4);
    if now_.opened_at + horizon / 3 > clock_timestamp() or (select opened_at from @ring@_bucket where number = next_) is not null and closed + horizon > clock_timestamp() then
        return 0;
    end if;
    perform set_config('lock_timeout', '40ms', true);
    begin
        perform pg_advisory_xact_lock(ring_lock_key('@ring@'));
        execute format('truncate @tables@', next_);
        update @ring@_bucket set current = (number = next_), opened_at = case when number = next_ then clock_timestamp() else opened_at end;
        dropped := 1;
    exception when lock_not_available then
        null;   -- the lock of the ring is given back with the block; the next pass tries again
    end;
    perform set_config('lock_timeout', '0', true);
    return dropped;
end $$;
--@ end

-- One pass over all chores, one pass at a time per schema; answers what was done.
create function perform_maintenance(max_rows int default 10000, max_duration interval default interval '5 seconds')
returns table (task text, rows bigint, duration interval, status text)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    began timestamptz;
    stop  timestamptz := clock_timestamp() + max_duration;
begin
    if not pg_try_advisory_xact_lock(ring_lock_key('deduplication') + 1) then
        return query select 'all', 0::bigint, interval '0', 'another pass is running';
        return;
    end if;
    began := clock_timestamp();
    delete from dead_letter where dead_letter_id in (select dead_letter_id from dead_letter where buried_at < clock_timestamp() - retention('dead_retention_days')
        order by buried_at limit max_rows for update skip locked);
    get diagnostics rows = row_count;
    task := 'dead_letters'; duration := clock_timestamp() - began; status := case when rows = max_rows then 'more' else 'done' end; return next;

    began := clock_timestamp(); rows := 0; status := 'done';
    if clock_timestamp() < stop then
        with dead as (select w.id from worker w where w.lease_until < clock_timestamp() - interval '10 minutes' for update skip locked),
            freed as (update lease l set owner = null, suspect = true from dead where l.owner = dead.id)
        delete from worker w using dead where w.id = dead.id;
        get diagnostics rows = row_count;
    else
        status := 'out of time';
    end if;
    task := 'dead_workers'; duration := clock_timestamp() - began; return next;

    -- Last, because writers wait from the turn to the commit.
--@ each ring
    began := clock_timestamp();
    task := '@ring@_buckets'; rows := turn_@ring@_ring(); duration := clock_timestamp() - began; status := 'done'; return next;
--@ end
end $$;

-- Requests: a repeated request gets the decision that was made (T-01..T-35).
--
-- An application begins a request, changes its own tables, enqueues messages and records the outcome, all in one transaction.
-- Whoever asks again with the same (tenant, operation, key) and the same meaning gets that outcome, accepted or rejected, and causes
-- nothing; another meaning under the same key is a conflict. Authorisation is the application's, on replays too (T-07).

-- meaning is kept whole, in the caller's canonical form, and compared byte for byte (T-08).
create table request (
    bucket      smallint not null,
    tenant      text collate "C" not null,
    operation   text collate "C" not null,
    key         text collate "C" not null,
    request_id  uuid not null,
    meaning     bytea not null,
    begun_by    xid8 not null,
    begun_at    timestamptz not null,
    status      text check (status in ('accepted', 'rejected')),
    outcome     jsonb,
    recorded_at timestamptz,
    primary key (tenant, operation, key, bucket),
    unique (request_id, bucket),
    check ((status is null) = (recorded_at is null))
) partition by list (bucket);
comment on column request.begun_by is 'the transaction that began it: it alone may record the outcome';

-- What a request has caused.
create table request_message (
    bucket      smallint not null,
    request_id  uuid not null,
    direction   text not null,
    endpoint    text collate "C" not null,
    partition   smallint not null,
    xact        xid8 not null,
    "position"  bigint not null,
    message_id  uuid not null,
    primary key (request_id, "position", bucket)
) partition by list (bucket);

-- What only the application can know of what became of it.
create table request_delivery (
    bucket      smallint not null,
    request_id  uuid not null,
    number      bigint not null,
    state       text not null,
    evidence    jsonb not null,
    recorded_at timestamptz not null,
    primary key (request_id, number, bucket)
) partition by list (bucket);

create table request_0 partition of request for values in (0);
create table request_1 partition of request for values in (1);
create table request_2 partition of request for values in (2);
create table request_3 partition of request for values in (3);
create table request_message_0 partition of request_message for values in (0);
create table request_message_1 partition of request_message for values in (1);
create table request_message_2 partition of request_message for values in (2);
create table request_message_3 partition of request_message for values in (3);
create table request_delivery_0 partition of request_delivery for values in (0);
create table request_delivery_1 partition of request_delivery for values in (1);
create table request_delivery_2 partition of request_delivery for values in (2);
create table request_delivery_3 partition of request_delivery for values in (3);

-- No request is committed without an outcome: whoever began it and went on without one gets an error at the commit.
create function refuse_open_request() returns trigger language plpgsql security definer set search_path from current as $$
begin
    if exists (select from request r where r.bucket = new.bucket and r.tenant = new.tenant and r.operation = new.operation and r.key = new.key
        and r.request_id = new.request_id and r.status is null) then
        raise exception using errcode = 'PR006', message = format('request %L of operation %L has no outcome', new.key, new.operation),
            hint = 'Call finish_request in the transaction of begin_request, or roll it back.';
    end if;
    return null;
end $$;
create constraint trigger outcome after insert on request deferrable initially deferred for each row execute function refuse_open_request();

-- Text that names something: given, not blank, at most 255 bytes (T-10).
create function check_name(name text, value text) returns void language plpgsql immutable set search_path from current as $$
begin
    if btrim(coalesce(value, '')) = '' then
        raise exception using errcode = 'PR010', message = format('%s is missing', name);
    elsif octet_length(value) > 255 then
        raise exception using errcode = 'PR005', message = format('%s has %s bytes, at most 255 are allowed', name, octet_length(value));
    end if;
end $$;

-- Begins a request, or says what was decided. state is
--   new       this is the first: change what is to be changed, then call finish_request in this transaction
--   replay    it was decided before: status and outcome are what was recorded; nothing is to be done
--   conflict  the key belongs to a request with another meaning: nothing is to be done (T-12)
-- While another first attempt is under way, this one waits for its end and then replays it; above READ COMMITTED it fails with 40001.
-- A second call for the same request in one transaction is PR009.
create function begin_request(tenant text, operation text, key text, meaning bytea)
returns table (request_id uuid, state text, status text, outcome jsonb, recorded_at timestamptz)
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    whose text := case when btrim(coalesce(begin_request.tenant, '')) = '' then '' else begin_request.tenant end;
    open  smallint;
    known request;
    fresh bigint;
begin
    perform check_name('operation', begin_request.operation);
    perform check_name('key', begin_request.key);
    if octet_length(whose) > 255 then perform check_name('tenant', whose); end if;
    if begin_request.meaning is null then
        raise exception using errcode = 'PR010', message = 'meaning is missing', hint = 'Pass the request in a form in which equal requests are equal bytes, such as canonical_meaning(json).';
    elsif octet_length(begin_request.meaning) > 65536 then
        raise exception using errcode = 'PR005', message = format('meaning has %s bytes, at most 65536 are allowed', octet_length(begin_request.meaning));
    end if;
    open := open_request_bucket();
    select * into known from request r where r.bucket <> open and r.tenant = whose and r.operation = begin_request.operation and r.key = begin_request.key;
    if known.request_id is null then
        insert into request values (open, whose, begin_request.operation, begin_request.key, new_message_id(), begin_request.meaning, pg_current_xact_id(), clock_timestamp())
        on conflict do nothing;
        get diagnostics fresh = row_count;
        -- A new statement: it sees the request that the insert waited for.
        select * into known from request r where r.bucket = open and r.tenant = whose and r.operation = begin_request.operation and r.key = begin_request.key;
        if fresh = 1 then
            return query select known.request_id, 'new', null::text, null::jsonb, null::timestamptz;
            return;
        end if;
    end if;
    if known.begun_by = pg_current_xact_id() then
        raise exception using errcode = 'PR009', message = format('request %L of operation %L was begun in this transaction already', begin_request.key, begin_request.operation);
    elsif known.meaning <> begin_request.meaning then
        return query select known.request_id, 'conflict', null::text, null::jsonb, null::timestamptz;
    else
        return query select known.request_id, 'replay', known.status, known.outcome, known.recorded_at;
    end if;
end $$;

-- Records the outcome of a request that this transaction has begun: accepted, or rejected for good (T-13).
create function finish_request(tenant text, operation text, key text, status text, outcome jsonb default '{}') returns void
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    whose text := case when btrim(coalesce(finish_request.tenant, '')) = '' then '' else finish_request.tenant end;
    found bigint;
begin
    if finish_request.status is null or finish_request.status not in ('accepted', 'rejected') then
        raise exception using errcode = 'PR010', message = format('status is %L, must be ''accepted'' or ''rejected''', finish_request.status);
    elsif octet_length(finish_request.outcome::text) > 65536 then
        raise exception using errcode = 'PR005', message = format('outcome has %s bytes, at most 65536 are allowed', octet_length(finish_request.outcome::text));
    end if;
    update request r set status = finish_request.status, outcome = coalesce(finish_request.outcome, '{}'), recorded_at = clock_timestamp()
    where r.tenant = whose and r.operation = finish_request.operation and r.key = finish_request.key and r.begun_by = pg_current_xact_id() and r.status is null;
    get diagnostics found = row_count;
    if found = 0 then
        raise exception using errcode = 'PR010', message = format('request %L of operation %L was not begun in this transaction, or has an outcome already', finish_request.key, finish_request.operation),
            hint = 'Call begin_request first; only the answer new asks for an outcome.';
    end if;
end $$;

-- What is recorded of a request, or no row: for a caller that lost the reply (T-16).
create function request_outcome(tenant text, operation text, key text) returns table (request_id uuid, status text, outcome jsonb, recorded_at timestamptz)
language plpgsql stable security definer set search_path from current as $$
#variable_conflict use_column
begin
    return query select r.request_id, r.status, r.outcome, r.recorded_at from request r
        where r.tenant = case when btrim(coalesce(request_outcome.tenant, '')) = '' then '' else request_outcome.tenant end
          and r.operation = request_outcome.operation and r.key = request_outcome.key and r.status is not null;
end $$;

-- Links a message to the request that it names. An id of a request that is not known here is kept with the message alone.
create function link_request() returns trigger language plpgsql security definer set search_path from current as $$
begin
    insert into request_message (bucket, request_id, direction, endpoint, partition, xact, "position", message_id)
    select r.bucket, new.request_id, initcap(tg_argv[0]), new.endpoint, new.partition, new.xact, new.id, new.message_id from request r where r.request_id = new.request_id;
    return null;
end $$;
--@ each box
create trigger link after insert on @box@ for each row when (new.request_id is not null) execute function link_request('@box@');
--@ end

-- Adds a rung of the ladder that only the application can know; each stands for itself, none is made of another (T-30):
-- task_recorded (the receiver has it), provider_unresolved (it was tried, and nobody knows), delivery_verified.
create function record_delivery(request_id uuid, state text, evidence jsonb default '{}') returns void
language plpgsql security definer set search_path from current as $$
#variable_conflict use_column
declare
    b smallint := (select r.bucket from request r where r.request_id = record_delivery.request_id);
begin
    if record_delivery.state is null or record_delivery.state not in ('task_recorded', 'provider_unresolved', 'delivery_verified') then
        raise exception using errcode = 'PR010', message = format('state is %L, must be ''task_recorded'', ''provider_unresolved'' or ''delivery_verified''', record_delivery.state);
    elsif octet_length(record_delivery.evidence::text) > 65536 then
        raise exception using errcode = 'PR005', message = format('evidence has %s bytes, at most 65536 are allowed', octet_length(record_delivery.evidence::text));
    elsif b is null then
        raise exception using errcode = 'PR010', message = format('request %s is not known, or forgotten since', record_delivery.request_id);
    end if;
    insert into request_delivery values (b, record_delivery.request_id, nextval('message_position'), record_delivery.state, coalesce(record_delivery.evidence, '{}'), clock_timestamp());
end $$;

-- A request in full, one sentence for each thing that is known.
create function explain_request(tenant text, operation text, key text) returns setof text
language plpgsql stable security definer set search_path from current set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    r request;
    m record;
    d record;
begin
    select * into r from request q where q.tenant = case when btrim(coalesce(explain_request.tenant, '')) = '' then '' else explain_request.tenant end
        and q.operation = explain_request.operation and q.key = explain_request.key;
    if r.request_id is null then
        return next format('No request %s of operation %L is recorded: it was never committed, or it is more than %s days old and forgotten.', explain_request.key, explain_request.operation,
            (select coalesce(s.value, s.resource_value, s.default_value) from setting s where s.key = 'request_retention_days'));
        return;
    end if;
    return next format('Request %s of operation %L was %s at %s, as %s: %s.', r.key, r.operation, r.status, r.recorded_at, r.request_id, r.outcome);
    for m in
        select q.*, b.message_id is not null as waits, f.due_at, f.reason, (select min(x.reason) from dead_letter x where x.message_id = q.message_id and x.endpoint = q.endpoint) as dead
        from request_message q
        left join message b on b.endpoint = q.endpoint and b.partition = q.partition and b.xact = q.xact and b.id = q."position" and b.message_id = q.message_id
        left join deferral f on f.endpoint = q.endpoint and f.partition = q.partition and f.xact = q.xact and f.id = q."position"
        where q.bucket = r.bucket and q.request_id = r.request_id order by q."position"
    loop
        return next format('It caused message %s of %s %L: %s.', m.message_id, lower(m.direction), m.endpoint, case
            when m.waits and m.due_at is not null then format('it waits until %s (%s)', m.due_at, m.reason)
            when m.waits then 'it waits for a worker'
            when m.dead is not null then format('it was given up (%s) and is kept in dead_letter', m.dead)
            when m.direction = 'Outbox' then 'it was published and confirmed'
            else 'it was handled' end);
    end loop;
    for d in select * from request_delivery q where q.bucket = r.bucket and q.request_id = r.request_id order by q.number loop
        return next format('The application recorded %s at %s: %s.', d.state, d.recorded_at, d.evidence);
    end loop;
end $$;

-- A JSON document in a form in which equal documents are equal bytes: members sorted, no spaces, text escaped in one way. What differs
-- stays apart: 1 and 1.0, null and a missing member, the order of a list. A member that comes twice is refused, for nobody can say which
-- of the two was meant (T-09).
create function canonical_meaning(document json) returns bytea language plpgsql immutable set search_path from current as $$
begin
    return convert_to(canonical_text(document, '$'), 'UTF8');
end $$;

create function canonical_text(document json, path text) returns text language plpgsql immutable set search_path from current as $$
declare
    twice text;
begin
    case json_typeof(document)
        when 'object' then
            select e.key into twice from json_each(document) e group by e.key having count(*) > 1 limit 1;
            if twice is not null then
                raise exception using errcode = 'PR010', message = format('member %L comes twice in %s', twice, path);
            end if;
            return '{' || coalesce((select string_agg(to_json(e.key)::text || ':' || canonical_text(e.value, path || '.' || e.key), ',' order by e.key collate "C") from json_each(document) e), '') || '}';
        when 'array' then
            return '[' || coalesce((select string_agg(canonical_text(e.value, path || '[' || e.k - 1 || ']'), ',' order by e.k) from json_array_elements(document) with ordinality e(value, k)), '') || ']';
        when 'string' then
            return to_json(document #>> '{}')::text;
        else
            return btrim(document::text, E' \t\n\r');
    end case;
end $$;

-- The memory by which repeated requests are recognised; rows is the server's last estimate.
create view request_memory as
    select coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint as rows, coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint as bytes,
        (select extract(epoch from coalesce(s.value, s.resource_value, s.default_value)::numeric * interval '1 day')::float8
         from setting s where s.key = 'request_retention_days') as horizon_seconds
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = '@schema@.request'::regclass;

-- A worked example: reservations that are asked for once, twice, and with second thoughts.
--
-- It needs a schema `postroom` with an outbox `orders` and an inbox `tasks` with a pull handler, and nothing else; run it with
-- psql --set ON_ERROR_STOP=1 --file reservations.sql. Every line that begins with `select expect` says what must come out and
-- stops the script when something else does.

create schema shop;
create table shop.stock (item text primary key, on_hand int not null check (on_hand >= 0), initial int not null, replenished int not null default 0);
create table shop.reservation (request_id uuid primary key, tenant text not null, item text not null references shop.stock, quantity int not null check (quantity > 0), message_id uuid not null unique);
create table shop.task (message_id uuid primary key, payload text not null);

create function expect(what text, seen text, wanted text) returns void language plpgsql as $$
begin
    if seen is distinct from wanted then
        raise exception '%: found %, wanted %', what, coalesce(seen, 'nothing'), coalesce(wanted, 'nothing');
    end if;
end $$;

-- The rules of the shop, looked at after every step (T-01, T-02, T-03): what is on hand is what there was, more what came, less what is
-- reserved; each accepted request has one reservation and one message; nothing else has any.
create function shop.reconcile() returns void language plpgsql as $$
begin
    perform expect('on hand', (select string_agg(s.item, ', ') from shop.stock s
        where s.on_hand <> s.initial + s.replenished - (select coalesce(sum(r.quantity), 0) from shop.reservation r where r.item = s.item)), null);
    perform expect('accepted requests without a reservation, or the other way', (select string_agg(coalesce(q.key, r.request_id::text), ', ')
        from (select * from postroom.request where status = 'accepted') q full join shop.reservation r using (request_id) where q.key is null or r.item is null), null);
    perform expect('messages of reservations', (select count(*)::text from postroom.request_message m join shop.reservation r using (request_id, message_id)),
        (select count(*)::text from shop.reservation));
end $$;

-- One reservation. `breaks_after` makes it fail in the middle, as a program does that has a bug or loses its connection.
create function shop.reserve(p_tenant text, p_key text, p_item text, p_quantity int, breaks_after text default null) returns jsonb language plpgsql as $$
declare
    asked record;
    left_ int;
    sent  uuid;
begin
    select * into asked from postroom.begin_request(p_tenant, 'reserve', p_key, postroom.canonical_meaning(json_build_object('item', p_item, 'quantity', p_quantity)));
    if asked.state = 'conflict' then
        return jsonb_build_object('state', 'conflict');
    elsif asked.state = 'replay' then
        return jsonb_build_object('state', 'replay', 'status', asked.status) || asked.outcome;
    end if;
    if breaks_after = 'begin' then raise exception 'broken after begin'; end if;

    update shop.stock set on_hand = on_hand - p_quantity where item = p_item and on_hand >= p_quantity returning on_hand into left_;
    if left_ is null then
        perform postroom.finish_request(p_tenant, 'reserve', p_key, 'rejected', jsonb_build_object('reason', 'not enough on hand'));
        return jsonb_build_object('state', 'new', 'status', 'rejected');
    end if;
    if breaks_after = 'stock' then raise exception 'broken after the stock'; end if;

    select message_id into sent from postroom.enqueue('orders', 'item.reserved', jsonb_build_object('item', p_item, 'quantity', p_quantity), stream => p_item, request_id => asked.request_id);
    if breaks_after = 'message' then raise exception 'broken after the message'; end if;
    insert into shop.reservation values (asked.request_id, p_tenant, p_item, p_quantity, sent);
    if breaks_after = 'reservation' then raise exception 'broken after the reservation'; end if;

    perform postroom.finish_request(p_tenant, 'reserve', p_key, 'accepted', jsonb_build_object('left', left_, 'message_id', sent));
    if breaks_after = 'outcome' then raise exception 'broken after the outcome'; end if;
    return jsonb_build_object('state', 'new', 'status', 'accepted', 'left', left_, 'message_id', sent);
end $$;

-- Five books on the shelf.
insert into shop.stock (item, on_hand, initial) values ('book', 5, 5);

-- IDEM-A asks for three of them, and gets them: two are left.
select expect('IDEM-A, first', (select format('%s %s %s', a ->> 'state', a ->> 'status', a ->> 'left') from shop.reserve('T-A', 'IDEM-A', 'book', 3) a), 'new accepted 2');
select shop.reconcile();

-- The reply was lost, so the caller asks again: the same answer, nothing else (T-11, T-16).
select expect('IDEM-A, again', (select format('%s %s %s', a ->> 'state', a ->> 'status', a ->> 'left') from shop.reserve('T-A', 'IDEM-A', 'book', 3) a), 'replay accepted 2');
select expect('IDEM-A, looked up', (select format('%s %s', o.status, o.outcome ->> 'left') from postroom.request_outcome('T-A', 'reserve', 'IDEM-A') o), 'accepted 2');
select expect('messages', (select count(*)::text from postroom.outbox where endpoint = 'orders'), '1');
select shop.reconcile();

-- The same key for four is another intent: a conflict, and nothing changes (T-12).
select expect('IDEM-A for four', (shop.reserve('T-A', 'IDEM-A', 'book', 4)) ->> 'state', 'conflict');
select shop.reconcile();

-- IDEM-B asks for three: there are two. The rejection is recorded, and stays when more come (T-13).
select expect('IDEM-B', (select format('%s %s', a ->> 'state', a ->> 'status') from shop.reserve('T-A', 'IDEM-B', 'book', 3) a), 'new rejected');
update shop.stock set on_hand = on_hand + 5, replenished = replenished + 5 where item = 'book';
select expect('on hand', (select on_hand::text from shop.stock), '7');
select expect('IDEM-B, again', (select format('%s %s', a ->> 'state', a ->> 'status') from shop.reserve('T-A', 'IDEM-B', 'book', 3) a), 'replay rejected');
select shop.reconcile();

-- Only a new key gets a new decision (T-14).
select expect('IDEM-C', (shop.reserve('T-A', 'IDEM-C', 'book', 3)) ->> 'status', 'accepted');
select shop.reconcile();

-- Two tenants use the same key, and have nothing to do with each other (T-04).
select expect('REQ-17 of T-A', (shop.reserve('T-A', 'REQ-17', 'book', 1)) ->> 'state', 'new');
select expect('REQ-17 of T-B', (shop.reserve('T-B', 'REQ-17', 'book', 1)) ->> 'state', 'new');
-- The same content under another key is another purchase, never a repeat (T-05).
select expect('REQ-18 of T-A', (shop.reserve('T-A', 'REQ-18', 'book', 1)) ->> 'state', 'new');
select shop.reconcile();

-- Whatever breaks in the middle leaves nothing behind: no outcome, no message, no book less (T-15). The key is as good as unused.
insert into shop.stock (item, on_hand, initial) values ('map', 10, 10);
do $$
declare
    step text;
begin
    foreach step in array array['begin', 'stock', 'message', 'reservation', 'outcome'] loop
        begin
            perform shop.reserve('T-A', 'IDEM-D', 'map', 2, breaks_after => step);
            raise exception using errcode = 'ZZ001', message = 'it did not break after ' || step;
        exception when raise_exception then null;
        end;
        perform expect('IDEM-D after ' || step, (select count(*)::text from postroom.request_outcome('T-A', 'reserve', 'IDEM-D')), '0');
        perform expect('maps after ' || step, (select on_hand::text from shop.stock where item = 'map'), '10');
        perform shop.reconcile();
    end loop;
end $$;
select expect('IDEM-D at last', (shop.reserve('T-A', 'IDEM-D', 'map', 2)) ->> 'status', 'accepted');
select shop.reconcile();

-- The receiver gets message MSG-A, and gets it again because the sender was not sure: one task (T-24). Another content under the same
-- id is refused (T-25).
select expect('MSG-A', (select outcome from postroom.store_inbox_messages('tasks', '[{"message_id": "MSG-A", "type": "pack", "payload": "3 books"}]')), 'Accepted');
select expect('MSG-A, again', (select outcome from postroom.store_inbox_messages('tasks', '[{"message_id": "MSG-A", "type": "pack", "payload": "3 books"}]')), 'AlreadyAccepted');
do $$
begin
    perform postroom.store_inbox_messages('tasks', '[{"message_id": "MSG-A", "type": "pack", "payload": "30 books"}]');
    raise exception using errcode = 'ZZ001', message = 'another content under the same id was taken';
exception when sqlstate 'PR002' then null;
end $$;
do $$
declare
    t record;
begin
    for t in select * from postroom.take_inbox('tasks', 10) loop
        insert into shop.task values (t.message_id, t.payload);
        perform postroom.complete_inbox('tasks', array[t.ticket]);
    end loop;
end $$;
select expect('tasks', (select string_agg(payload, ', ') from shop.task), '3 books');

-- What is known of a request, rung by rung: none of them is made of another (T-30).
do $$
begin
    perform postroom.record_delivery(request_id, 'provider_unresolved', '{"provider": "courier"}') from postroom.request_outcome('T-A', 'reserve', 'IDEM-A');
    perform postroom.record_delivery(request_id, 'delivery_verified', '{"signed": "yes"}') from postroom.request_outcome('T-A', 'reserve', 'IDEM-A');
end $$;
select * from postroom.explain_request('T-A', 'reserve', 'IDEM-A');

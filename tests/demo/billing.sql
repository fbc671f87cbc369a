-- The other service of the demo: it gets the shop's orders through an inbox, and writes one invoice for each.
--
-- Nothing here looks for repeats, and no unique key hides them: the inbox alone sees to it that a message has one effect.
create schema billing;

create table billing.invoice (
    number     bigint generated always as identity primary key,
    message_id uuid not null,
    order_id   uuid not null,
    customer   text not null,
    total      int not null
);

-- The handler that the resource names. It acts with the rights of its owner, so the workers need none on the table.
create function billing.book(m postroom.inbox_message) returns void
language sql security definer set search_path = billing, pg_temp as $$
    insert into invoice (message_id, order_id, customer, total)
    select m.message_id, (b ->> 'order')::uuid, b ->> 'customer', (b ->> 'total')::int from (select m.payload::jsonb) t(b)
$$;

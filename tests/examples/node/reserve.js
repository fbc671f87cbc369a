// Reservations over HTTP, once for each Idempotency-Key. Needs pg, DATABASE_URL and PORT; tables: ../reservations.sql.
'use strict';
const http = require('http');
const { Pool } = require('pg');

const pool = new Pool({ connectionString: process.env.DATABASE_URL });

// Decides, or finds the decision, in one transaction. Answers HTTP status, outcome and whether it is a repeat.
async function reserve(tenant, key, item, quantity) {
  const client = await pool.connect();
  try {
    await client.query('begin');
    const answer = await decideOnce(client, tenant, key, item, quantity);
    await client.query('commit');
    return answer;
  } catch (error) {
    await client.query('rollback');
    throw error;
  } finally {
    client.release();
  }
}

async function decideOnce(client, tenant, key, item, quantity) {
  const begun = await client.query(
    "select request_id, state, status, outcome from postroom.begin_request($1, 'reserve', $2, postroom.canonical_meaning($3::json))",
    [tenant, key, JSON.stringify({ item, quantity })],
  );
  let { request_id: request, state, status, outcome } = begun.rows[0];
  if (state === 'conflict') return { status: 409, outcome: { error: 'this key belongs to another request' } };
  if (state === 'new') {
    [status, outcome] = await decide(client, request, tenant, item, quantity);
    await client.query("select postroom.finish_request($1, 'reserve', $2, $3, $4)", [tenant, key, status, outcome]);
  }
  return { status: status === 'accepted' ? 201 : 422, outcome, repeated: state === 'replay' };
}

// The business change with its message: both are committed with the outcome, or none of the three.
async function decide(client, request, tenant, item, quantity) {
  const stock = await client.query(
    'update shop.stock set on_hand = on_hand - $1 where item = $2 and on_hand >= $1 returning on_hand',
    [quantity, item],
  );
  if (stock.rowCount === 0) return ['rejected', { reason: 'not enough on hand' }];
  const sent = await client.query(
    "select message_id from postroom.enqueue('orders', 'item.reserved', $1::text, stream => $2, request_id => $3)",
    [JSON.stringify({ item, quantity }), item, request],
  );
  const message = sent.rows[0].message_id;
  await client.query('insert into shop.reservation values ($1, $2, $3, $4, $5)', [request, tenant, item, quantity, message]);
  return ['accepted', { left: stock.rows[0].on_hand, message_id: message }];
}

async function handle(request) {
  // The tenant stands for what your authentication says; never take it from the client's own words.
  const [tenant, key] = [request.headers['x-tenant'] ?? '', request.headers['idempotency-key']];
  let body = '';
  for await (const chunk of request) body += chunk;
  let asked;
  try { asked = JSON.parse(body); } catch { asked = null; }
  if (typeof asked?.item !== 'string' || !Number.isInteger(asked?.quantity)) {
    return { status: 400, outcome: { error: 'send {"item": text, "quantity": number}' } };
  }
  if (!key) return { status: 400, outcome: { error: 'send the header Idempotency-Key' } };
  return reserve(tenant, key, asked.item, asked.quantity);
}

http.createServer(async (request, response) => {
  const answer = await handle(request).catch((error) => ({ status: 500, outcome: { error: error.code ?? 'failed' } }));
  const headers = { 'Content-Type': 'application/json', ...(answer.repeated ? { 'Idempotency-Replayed': 'true' } : {}) };
  response.writeHead(answer.status, headers).end(JSON.stringify(answer.outcome));
}).listen(Number(process.env.PORT), '127.0.0.1');

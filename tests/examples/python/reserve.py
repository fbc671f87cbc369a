"""Reservations over HTTP, once for each Idempotency-Key. Needs psycopg2, DATABASE_URL and PORT; tables: ../reservations.sql."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg2


def reserve(cursor, tenant, key, item, quantity):
    """Decides, or finds the decision, within the caller's transaction. Answers HTTP status, outcome and whether it is a repeat."""
    meaning = json.dumps({"item": item, "quantity": quantity})
    cursor.execute(
        "select request_id, state, status, outcome from postroom.begin_request(%s, 'reserve', %s, postroom.canonical_meaning(%s::json))",
        (tenant, key, meaning),
    )
    request_id, state, status, outcome = cursor.fetchone()
    if state == "conflict":
        return 409, {"error": "this key belongs to another request"}, False
    if state == "new":
        status, outcome = decide(cursor, request_id, tenant, item, quantity)
        cursor.execute("select postroom.finish_request(%s, 'reserve', %s, %s, %s)", (tenant, key, status, json.dumps(outcome)))
    return (201 if status == "accepted" else 422), outcome, state == "replay"


def decide(cursor, request_id, tenant, item, quantity):
    """The business change with its message: both are committed with the outcome, or none of the three."""
    cursor.execute("update shop.stock set on_hand = on_hand - %s where item = %s and on_hand >= %s returning on_hand", (quantity, item, quantity))
    row = cursor.fetchone()
    if row is None:
        return "rejected", {"reason": "not enough on hand"}
    cursor.execute(
        "select message_id from postroom.enqueue('orders', 'item.reserved', %s::text, stream => %s, request_id => %s)",
        (json.dumps({"item": item, "quantity": quantity}), item, request_id),
    )
    (message_id,) = cursor.fetchone()
    cursor.execute("insert into shop.reservation values (%s, %s, %s, %s, %s)", (request_id, tenant, item, quantity, message_id))
    return "accepted", {"left": row[0], "message_id": message_id}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        # The tenant stands for what your authentication says; never take it from the client's own words.
        tenant, key = self.headers.get("X-Tenant", ""), self.headers.get("Idempotency-Key")
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            item, quantity = str(body["item"]), int(body["quantity"])
        except (ValueError, KeyError, TypeError):
            return self.answer(400, {"error": "send {\"item\": text, \"quantity\": number}"})
        if not key:
            return self.answer(400, {"error": "send the header Idempotency-Key"})
        connection = psycopg2.connect(os.environ["DATABASE_URL"])
        try:
            with connection, connection.cursor() as cursor:  # commits, or rolls back on any error
                status, outcome, repeated = reserve(cursor, tenant, key, item, quantity)
        finally:
            connection.close()
        return self.answer(status, outcome, repeated)

    def answer(self, status, outcome, repeated=False):
        text = json.dumps(outcome).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if repeated:
            self.send_header("Idempotency-Replayed", "true")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()

// Reservations over HTTP, once for each Idempotency-Key. Needs DATABASE_URL and PORT; tables: ../reservations.sql.
package main

import (
	"database/sql"
	"encoding/json"
	"log"
	"net/http"
	"os"

	_ "github.com/lib/pq"
)

type order struct {
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
}

// reserve decides, or finds the decision, in one transaction. It answers HTTP status, outcome and whether it is a repeat.
func reserve(db *sql.DB, tenant, key string, asked order) (int, json.RawMessage, bool, error) {
	tx, err := db.Begin()
	if err != nil {
		return 0, nil, false, err
	}
	defer tx.Rollback() // does nothing after the commit
	meaning, _ := json.Marshal(asked)
	var request, state string
	var status, outcome sql.NullString
	err = tx.QueryRow("select request_id, state, status, outcome from postroom.begin_request($1, 'reserve', $2, postroom.canonical_meaning($3::json))",
		tenant, key, string(meaning)).Scan(&request, &state, &status, &outcome)
	if err != nil {
		return 0, nil, false, err
	}
	if state == "conflict" {
		return http.StatusConflict, json.RawMessage(`{"error": "this key belongs to another request"}`), false, nil
	}
	if state == "new" {
		if status.String, outcome.String, err = decide(tx, request, tenant, asked); err != nil {
			return 0, nil, false, err
		}
		if _, err = tx.Exec("select postroom.finish_request($1, 'reserve', $2, $3, $4)", tenant, key, status.String, outcome.String); err != nil {
			return 0, nil, false, err
		}
	}
	code := http.StatusUnprocessableEntity
	if status.String == "accepted" {
		code = http.StatusCreated
	}
	return code, json.RawMessage(outcome.String), state == "replay", tx.Commit()
}

// decide makes the business change with its message: both are committed with the outcome, or none of the three.
func decide(tx *sql.Tx, request, tenant string, asked order) (status, outcome string, err error) {
	var left int
	err = tx.QueryRow("update shop.stock set on_hand = on_hand - $1 where item = $2 and on_hand >= $1 returning on_hand", asked.Quantity, asked.Item).Scan(&left)
	if err == sql.ErrNoRows {
		return "rejected", `{"reason": "not enough on hand"}`, nil
	} else if err != nil {
		return "", "", err
	}
	body, _ := json.Marshal(asked)
	var message string
	err = tx.QueryRow("select message_id from postroom.enqueue('orders', 'item.reserved', $1::text, stream => $2, request_id => $3)", string(body), asked.Item, request).Scan(&message)
	if err != nil {
		return "", "", err
	}
	if _, err = tx.Exec("insert into shop.reservation values ($1, $2, $3, $4, $5)", request, tenant, asked.Item, asked.Quantity, message); err != nil {
		return "", "", err
	}
	text, err := json.Marshal(map[string]any{"left": left, "message_id": message})
	return "accepted", string(text), err
}

func main() {
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("POST /reservations", func(w http.ResponseWriter, r *http.Request) {
		answer := func(code int, body json.RawMessage, repeated bool) {
			w.Header().Set("Content-Type", "application/json")
			if repeated {
				w.Header().Set("Idempotency-Replayed", "true")
			}
			w.WriteHeader(code)
			w.Write(body)
		}
		var asked order
		if json.NewDecoder(r.Body).Decode(&asked) != nil || asked.Item == "" || asked.Quantity < 1 {
			answer(http.StatusBadRequest, json.RawMessage(`{"error": "send {\"item\": text, \"quantity\": number}"}`), false)
			return
		}
		key := r.Header.Get("Idempotency-Key")
		if key == "" {
			answer(http.StatusBadRequest, json.RawMessage(`{"error": "send the header Idempotency-Key"}`), false)
			return
		}
		// The tenant stands for what your authentication says; never take it from the client's own words.
		code, outcome, repeated, err := reserve(db, r.Header.Get("X-Tenant"), key, asked)
		if err != nil {
			log.Print(err)
			answer(http.StatusInternalServerError, json.RawMessage(`{"error": "failed"}`), false)
			return
		}
		answer(code, outcome, repeated)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}

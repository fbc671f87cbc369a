// Reservations over HTTP, once for each Idempotency-Key. Needs the JDBC driver, DATABASE_URL and PORT; tables: ../reservations.sql.
// java -cp postgresql.jar Reserve.java

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

class Reserve {
    record Answer(int status, String outcome, boolean repeated) {}

    record Order(String item, int quantity) {
        /** A service would use its JSON library; this one does without. */
        static Order read(String body) {
            Matcher item = Pattern.compile("\"item\"\\s*:\\s*\"([^\"\\\\]+)\"").matcher(body);
            Matcher quantity = Pattern.compile("\"quantity\"\\s*:\\s*([0-9]{1,9})").matcher(body);
            return item.find() && quantity.find() ? new Order(item.group(1), Integer.parseInt(quantity.group(1))) : null;
        }

        String json() {
            return "{\"item\": \"" + item + "\", \"quantity\": " + quantity + "}";
        }
    }

    /** Decides, or finds the decision, in one transaction. */
    static Answer reserve(String tenant, String key, Order order) throws SQLException {
        try (Connection connection = connect()) {
            connection.setAutoCommit(false); // what is not committed is rolled back when the connection closes
            Answer answer = decideOnce(connection, tenant, key, order);
            connection.commit();
            return answer;
        }
    }

    static Answer decideOnce(Connection connection, String tenant, String key, Order order) throws SQLException {
        String begin = "select request_id, state, status, outcome from postroom.begin_request(?, 'reserve', ?, postroom.canonical_meaning(?::json))";
        String request, state, status, outcome;
        try (PreparedStatement statement = prepare(connection, begin, tenant, key, order.json()); ResultSet row = statement.executeQuery()) {
            row.next();
            request = row.getString(1);
            state = row.getString(2);
            status = row.getString(3);
            outcome = row.getString(4);
        }
        if (state.equals("conflict")) {
            return new Answer(409, "{\"error\": \"this key belongs to another request\"}", false);
        }
        if (state.equals("new")) {
            outcome = decide(connection, request, tenant, order);
            status = outcome == null ? "rejected" : "accepted";
            outcome = outcome == null ? "{\"reason\": \"not enough on hand\"}" : outcome;
            try (PreparedStatement finish = prepare(connection, "select postroom.finish_request(?, 'reserve', ?, ?, ?::jsonb)", tenant, key, status, outcome)) {
                finish.execute();
            }
        }
        return new Answer(status.equals("accepted") ? 201 : 422, outcome, state.equals("replay"));
    }

    /** The business change with its message: both are committed with the outcome, or none of the three. Null: not enough. */
    static String decide(Connection connection, String request, String tenant, Order order) throws SQLException {
        int left;
        String update = "update shop.stock set on_hand = on_hand - ? where item = ? and on_hand >= ? returning on_hand";
        try (PreparedStatement statement = prepare(connection, update, order.quantity, order.item, order.quantity); ResultSet row = statement.executeQuery()) {
            if (!row.next()) {
                return null;
            }
            left = row.getInt(1);
        }
        String message;
        String enqueue = "select message_id from postroom.enqueue('orders', 'item.reserved', ?::text, stream => ?, request_id => ?::uuid)";
        try (PreparedStatement statement = prepare(connection, enqueue, order.json(), order.item, request); ResultSet row = statement.executeQuery()) {
            row.next();
            message = row.getString(1);
        }
        String insert = "insert into shop.reservation values (?::uuid, ?, ?, ?, ?::uuid)";
        try (PreparedStatement statement = prepare(connection, insert, request, tenant, order.item, order.quantity, message)) {
            statement.execute();
        }
        return "{\"left\": " + left + ", \"message_id\": \"" + message + "\"}";
    }

    static PreparedStatement prepare(Connection connection, String sql, Object... values) throws SQLException {
        PreparedStatement statement = connection.prepareStatement(sql);
        for (int i = 0; i < values.length; i++) {
            statement.setObject(i + 1, values[i]);
        }
        return statement;
    }

    static Connection connect() throws SQLException {
        URI url = URI.create(System.getenv("DATABASE_URL"));
        String[] login = url.getUserInfo().split(":", 2);
        String query = url.getQuery() == null ? "" : "?" + url.getQuery();
        return DriverManager.getConnection("jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath() + query, login[0], login[1]);
    }

    static Answer handle(HttpExchange exchange) throws IOException, SQLException {
        // The tenant stands for what your authentication says; never take it from the client's own words.
        String tenant = exchange.getRequestHeaders().getFirst("X-Tenant");
        String key = exchange.getRequestHeaders().getFirst("Idempotency-Key");
        Order order = Order.read(new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
        if (order == null) {
            return new Answer(400, "{\"error\": \"send an item and a quantity\"}", false);
        }
        if (key == null || key.isBlank()) {
            return new Answer(400, "{\"error\": \"send the header Idempotency-Key\"}", false);
        }
        return reserve(tenant == null ? "" : tenant, key, order);
    }

    public static void main(String[] arguments) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))), 0);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/reservations", exchange -> {
            Answer answer;
            try {
                answer = handle(exchange);
            } catch (SQLException error) {
                answer = new Answer(500, "{\"error\": \"" + error.getSQLState() + "\"}", false);
            }
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            if (answer.repeated()) {
                exchange.getResponseHeaders().set("Idempotency-Replayed", "true");
            }
            byte[] text = answer.outcome().getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(answer.status(), text.length);
            exchange.getResponseBody().write(text);
            exchange.close();
        });
        server.start();
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.auth.SaslExtensionsCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's Java clients at the other end of a pipe: tests/kafka/programs/pipe.py has the requests. */
public final class ClientProgram {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int PATIENCE_MS = 40_000;

    private final Map<String, Login> logins = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        ClientProgram program = new ClientProgram();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            System.out.println(JSON.writeValueAsString(program.answer(JSON.readTree(line))));
        }
    }

    private Map<String, Object> answer(JsonNode request) {
        try {
            return Map.of("ok", perform(request));
        } catch (Exception failure) {
            return Map.of("error", nameOf(failure), "message", chainOf(failure));
        }
    }

    private Object perform(JsonNode request) throws Exception {
        String name = request.get("client").asText();
        String verb = request.get("do").asText();
        if (verb.equals("connect")) {
            logins.put(name, new Login(request.get("settings")));
            return true;
        }
        Login login = logins.get(name);
        return switch (verb) {
            case "create" -> login.create(request.get("topic").asText());
            case "topics" -> login.topics();
            case "produce" -> login.produce(request.get("topic").asText(), request.get("value").asText());
            case "consume" -> login.consume(request);
            case "transact" -> login.transact(request);
            case "transform" -> new Transformer(login.settings, request).run();
            case "close" -> logins.remove(name).close();
            default -> throw new IllegalArgumentException(verb);
        };
    }

    /** Kafka's name of the error, or the exception's if the broker did not send it. */
    private static String nameOf(Throwable failure) {
        for (Throwable one = failure; one != null; one = one.getCause()) {
            Errors known = Errors.forException(one);
            if (known != Errors.UNKNOWN_SERVER_ERROR && known != Errors.REQUEST_TIMED_OUT) {
                return known.name();
            }
        }
        boolean isWrapped = failure instanceof ExecutionException && failure.getCause() != null;
        return (isWrapped ? failure.getCause() : failure).getClass().getSimpleName();
    }

    private static String chainOf(Throwable failure) {
        List<String> causes = new ArrayList<>();
        for (Throwable one = failure; one != null; one = one.getCause()) {
            causes.add(one.toString());
        }
        return String.join(" <- ", causes);
    }

    /** One set of settings, and the clients that use it; producer and administrator stay connected between requests. */
    private static final class Login {
        private final Map<String, Object> settings;
        private KafkaProducer<String, String> producer;
        private final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
        private Admin admin;

        Login(JsonNode told) {
            settings = Settings.of(told);
        }

        private Admin admin() {
            if (admin == null) {
                admin = Admin.create(settings);
            }
            return admin;
        }

        boolean create(String topic) throws Exception {
            admin().createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
            return true;
        }

        Set<String> topics() throws Exception {
            return new TreeSet<>(admin().listTopics().names().get());
        }

        long produce(String topic, String value) throws Exception {
            if (producer == null) {
                producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
            }
            return producer.send(new ProducerRecord<>(topic, value)).get().offset();
        }

        List<String> consume(JsonNode request) {
            int count = request.get("count").asInt();
            Map<String, Object> own = new HashMap<>(settings);
            own.put("group.id", request.get("group").asText());
            if (request.has("protocol")) {
                own.put("group.protocol", request.get("protocol").asText());
            }
            own.put("auto.offset.reset", "earliest");
            List<String> values = new ArrayList<>();
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            try (var consumer = new KafkaConsumer<>(own, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of(request.get("topic").asText()));
                while (values.size() < count && System.currentTimeMillis() < deadline) {
                    for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(200))) {
                        values.add(one.value());
                    }
                }
            }
            return values;
        }

        boolean transact(JsonNode request) throws Exception {
            var transactional = transactional(request.get("id").asText());
            transactional.beginTransaction();
            for (JsonNode topic : request.get("topics")) {
                transactional.send(new ProducerRecord<>(topic.asText(), request.get("value").asText()));
            }
            if (request.has("offset")) {
                var input = new TopicPartition(request.get("topics").get(0).asText(), 0);
                var offset = new OffsetAndMetadata(request.get("offset").asLong());
                var group = new ConsumerGroupMetadata(request.get("group").asText());
                transactional.sendOffsetsToTransaction(Map.of(input, offset), group);
            }
            if (request.get("commit").asBoolean()) {
                transactional.commitTransaction();
            } else {
                transactional.abortTransaction();
            }
            return true;
        }

        private KafkaProducer<String, String> transactional(String id) {
            return producers.computeIfAbsent(id, wanted -> {
                Map<String, Object> own = new HashMap<>(settings);
                own.put("transactional.id", wanted);
                var made = new KafkaProducer<>(own, new StringSerializer(), new StringSerializer());
                made.initTransactions();
                return made;
            });
        }

        boolean close() {
            producers.values().forEach(one -> one.close(Duration.ZERO));
            if (producer != null) {
                producer.close(Duration.ZERO);
            }
            if (admin != null) {
                admin.close(Duration.ZERO);
            }
            return true;
        }
    }

    /** From the words of the pipe to Kafka's. */
    private static final class Settings {
        static Map<String, Object> of(JsonNode told) {
            Map<String, Object> made = new HashMap<>();
            made.put("bootstrap.servers", told.get("bootstrap").asText());
            made.put("max.block.ms", PATIENCE_MS);
            made.put("default.api.timeout.ms", PATIENCE_MS);
            made.put("delivery.timeout.ms", PATIENCE_MS);
            made.put("request.timeout.ms", PATIENCE_MS / 2);
            made.put("security.protocol", (told.has("mechanism") ? "SASL_" : "") + (told.has("ca") ? "SSL" : "PLAINTEXT"));
            if (told.has("protocol")) {
                made.put("group.protocol", told.get("protocol").asText());
            }
            if (told.has("ca")) {
                made.put("ssl.truststore.type", "PEM");
                made.put("ssl.truststore.location", told.get("ca").asText());
            }
            if (told.has("keystore")) {
                made.put("ssl.keystore.type", "PEM");
                made.put("ssl.keystore.location", told.get("keystore").asText());
            }
            if (told.has("mechanism")) {
                addLogin(made, told.get("mechanism").asText(), told);
            }
            // 4.x drops settings that a client does not know, with a warning.
            return made;
        }

        private static void addLogin(Map<String, Object> made, String mechanism, JsonNode told) {
            made.put("sasl.mechanism", mechanism);
            String secret = told.get("secret").asText();
            if (mechanism.equals("OAUTHBEARER")) {
                made.put("sasl.login.callback.handler.class", GivenToken.class.getName());
                made.put("sasl.jaas.config", module("oauthbearer.OAuthBearerLoginModule") + " token=\"" + secret + "\";");
                return;
            }
            String kind = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            String user = told.get("user").asText();
            made.put("sasl.jaas.config", module(kind) + " username=\"" + user + "\" password=\"" + secret + "\";");
        }

        private static String module(String name) {
            return "org.apache.kafka.common.security." + name + " required";
        }
    }

    /** Sends the token as it is, also one that has expired: the broker is to refuse it, not the client. */
    public static final class GivenToken implements AuthenticateCallbackHandler {
        private String token;

        @Override
        public void configure(Map<String, ?> settings, String mechanism, List<AppConfigurationEntry> entries) {
            token = (String) entries.get(0).getOptions().get("token");
        }

        @Override
        public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
            for (Callback one : callbacks) {
                if (one instanceof OAuthBearerTokenCallback wanted) {
                    wanted.token(new Token(token, System.currentTimeMillis()));
                } else if (!(one instanceof SaslExtensionsCallback)) {
                    throw new UnsupportedCallbackException(one);
                }
            }
        }

        @Override
        public void close() {}
    }

    private record Token(String value, Long startTimeMs) implements OAuthBearerToken {
        @Override
        public long lifetimeMs() {
            return startTimeMs + 600_000;
        }

        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public String principalName() {
            return "given";
        }
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Reads one topic as a group and writes each value to another one; offsets and results are in one transaction. */
final class Transformer {
    private static final int RECORDS_OF_A_TRANSACTION = 20;
    private static final int SESSION_MS = 6_000;

    private final Map<String, Object> consuming;
    private final Map<String, Object> producing;
    private final String source;
    private final String results;

    Transformer(Map<String, Object> settings, JsonNode request) {
        source = request.get("topics").get(0).asText();
        results = request.get("topics").get(1).asText();
        consuming = new HashMap<>(settings);
        consuming.put("group.id", request.get("group").asText());
        consuming.put("isolation.level", "read_committed");
        consuming.put("enable.auto.commit", "false");
        consuming.put("auto.offset.reset", "earliest");
        consuming.put("max.poll.records", RECORDS_OF_A_TRANSACTION);
        if (!settings.containsKey("group.protocol")) { // in the newer protocol the broker's setting counts
            consuming.put("session.timeout.ms", SESSION_MS);
        }
        producing = new HashMap<>(settings);
        producing.put("transactional.id", request.get("id").asText());
    }

    /** Until the program is killed. After any error it starts over, as a program that was restarted would. */
    Object run() {
        while (true) {
            var consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer());
            var producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer());
            try {
                producer.initTransactions();
                consumer.subscribe(List.of(source));
                while (true) {
                    transform(consumer.poll(Duration.ofMillis(500)), consumer, producer);
                }
            } catch (KafkaException failure) {
                System.err.println("starts over: " + failure); // the next producer ends what this one has begun
            } finally {
                producer.close(Duration.ZERO);
                consumer.close(CloseOptions.timeout(Duration.ofSeconds(1)));
            }
        }
    }

    private void transform(
            ConsumerRecords<String, String> records,
            KafkaConsumer<String, String> consumer,
            KafkaProducer<String, String> producer) {
        if (records.isEmpty()) {
            return;
        }
        producer.beginTransaction();
        for (ConsumerRecord<String, String> one : records) {
            producer.send(new ProducerRecord<>(results, one.value(), one.value()));
        }
        producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
        producer.commitTransaction();
    }
}

import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/**
 * Counts the words of a topic with Kafka Streams, exactly once: bootstrap servers, state folder, source, results. Without a cache every
 * count of every word is one record of the results.
 */
public final class WordCount {
    public static void main(String[] arguments) throws Exception {
        KafkaStreams streams = new KafkaStreams(
            countWords(arguments[2], arguments[3]).build(), settings(arguments[0], arguments[1]));
        streams.setUncaughtExceptionHandler(failure -> {
            System.err.println("starts over: " + failure);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        new CountDownLatch(1).await();
    }

    private static StreamsBuilder countWords(String source, String results) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(source)
            .flatMapValues(line -> Arrays.asList(line.split("\\W+")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(results);
        return builder;
    }

    private static Properties settings(String bootstrap, String folder) {
        Properties made = new Properties();
        made.put("application.id", "word-count");
        made.put("bootstrap.servers", bootstrap);
        made.put("state.dir", folder);
        made.put("processing.guarantee", "exactly_once_v2");
        made.put("default.key.serde", Serdes.String().getClass());
        made.put("default.value.serde", Serdes.String().getClass());
        made.put("statestore.cache.max.bytes", 0);
        made.put("consumer.auto.offset.reset", "earliest");
        made.put("consumer.session.timeout.ms", 6_000);
        return made;
    }
}

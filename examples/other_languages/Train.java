// Train a folder of `onward.edge.export` with com.microsoft.onnxruntime:onnxruntime and a reader of JSON (Jackson):
//   java -cp onnxruntime.jar:jackson.jar Train.java FOLDER [STEPS]
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import java.util.stream.StreamSupport;

public class Train {
    private final OrtEnvironment environment = OrtEnvironment.getEnvironment();
    private final Path folder;
    private final JsonNode manifest;
    private final OrtSession session;

    Train(Path folder) throws Exception {
        this.folder = folder;
        manifest = new ObjectMapper().readTree(folder.resolve("manifest.json").toFile());
        session = environment.createSession(folder.resolve(manifest.at("/files/step/file").asText()).toString());
    }

    /** A tensor of numbers; the type of a value decides what they are called. */
    OnnxTensor tensor(JsonNode value, double[] numbers, long[] shape) throws OrtException {
        switch (value.get("type").asText()) {
            case "float32": {
                float[] narrow = new float[numbers.length];
                for (int i = 0; i < narrow.length; i++) narrow[i] = (float) numbers[i];
                return OnnxTensor.createTensor(environment, FloatBuffer.wrap(narrow), shape);
            }
            case "float64": return OnnxTensor.createTensor(environment, DoubleBuffer.wrap(numbers), shape);
            case "int32": {
                int[] whole = Arrays.stream(numbers).mapToInt(number -> (int) number).toArray();
                return OnnxTensor.createTensor(environment, IntBuffer.wrap(whole), shape);
            }
            case "int64": {
                long[] whole = Arrays.stream(numbers).mapToLong(number -> (long) number).toArray();
                return OnnxTensor.createTensor(environment, LongBuffer.wrap(whole), shape);
            }
            default: throw new IllegalArgumentException("a tensor of this type is not supported here: " + value);
        }
    }

    /**
     * Parameters and statistics begin as the checkpoint says, slots of the optimizer with a number. The checkpoint is a
     * safetensors file: the length of a header, the header, and the bytes of the tensors.
     */
    Map<String, double[]> initial() throws Exception {
        byte[] file = Files.readAllBytes(folder.resolve(manifest.at("/files/checkpoint/file").asText()));
        ByteBuffer content = ByteBuffer.wrap(file).order(ByteOrder.LITTLE_ENDIAN);
        int start = 8 + (int) content.getLong(0);
        JsonNode header = new ObjectMapper().readTree(file, 8, start - 8);
        Map<String, double[]> state = new HashMap<>();
        for (JsonNode entry : manifest.get("state")) {
            if (!entry.get("type").asText().equals("float32")) throw new IllegalArgumentException("state that is not float32");
            double[] values = new double[(int) Arrays.stream(shape(entry)).reduce(1, (a, b) -> a * b)];
            Arrays.fill(values, entry.path("initial").asDouble());
            JsonNode saved = header.get(entry.get("name").asText());
            if (saved != null) {
                int begin = start + saved.at("/data_offsets/0").asInt();
                for (int i = 0; i < values.length; i++) values[i] = content.getFloat(begin + 4 * i);
            }
            state.put(entry.get("name").asText(), values);
        }
        return state;
    }

    static long[] shape(JsonNode value) {
        return StreamSupport.stream(value.get("shape").spliterator(), false).mapToLong(JsonNode::asLong).toArray();
    }

    /** One update: the loss before it; the state becomes what it is after it. */
    float step(Map<String, double[]> state, Map<String, OnnxTensor> batch, int count) throws OrtException {
        Map<String, OnnxTensor> own = new HashMap<>();
        for (JsonNode entry : manifest.get("state")) {
            String name = entry.get("name").asText();
            own.put(name, tensor(entry, state.get(name), shape(entry)));
        }
        JsonNode rate = manifest.get("learning_rate"), step = manifest.get("step"), seed = manifest.get("seed");
        double[] rates = {manifest.at("/optimizer/learning_rate").asDouble()};
        own.put(rate.get("name").asText(), tensor(rate, rates, new long[0]));
        own.put(step.get("name").asText(), tensor(step, new double[] {count}, new long[0]));
        if (!seed.isNull()) { // what Dropout draws from
            own.put(seed.get("name").asText(), tensor(seed, new double[] {seed.get("initial").asDouble()}, new long[0]));
        }
        Map<String, OnnxTensor> feeds = new HashMap<>(own);
        feeds.putAll(batch);
        try (OrtSession.Result results = session.run(feeds)) {
            for (JsonNode entry : manifest.get("state")) {
                FloatBuffer next = floats(results, entry.get("next").asText());
                double[] values = state.get(entry.get("name").asText());
                for (int i = 0; i < values.length; i++) values[i] = next.get(i);
            }
            return floats(results, manifest.at("/loss/name").asText()).get(0);
        } finally {
            own.values().forEach(OnnxTensor::close);
        }
    }

    static FloatBuffer floats(OrtSession.Result results, String name) {
        return ((OnnxTensor) results.get(name).orElseThrow()).getFloatBuffer();
    }

    public static void main(String[] arguments) throws Exception {
        Train training = new Train(Path.of(arguments[0]));
        int steps = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 20;

        // Your data belongs here: a tensor for each of the manifest's inputs and targets.
        JsonNode x = training.manifest.at("/inputs/0"), target = training.manifest.at("/targets/0");
        long[] shape = shape(x);
        shape[0] = 6;
        int size = (int) Arrays.stream(shape).reduce(1, (a, b) -> a * b);
        double[] numbers = IntStream.range(0, size).mapToDouble(Math::sin).toArray();
        double[] labels = IntStream.range(0, (int) shape[0]).mapToDouble(i -> i % 3).toArray();
        Map<String, OnnxTensor> batch = Map.of(
            x.get("name").asText(), training.tensor(x, numbers, shape),
            target.get("name").asText(), training.tensor(target, labels, new long[] {shape[0]}));

        Map<String, double[]> state = training.initial(), same = training.initial(), other = training.initial();
        other.replaceAll((name, values) -> DoubleStream.of(values).map(value -> value + 0.1).toArray());
        if (training.step(same, batch, 1) == training.step(other, batch, 1)) {
            throw new IllegalStateException("the state that is fed does not count: this runtime ignores it");
        }
        for (int count = 1; count <= steps; count++) System.out.println(training.step(state, batch, count));
    }
}

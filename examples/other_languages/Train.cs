// Train a folder of `onward.edge.export` with the package Microsoft.ML.OnnxRuntime: dotnet run FOLDER [STEPS]
using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Text.Json;
using Microsoft.ML.OnnxRuntime;

class Training
{
    readonly string folder;
    readonly JsonElement manifest;
    readonly InferenceSession session;

    Training(string folder)
    {
        this.folder = folder;
        manifest = JsonDocument.Parse(File.ReadAllBytes(Path.Combine(folder, "manifest.json"))).RootElement;
        session = new InferenceSession(FileOf("step"));
    }

    string FileOf(string what) => Path.Combine(folder, manifest.GetProperty("files").GetProperty(what).GetProperty("file").GetString());

    static string Name(JsonElement value) => value.GetProperty("name").GetString();

    static long[] Shape(JsonElement value) => value.GetProperty("shape").EnumerateArray().Select(size => size.GetInt64()).ToArray();

    /// <summary>A tensor of numbers; the type of a value decides what they are called.</summary>
    static OrtValue Tensor(JsonElement value, IEnumerable<double> numbers, long[] shape)
    {
        switch (value.GetProperty("type").GetString())
        {
            case "float32": return OrtValue.CreateTensorValueFromMemory(numbers.Select(number => (float)number).ToArray(), shape);
            case "float64": return OrtValue.CreateTensorValueFromMemory(numbers.ToArray(), shape);
            case "int32": return OrtValue.CreateTensorValueFromMemory(numbers.Select(number => (int)number).ToArray(), shape);
            case "int64": return OrtValue.CreateTensorValueFromMemory(numbers.Select(number => (long)number).ToArray(), shape);
            default: throw new NotSupportedException($"a tensor of this type is not supported here: {value}");
        }
    }

    /// <summary>
    /// Parameters and statistics begin as the checkpoint says, slots of the optimizer with a number. The checkpoint is a
    /// safetensors file: the length of a header, the header, and the bytes of the tensors.
    /// </summary>
    Dictionary<string, float[]> Initial()
    {
        var content = File.ReadAllBytes(FileOf("checkpoint"));
        var start = 8 + (int)BitConverter.ToInt64(content, 0);
        var header = JsonDocument.Parse(content.AsMemory(8, start - 8)).RootElement;
        var state = new Dictionary<string, float[]>();
        foreach (var entry in manifest.GetProperty("state").EnumerateArray())
        {
            if (entry.GetProperty("type").GetString() != "float32") throw new NotSupportedException("state that is not float32");
            var values = new float[Shape(entry).Aggregate(1L, (product, size) => product * size)];
            if (entry.TryGetProperty("initial", out var initial)) Array.Fill(values, initial.GetSingle());
            if (header.TryGetProperty(Name(entry), out var saved))
            {
                var begin = start + saved.GetProperty("data_offsets")[0].GetInt32();
                Buffer.BlockCopy(content, begin, values, 0, 4 * values.Length);
            }
            state[Name(entry)] = values;
        }
        return state;
    }

    /// <summary>One update: the loss before it, and the state after it.</summary>
    (float Loss, Dictionary<string, float[]> State) Step(Dictionary<string, float[]> state, Dictionary<string, OrtValue> batch, int count)
    {
        var entries = manifest.GetProperty("state").EnumerateArray().ToList();
        var own = entries.ToDictionary(Name, entry => OrtValue.CreateTensorValueFromMemory(state[Name(entry)], Shape(entry)));
        void Feed(JsonElement value, double number) => own[Name(value)] = Tensor(value, new[] { number }, new long[0]);
        Feed(manifest.GetProperty("learning_rate"), manifest.GetProperty("optimizer").GetProperty("learning_rate").GetDouble());
        Feed(manifest.GetProperty("step"), count);
        var seed = manifest.GetProperty("seed"); // what Dropout draws from
        if (seed.ValueKind != JsonValueKind.Null) Feed(seed, seed.GetProperty("initial").GetDouble());
        var feeds = own.Concat(batch).ToDictionary(pair => pair.Key, pair => pair.Value);
        var outputs = entries.Select(entry => entry.GetProperty("next").GetString()).Prepend(Name(manifest.GetProperty("loss"))).ToList();
        using var options = new RunOptions();
        using var results = session.Run(options, feeds, outputs);
        foreach (var value in own.Values) value.Dispose();
        var next = entries.Select((entry, index) => (Name(entry), results[index + 1].GetTensorDataAsSpan<float>().ToArray()));
        return (results[0].GetTensorDataAsSpan<float>()[0], next.ToDictionary(pair => pair.Item1, pair => pair.Item2));
    }

    static void Main(string[] arguments)
    {
        var training = new Training(arguments[0]);
        var steps = arguments.Length > 1 ? int.Parse(arguments[1]) : 20;

        // Your data belongs here: a tensor for each of the manifest's inputs and targets.
        const int rows = 6;
        JsonElement x = training.manifest.GetProperty("inputs")[0], target = training.manifest.GetProperty("targets")[0];
        var shape = x.GetProperty("shape").EnumerateArray().Skip(1).Select(size => size.GetInt64()).Prepend(rows).ToArray();
        var size = (int)shape.Aggregate(1L, (product, each) => product * each);
        var batch = new Dictionary<string, OrtValue>
        {
            [Name(x)] = Tensor(x, Enumerable.Range(0, size).Select(i => Math.Sin(i)), shape),
            [Name(target)] = Tensor(target, Enumerable.Range(0, rows).Select(i => (double)(i % 3)), new long[] { rows }),
        };

        var state = training.Initial();
        var other = state.ToDictionary(pair => pair.Key, pair => pair.Value.Select(value => value + 0.1f).ToArray());
        if (training.Step(state, batch, 1).Loss == training.Step(other, batch, 1).Loss)
            throw new InvalidOperationException("the state that is fed does not count: this runtime ignores it");
        for (var count = 1; count <= steps; count++)
        {
            float loss;
            (loss, state) = training.Step(state, batch, count);
            Console.WriteLine(loss.ToString("G9", CultureInfo.InvariantCulture));
        }
    }
}

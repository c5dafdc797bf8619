// Train a folder of `onward.edge.export` with onnxruntime and a reader of JSON (nlohmann-json):
//   g++ -std=c++17 train.cpp -lonnxruntime -o train && ./train FOLDER [STEPS]
#include <onnxruntime_cxx_api.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

using nlohmann::json;
using State = std::map<std::string, std::vector<float>>;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// The type of a value decides what its numbers are called; the tensor has them, so that nothing else needs to live on.
Ort::Value tensor(const json& value, const std::vector<double>& numbers, const std::vector<int64_t>& shape) {
  Ort::AllocatorWithDefaultOptions allocator;
  const auto fill = [&](auto zero) {
    auto made = Ort::Value::CreateTensor<decltype(zero)>(allocator, shape.data(), shape.size());
    for (size_t i = 0; i < numbers.size(); ++i)
      made.template GetTensorMutableData<decltype(zero)>()[i] = static_cast<decltype(zero)>(numbers[i]);
    return made;
  };
  const std::string type = value.at("type");
  if (type == "float32") return fill(float{});
  if (type == "float64") return fill(double{});
  if (type == "int32") return fill(int32_t{});
  if (type == "int64") return fill(int64_t{});
  throw std::runtime_error("a tensor of type " + type + " is not supported here");
}

struct Training {
  std::string folder;
  json manifest = json::parse(read(folder + "/manifest.json"));
  Ort::Env env{};
  Ort::Session session{env, (folder + "/" + std::string(manifest["files"]["step"]["file"])).c_str(), Ort::SessionOptions{}};

  // Parameters and statistics begin as the checkpoint says, slots of the optimizer with a number. The checkpoint is a
  // safetensors file: the length of a header, the header, and the bytes of the tensors.
  State initial() const {
    const std::string content = read(folder + "/" + std::string(manifest["files"]["checkpoint"]["file"]));
    uint64_t length;
    std::memcpy(&length, content.data(), 8);
    const json header = json::parse(content.substr(8, length));
    State state;
    for (const json& entry : manifest["state"]) {
      if (entry["type"] != "float32") throw std::runtime_error("state that is not float32 is not supported here");
      size_t size = 1;
      for (const json& dim : entry["shape"]) size *= dim.get<size_t>();
      std::vector<float> values(size, entry.value("initial", 0.0f));
      if (const auto found = header.find(entry["name"].get<std::string>()); found != header.end())
        std::memcpy(values.data(), content.data() + 8 + length + (*found)["data_offsets"][0].get<size_t>(), 4 * size);
      state[entry["name"]] = std::move(values);
    }
    return state;
  }

  // One update: the loss before it; the state becomes what it is after it.
  float step(State& state, const std::map<std::string, Ort::Value>& batch, int count) {
    std::vector<std::string> names, results{manifest["loss"]["name"]};
    std::vector<Ort::Value> own;
    std::vector<const OrtValue*> values;
    const auto feed = [&](const json& value, const std::vector<double>& numbers, const std::vector<int64_t>& shape) {
      names.push_back(value["name"]);
      own.push_back(tensor(value, numbers, shape));
    };
    for (const json& entry : manifest["state"]) {
      const auto& numbers = state.at(entry["name"]);
      feed(entry, {numbers.begin(), numbers.end()}, entry["shape"]);
      results.push_back(entry["next"]);
    }
    feed(manifest["learning_rate"], {manifest["optimizer"]["learning_rate"]}, {});
    feed(manifest["step"], {double(count)}, {});
    if (!manifest["seed"].is_null()) feed(manifest["seed"], {manifest["seed"]["initial"]}, {});  // what Dropout draws from
    for (const auto& value : own) values.push_back(value);
    for (const auto& [name, value] : batch) names.push_back(name), values.push_back(value);

    std::vector<const char*> inputs, outputs;
    for (const auto& name : names) inputs.push_back(name.c_str());
    for (const auto& name : results) outputs.push_back(name.c_str());
    std::vector<OrtValue*> found(outputs.size(), nullptr);
    Ort::ThrowOnError(Ort::GetApi().Run(session, nullptr, inputs.data(), values.data(), values.size(), outputs.data(),
                                        outputs.size(), found.data()));
    std::vector<Ort::Value> after;
    for (OrtValue* value : found) after.emplace_back(value);  // which frees it
    for (size_t i = 0; i < manifest["state"].size(); ++i) {
      auto& numbers = state.at(manifest["state"][i]["name"]);
      const float* data = after[i + 1].GetTensorData<float>();
      numbers.assign(data, data + numbers.size());
    }
    return after[0].GetTensorData<float>()[0];
  }
};

int main(int count, char** arguments) try {
  Training training{arguments[1]};
  const int steps = count > 2 ? std::stoi(arguments[2]) : 20;

  // Your data belongs here: a tensor for each of the manifest's inputs and targets.
  const json &x = training.manifest["inputs"][0], &target = training.manifest["targets"][0];
  std::vector<int64_t> shape{6};
  for (size_t axis = 1; axis < x["shape"].size(); ++axis) shape.push_back(x["shape"][axis]);
  int64_t size = 1;
  for (const int64_t dim : shape) size *= dim;
  std::vector<double> numbers, labels;
  for (int64_t i = 0; i < size; ++i) numbers.push_back(std::sin(double(i)));
  for (int64_t i = 0; i < shape[0]; ++i) labels.push_back(double(i % 3));
  std::map<std::string, Ort::Value> batch;
  batch.emplace(x["name"], tensor(x, numbers, shape));
  batch.emplace(target["name"], tensor(target, labels, {shape[0]}));

  State state = training.initial(), same = state, other = state;
  for (auto& [name, values] : other)
    for (float& value : values) value += 0.1f;
  if (training.step(same, batch, 1) == training.step(other, batch, 1))
    throw std::runtime_error("the state that is fed does not count: this runtime ignores it");
  for (int i = 1; i <= steps; ++i) std::printf("%.9g\n", training.step(state, batch, i));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

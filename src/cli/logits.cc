#include "cli/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/ranges.h>

#include "cases/random.h"
#include "cli/progress.h"
#include "io/npy.h"
#include "io/safetensors.h"

namespace kdtree::cli {
namespace {

Result<Tensor> pick_tensor(const std::string& path, const std::string& name) {
  const auto file = SafetensorsFile::open(path);
  KDTREE_RETURN_IF_ERROR(file);
  std::vector<std::string> names;
  for (const auto& entry : file->tensors())
    names.push_back(entry.first);
  if (name.empty() && names.size() != 1) {
    return fail(KDTREE_INVALID_ARGUMENT, "--tensor: {} holds {} tensors, expected the name of one: {}", path,
                names.size(), fmt::join(names, ", "));
  }
  const TensorView* view = file->find(name.empty() ? names.front() : name);
  if (view == nullptr) {
    return fail(KDTREE_INVALID_ARGUMENT, "--tensor: '{}' is not in {}, expected one of {}", name, path,
                fmt::join(names, ", "));
  }
  return view->to_tensor();
}

Tensor widen_f16(const Tensor& half) {
  Tensor wide(DType::f32, half.shape);
  const auto in = half.as<uint16_t>();
  const auto out = wide.as<float>();
  std::transform(in.begin(), in.end(), out.begin(), f16_to_float);
  return wide;
}

int64_t draw(const Tensor& logits, int64_t row, Simulation simulation, Random& random) {
  const int64_t vocab = logits.shape[1];
  const auto logit = [&](int64_t token) { return logits.value(row * vocab + token); };
  int64_t best = 0;
  for (int64_t token = 1; token < vocab; ++token) {
    if (logit(token) > logit(best)) best = token;
  }
  if (simulation == Simulation::greedy) return best;
  double total = 0.0;
  for (int64_t token = 0; token < vocab; ++token)
    total += std::exp(logit(token) - logit(best));
  double left = random.uniform() * total;
  for (int64_t token = 0; token < vocab; ++token) {
    left -= std::exp(logit(token) - logit(best));
    if (left < 0.0) return token;
  }
  return best;
}

}  // namespace

Result<Tensor> read_logits(const std::string& path, const std::string& tensor) {
  if (path.ends_with(".npy") && !tensor.empty()) {
    return fail(KDTREE_INVALID_ARGUMENT, "--tensor: '{}', expected none: a .npy file holds one tensor",
                tensor);
  }
  if (!path.ends_with(".npy") && !path.ends_with(".safetensors")) {
    return fail(KDTREE_INVALID_ARGUMENT, "LOGITS: '{}', expected a .npy or .safetensors file", path);
  }
  auto logits = path.ends_with(".npy") ? read_npy(path) : pick_tensor(path, tensor);
  KDTREE_RETURN_IF_ERROR(logits);
  if (logits->shape.size() != 2 || logits->shape[1] < 1 ||
      logits->shape[1] > std::numeric_limits<int32_t>::max()) {
    return fail(KDTREE_INVALID_FILE, "{}: shape [{}], expected [positions, vocab]", path,
                fmt::join(logits->shape, ", "));
  }
  switch (logits->dtype) {
    case DType::f32:
    case DType::bf16:
      return logits;
    case DType::f16:
      return widen_f16(*logits);
    default:
      return fail(KDTREE_INVALID_FILE, "{}: element type {}, expected f32, bf16 or f16", path,
                  dtype_name(logits->dtype));
  }
}

Tensor random_logits(uint64_t seed, int64_t positions, int64_t vocab) {
  Random random(seed);
  Tensor logits(DType::f32, {positions, vocab});
  const auto values = logits.as<float>();
  std::vector<int64_t> token_of_rank(static_cast<size_t>(vocab));
  ProgressLine progress("positions");
  for (int64_t position = 0; position < positions; ++position) {
    if (!progress.update(position, positions)) break;
    std::iota(token_of_rank.begin(), token_of_rank.end(), 0);
    random.shuffle(std::span(token_of_rank));
    // Exponents around 2.6 put about 0.75 on the best token, around 1.7 about 0.5: what block drafters
    // measure at their first and last positions.
    const double fade =
        0.9 * static_cast<double>(position) / static_cast<double>(std::max<int64_t>(positions, 2));
    const double exponent = 2.6 - fade + 0.35 * random.normal();
    for (int64_t rank = 0; rank < vocab; ++rank) {
      const double logit = -exponent * std::log(static_cast<double>(rank + 1)) + 0.3 * random.normal();
      values[static_cast<size_t>(position * vocab + token_of_rank[static_cast<size_t>(rank)])] =
          static_cast<float>(logit);
    }
  }
  return logits;
}

Result<std::vector<int32_t>> read_target_tokens(const std::string& path, int64_t nodes) {
  const auto tensor = read_npy(path);
  KDTREE_RETURN_IF_ERROR(tensor);
  if (tensor->dtype != DType::i32 && tensor->dtype != DType::i64) {
    return fail(KDTREE_INVALID_FILE, "{}: element type {}, expected i32 or i64", path,
                dtype_name(tensor->dtype));
  }
  if (tensor->shape.size() != 1 || tensor->shape[0] != nodes) {
    return fail(KDTREE_INVALID_FILE, "{}: shape [{}], expected [{}]: one target token a row of the tree",
                path, fmt::join(tensor->shape, ", "), nodes);
  }
  const IndexArray array(tensor->pointer(), tensor->dtype);
  std::vector<int32_t> tokens(static_cast<size_t>(nodes));
  for (int64_t i = 0; i < nodes; ++i) {
    const int64_t token = array[i];
    if (token < 0 || token > std::numeric_limits<int32_t>::max()) {
      return fail(KDTREE_INVALID_FILE, "{}: element {} is {}, expected a token in 0 .. 2^31 - 1", path, i,
                  token);
    }
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>(token);
  }
  return tokens;
}

std::vector<int32_t> simulate_targets(const Tensor& logits, const DraftTree& tree, Simulation simulation,
                                      uint64_t seed) {
  Random random(seed);
  const int64_t last = logits.shape[0] - 1;
  std::vector<int32_t> targets(tree.depth.size());
  ProgressLine progress("target tokens");
  for (size_t node = 0; node < targets.size(); ++node) {
    if (!progress.update(static_cast<int64_t>(node), tree.size())) break;
    const int64_t position = std::min<int64_t>(tree.depth[node], last);
    targets[node] = static_cast<int32_t>(draw(logits, position, simulation, random));
  }
  return targets;
}

}  // namespace kdtree::cli

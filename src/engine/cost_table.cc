#include "engine/cost_table.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "io/atomic_file.h"

namespace kdtree {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kRows[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512};
constexpr int64_t kDepths[] = {1, 2, 3, 4, 5, 7, 9, 12, 15, 23, 31, 47, 63};  // and a drafter's most
constexpr double kMostPassUs = 2e6;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr int kSweeps = 6;
// Passes of one row that come before the one that counts: a plain round's caches are those of plain rounds.
constexpr int kWarmPasses = 4;
constexpr double kMostSweepsUs = 1e6;  // then no other one begins: what is slow varies less

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Between the points (x[i], y(i)) linear; before the first constant, beyond the last in proportion to x.
template <class Y>
double interpolate(const std::vector<int64_t>& x, const Y& y, double at) {
  const auto after = std::upper_bound(x.begin(), x.end(), at,
                                      [](double a, int64_t b) { return a < static_cast<double>(b); });
  if (after == x.begin()) return y(size_t{0});
  const auto i = static_cast<size_t>(after - x.begin()) - 1;
  const auto x0 = static_cast<double>(x[i]);
  if (i + 1 == x.size()) return y(i) * at / x0;
  const auto x1 = static_cast<double>(x[i + 1]);
  return y(i) + (y(i + 1) - y(i)) * (at - x0) / (x1 - x0);
}

// A request whose tokens are made up: what a pass costs does not depend on them.
class Probe {
 public:
  static Result<Probe> create(TargetModel& target, int64_t context, int64_t most_rows) {
    // What generation takes by default.
    const DType dtype = target.products() == Products::bf16 ? DType::bf16 : DType::f32;
    auto pool =
        KvPool::create(target.config().layers, context + most_rows, target.config().kv_width(), dtype);
    KDTREE_RETURN_IF_ERROR(pool);
    Probe probe(target, *std::move(pool));
    probe.slots_ = *probe.pool_.allocator().allocate(context + most_rows);
    constexpr int64_t kChunk = 64;
    for (int64_t begin = 0; begin < context; begin += kChunk) {
      const auto out = probe.pass(begin, std::min(kChunk, context - begin));
      KDTREE_RETURN_IF_ERROR(out);
    }
    return probe;
  }

  // `rows` children of one root behind `prefix` tokens.
  Result<ForwardOutput> pass(int64_t prefix, int64_t rows) {
    ForwardBatch batch;
    for (int64_t r = 0; r < rows; ++r) {
      batch.tokens.push_back(static_cast<int32_t>((7 * r + prefix) % target_.config().vocab_size));
      batch.positions.push_back(prefix + std::min<int64_t>(r, 1));
      batch.parents.push_back(r == 0 ? -1 : 0);
      batch.logit_rows.push_back(static_cast<int32_t>(r));
    }
    batch.slots.assign(slots_.begin() + prefix, slots_.begin() + prefix + rows);
    batch.qo_indptr = {0, static_cast<int32_t>(rows)};
    batch.kv_indptr = {0, static_cast<int32_t>(prefix)};
    batch.kv_indices.assign(slots_.begin(), slots_.begin() + prefix);
    return target_.forward(batch, pool_);
  }

 private:
  Probe(TargetModel& target, KvPool pool) : target_(target), pool_(std::move(pool)) {}

  TargetModel& target_;
  KvPool pool_;
  std::vector<int64_t> slots_;
};

// Microseconds of the passes call(0) ... call(count - 1), each the least of a few sweeps over all of them:
// what disturbs a pass only adds, and a slow moment of the machine spoils one sweep. before(i) runs in front
// of each, so that it finds the caches as in a round. The first sweep ends at the first pass that takes
// `most_times` as long as call(0), or too long at all.
template <class Before, class Call>
Result<std::vector<double>> measure_passes(size_t count, double most_times, const Before& before,
                                           const Call& call) {
  std::vector<double> least(count, std::numeric_limits<double>::infinity());
  const auto begin = Clock::now();
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    if (sweep > 0 && microseconds_since(begin) > kMostSweepsUs) break;
    for (size_t i = 0; i < least.size(); ++i) {
      KDTREE_RETURN_IF_ERROR(before(i));
      const auto start = Clock::now();
      KDTREE_RETURN_IF_ERROR(call(i));
      least[i] = std::min(least[i], microseconds_since(start));
      if (sweep == 0 && least[i] > std::min(kMostPassUs, most_times * least[0])) least.resize(i + 1);
    }
  }
  return least;
}

// Requests with made-up tokens.
class DraftProbe {
 public:
  DraftProbe(const TargetModel& target, Drafter& drafter, int64_t context, int64_t requests)
      : drafter_(drafter) {
    const auto layers = static_cast<int64_t>(drafter.feature_layers().size());
    const std::vector<float> features(static_cast<size_t>(context * layers * target.config().hidden_size),
                                      0.1f);
    const std::vector<int32_t> tokens(static_cast<size_t>(context), 0);
    for (int64_t i = 0; i < requests; ++i) {
      states_.push_back(drafter.start());
      drafter.extend(*states_.back(), tokens, features);
      queries_.push_back({states_.back().get(), 0});
    }
  }

  void pass(int64_t requests, int64_t depth) {
    (void)drafter_.propose(std::span(queries_).first(static_cast<size_t>(requests)), depth);
  }

 private:
  Drafter& drafter_;
  std::vector<std::unique_ptr<DraftState>> states_;
  std::vector<DraftQuery> queries_;
};

Status measure_drafter(TargetModel& target, Drafter& drafter, int64_t context, CostTable& table) {
  table.requests = {1, 4};
  for (const int64_t depth : kDepths) {
    if (depth >= drafter.least_depth() && depth < drafter.depth()) table.depths.push_back(depth);
  }
  table.depths.push_back(drafter.depth());
  DraftProbe probe(target, drafter, context, table.requests.back());
  auto verified = Probe::create(target, context, table.depths.back() + 1);
  KDTREE_RETURN_IF_ERROR(verified);
  const size_t columns = table.requests.size();
  // Behind the verification of a tree as deep.
  const auto before = [&](size_t i) -> Status {
    KDTREE_RETURN_IF_ERROR(verified->pass(context, table.depths[i / columns] + 1));
    return {};
  };
  const auto times = measure_passes(table.depths.size() * columns, kNoLimit, before, [&](size_t i) -> Status {
    probe.pass(table.requests[i % columns], table.depths[i / columns]);
    return {};
  });
  KDTREE_RETURN_IF_ERROR(times);
  for (auto row = times->begin(); row != times->end(); row += static_cast<std::ptrdiff_t>(columns))
    table.draft_us.emplace_back(row, row + static_cast<std::ptrdiff_t>(columns));
  return {};
}

}  // namespace

double CostTable::verify(int64_t row_count, double context) const {
  const auto at = static_cast<double>(row_count);
  const double near = interpolate(
      rows, [&](size_t i) { return verify_us[0][i]; }, at);
  const double far = interpolate(
      rows, [&](size_t i) { return verify_us[1][i]; }, at);
  const auto c0 = static_cast<double>(contexts[0]);
  const auto c1 = static_cast<double>(contexts[1]);
  // Noise must not make a longer context cheaper.
  return near + std::max(0.0, far - near) * std::max(0.0, context - c0) / (c1 - c0);
}

double CostTable::draft(int64_t request_count, int64_t depth) const {
  if (draft_us.empty()) return 0.0;
  const auto at_depth = [&](size_t d) {
    return interpolate(
        requests, [&](size_t r) { return draft_us[d][r]; }, static_cast<double>(request_count));
  };
  return interpolate(depths, at_depth, static_cast<double>(depth));
}

Result<CostTable> CostTable::measure(TargetModel& target, Drafter* drafter, int64_t most_rows) {
  CostTable table;
  const int64_t longest = std::max<int64_t>(2, std::min<int64_t>(1024, target.config().max_positions / 2));
  table.contexts = {std::min<int64_t>(64, longest / 2), longest};
  for (const int64_t rows : kRows) {
    if (rows <= std::max<int64_t>(1, most_rows)) table.rows.push_back(rows);
  }
  // No tree pays whose pass takes as long as plain decoding of all that it can give. One measurement may be
  // off by half.
  const double most_times = drafter != nullptr ? static_cast<double>(drafter->depth()) + 1.0 : kNoLimit;
  for (const int64_t context : table.contexts) {
    auto probe = Probe::create(target, context, table.rows.back());
    KDTREE_RETURN_IF_ERROR(probe);
    std::optional<DraftProbe> draft;
    if (drafter != nullptr) draft.emplace(target, *drafter, context, 1);
    const auto call = [&](size_t i) -> Status {
      KDTREE_RETURN_IF_ERROR(probe->pass(context, table.rows[i]));
      return {};
    };
    // Plain rounds come behind their like, trees behind a draft.
    const auto before = [&](size_t i) -> Status {
      for (int pass = 0; pass < (i == 0 ? kWarmPasses : 1); ++pass)
        KDTREE_RETURN_IF_ERROR(call(i));
      if (i > 0 && draft)
        draft->pass(1, std::clamp(table.rows[i] - 1, drafter->least_depth(), drafter->depth()));
      return {};
    };
    auto times = measure_passes(table.rows.size(), 2.0 * most_times, before, call);
    KDTREE_RETURN_IF_ERROR(times);
    // Fewer rows cannot cost more.
    for (size_t i = times->size() - 1; i > 0; --i)
      (*times)[i - 1] = std::min((*times)[i - 1], (*times)[i]);
    const auto last = std::upper_bound(times->begin(), times->end() - 1, most_times * times->front());
    times->erase(last + 1, times->end());
    table.rows.resize(times->size());
    table.verify_us.push_back(*std::move(times));
  }
  table.verify_us[0].resize(table.rows.size());
  if (drafter != nullptr) KDTREE_RETURN_IF_ERROR(measure_drafter(target, *drafter, table.contexts[0], table));
  return table;
}

Status CostTable::save(const std::string& path, const std::string& key) const {
  Json json{{"key", key}};
  for_each_field(*this, [&](const char* name, const auto& field) { json[name] = field; });
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) {
    return fail(KDTREE_IO_ERROR, "{}: {}", std::filesystem::path(path).parent_path().string(),
                error.message());
  }
  const std::string text = json.dump(1) + "\n";
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(text))};
  return write_file_atomically(path, parts);
}

Result<CostTable> CostTable::load(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  if (!file) return fail(KDTREE_IO_ERROR, "{}: cannot be opened", path);
  const Json json = Json::parse(file, nullptr, false);
  CostTable table;
  try {
    if (json.at("key").get<std::string>() != key) {
      return fail(KDTREE_INVALID_FILE, "{}: about another model or machine", path);
    }
    for_each_field(table, [&](const char* name, auto& field) { json.at(name).get_to(field); });
  } catch (const Json::exception& error) {
    return fail(KDTREE_INVALID_FILE, "{}: {}", path, error.what());
  }
  const auto ascending = [](const std::vector<int64_t>& numbers) {
    return numbers.empty() ||
           (numbers[0] >= 1 &&
            std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) == numbers.end());
  };
  const auto positive = [](const std::vector<double>& numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [](double x) { return x > 0.0; });
  };
  const bool draft_shaped =
      table.requests.empty() == table.depths.empty() && table.draft_us.size() == table.depths.size() &&
      std::all_of(table.draft_us.begin(), table.draft_us.end(),
                  [&](const auto& row) { return row.size() == table.requests.size() && positive(row); });
  const bool shaped = !table.rows.empty() && table.contexts.size() == 2 && table.verify_us.size() == 2 &&
                      table.verify_us[0].size() == table.rows.size() &&
                      table.verify_us[1].size() == table.rows.size() && ascending(table.rows) &&
                      ascending(table.contexts) && ascending(table.requests) && ascending(table.depths) &&
                      positive(table.verify_us[0]) && positive(table.verify_us[1]) && draft_shaped;
  if (!shaped) return fail(KDTREE_INVALID_FILE, "{}: expected a cost for every number of rows", path);
  return table;
}

}  // namespace kdtree

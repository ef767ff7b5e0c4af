// The decoding loop: requests in, tokens out. Plain, with draft chains or with draft trees: the tokens are
// the same, bit for bit, also when they are sampled, because a row's logits do not depend on the rows
// verified with it and a position's random number not on how it was reached.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/node_policy.h"
#include "engine/stats.h"
#include "model/drafter.h"
#include "model/kv_pool.h"
#include "model/sampling.h"
#include "model/target_model.h"

namespace kdtree {

enum class DecodeMode { autoregressive, chain, tree };

struct EngineOptions {
  DecodeMode mode = DecodeMode::autoregressive;
  int32_t nodes = 16;    // of a tree or chain, the root not counted; with a policy, the most it may choose
  int64_t batch = 1;     // requests that are decoded together
  int64_t kv_slots = 0;  // of the pool
  DType kv_dtype = DType::f32;  // f32 or bf16
  // At a commit; false: accepted rows stay and the request's list of slots changes, as in servers whose pages
  // hold one slot.
  bool move_rows = true;
};

struct Request {
  std::vector<int32_t> prompt;  // not empty
  int64_t max_new_tokens = 0;   // >= 1
  SamplingParams sampling;
  // Of its trees, where the engine's are more; 0: nothing is drafted for it.
  int32_t nodes = std::numeric_limits<int32_t>::max();
};

enum class FinishReason { none, eos, length, context };
const char* finish_reason_name(FinishReason reason);  // "eos"

struct Emission {
  int64_t request;                  // as submit() numbered it
  std::span<const int32_t> tokens;  // new ones, in order; an end-of-sequence token is the last
  FinishReason finish;              // not none: the request is done
};
// False ends the request here: what it was to say has been said.
using Emit = std::function<bool(const Emission&)>;

// One round, for those who watch: a bundle's tokens, a report's trees.
struct RoundView {
  int64_t request;
  const Request& asked;
  int64_t start;                         // position of the root
  const DraftTree& tree;                 // as verified
  std::span<const float> logits;         // [N, vocab] of the tree's nodes
  std::span<const int32_t> accept_path;  // local nodes, root first
  std::span<const int32_t> emitted;
};
using WatchRound = std::function<void(const RoundView&)>;

class Engine {
 public:
  // `target` and `drafter` must outlive the engine; chain and tree need a drafter. With `policy` the number
  // of nodes is chosen round by round. Errors: KDTREE_INVALID_ARGUMENT, KDTREE_OUT_OF_MEMORY.
  static Result<Engine> create(TargetModel& target, Drafter* drafter, const EngineOptions& options,
                               std::optional<NodePolicy> policy = std::nullopt);
  Engine(Engine&&) noexcept;
  ~Engine();

  // Slots that a request takes at most, for choosing kv_slots.
  static int64_t slots_needed(const ModelConfig& config, const EngineOptions& options,
                              const Request& request);

  // Requests are numbered from 0 in the order in which they come. Errors: KDTREE_INVALID_ARGUMENT for an
  // empty prompt, a token that the vocabulary does not have, a prompt that fills the context, sampling
  // parameters; KDTREE_OUT_OF_MEMORY for a request larger than the pool. One that only has to wait is no
  // error.
  Result<int64_t> submit(Request request);

  bool idle() const;
  // Lets waiting requests in as far as batch and pool allow, then one round of all. Errors: those of the
  // model; KDTREE_NOT_A_NUMBER when a logit is none. An error ends the engine: later steps repeat it.
  Status step(const Emit& emit);

  // Called for every request of every round, in the order of the batch; and for every layer's attention of
  // every round, before that.
  void watch(WatchRound watch) { watch_ = std::move(watch); }
  void watch_verify(TargetModel::VerifyHook watch) { watch_verify_ = std::move(watch); }

  const GenerationStats& stats() const { return stats_; }
  const GenerationStats& request_stats(int64_t request) const;
  const StageTimes& times() const { return times_; }
  const NodePolicy* policy() const { return policy_ ? &*policy_ : nullptr; }
  int64_t free_slots() { return pool_.allocator().free_slots(); }

 private:
  struct Sequence;

  Engine(TargetModel& target, Drafter* drafter, const EngineOptions& options, KvPool pool);
  Status admit_and_round(const Emit& emit);
  Status admit(const Emit& emit);
  Result<ForwardOutput> forward();
  Status prefill(Sequence& sequence);
  Status start(Sequence& sequence, const Emit& emit);
  const Sequence* longest_shared_prefix(const Sequence& sequence, int64_t& length) const;
  Status draft();
  int32_t most_nodes(const Sequence& sequence) const;
  int64_t draft_depth(std::span<const size_t> drafting);
  Result<DraftTree> build(const Sequence& sequence, std::span<const float> logits, int64_t drafted);
  void compile();
  Status round(const Emit& emit);
  Status accept(size_t index, int64_t first_row, const ForwardOutput& out, const Emit& emit);
  Status move_rows(const Sequence& sequence, int64_t first_row, std::span<const int32_t> path);
  Status commit(Sequence& sequence, int64_t first_row, std::span<const int32_t> path,
                std::span<const float> features);
  void deliver(Sequence& sequence, std::span<const int32_t> tokens, const Emit& emit);
  void drop_finished();
  double mean_context() const;

  TargetModel& target_;
  Drafter* drafter_;
  EngineOptions options_;
  KvPool pool_;
  std::optional<NodePolicy> policy_;
  std::vector<std::unique_ptr<Sequence>> waiting_, active_;
  std::vector<GenerationStats> request_stats_;
  GenerationStats stats_;
  StageTimes times_;
  Status state_;
  WatchRound watch_;
  TargetModel::VerifyHook watch_verify_;

  // The round at work.
  ForwardBatch batch_;
  std::vector<DraftTree> trees_;    // one an active request
  std::vector<float> last_logits_;  // of a prompt's last token
  std::vector<int32_t> candidate_tokens_;
  std::vector<float> candidate_log_probs_;
  SamplingScratch sampling_;
  std::vector<std::byte> workspace_;
  std::vector<float> features_;
};

}  // namespace kdtree

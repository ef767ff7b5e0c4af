// What `kdtree generate` prints: the texts as they come, a line of statistics, or one JSON object.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/text_stream.h"
#include "model/tokenizer.h"

namespace kdtree::cli {

// The texts of several requests, one behind the other on standard output: the first that is not done is shown
// as it comes, those behind it wait.
class GenerationOutput {
 public:
  struct Options {
    bool stream = false;  // show a text before it is complete
    bool quiet = false;   // show none
  };
  // Without a tokenizer the token ids are shown. Errors: KDTREE_INVALID_ARGUMENT for an empty stop string.
  static Result<GenerationOutput> create(size_t requests, const Tokenizer* tokenizer,
                                         const std::vector<std::string>& stops, const Options& options);

  // False when a stop string ended the text.
  bool add(const Emission& emission);
  // Whatever is left, when the generation ends early.
  void finish();

  const std::vector<int32_t>& tokens(size_t request) const { return texts_[request].tokens; }
  const std::string& bytes(size_t request) const { return texts_[request].bytes; }
  // "eos", "length", "context", "stop", or "interrupted".
  const std::string& finish_reason(size_t request) const { return texts_[request].reason; }

 private:
  struct Text {
    std::vector<int32_t> tokens;
    std::string bytes;   // of the text, without what follows a stop string
    std::string hidden;  // what waits for its turn
    std::string reason = "interrupted";
    StopMatcher stops;
    TextStream stream;
    bool done = false;
  };

  GenerationOutput() = default;
  std::string text_of(Text& text, std::span<const int32_t> tokens) const;
  void show(std::string_view text);
  void advance();

  const Tokenizer* tokenizer_ = nullptr;
  Options options_;
  std::vector<Text> texts_;
  size_t shown_ = 0;        // the request whose turn it is
  bool headed_ = false;     // its heading is out
  bool line_ended_ = true;  // what was shown last ended a line
};

// "119 tokens, 118 of them in 36 rounds of 16.0 nodes: 0.31 s, 381 tokens/s, accept length 3.28; draft 21 %,
// verify 77 %, rest 2.0 %; prompt 0.02 s". A request's first token comes from its prompt's pass.
std::string summary_line(const GenerationStats& stats, const StageTimes& times, int64_t tokens);

nlohmann::ordered_json stats_json(const GenerationStats& stats);
nlohmann::ordered_json times_json(const StageTimes& times);

}  // namespace kdtree::cli
